//! One attempt each, at what looks like a granted host.

use super::{Cell, Confines, get, read_all, status, victim::Victim};
use crate::egress::{
    hello::tests::hello,
    outward::{Resolve as _, tests::Names},
    proxy::Omitted,
};
use tokio::{io::AsyncWriteExt as _, net::TcpStream};

/// The owner of a name says one thing when it is checked, and another when it is used.
#[tokio::test]
async fn a_name_changes_its_mind() {
    let answers: &[&[&str]] = &[&["127.0.0.2"], &["127.0.0.1"]];
    let names = [("name.example", answers)];
    let victim = Victim::new().await;

    // Whoever asks once to check and once more to connect ends up at the victim.
    let gullible = Names::new(&names);
    gullible.resolve("name.example").await.unwrap();
    let second = gullible.resolve("name.example").await.unwrap()[0];
    let mut stream = TcpStream::connect((second, victim.port)).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    assert!(read_all(&mut stream).await.ends_with("secret"));
    let heard = victim.heard();

    let confines = Confines { allowances: &["127.0.0.2"], names: &names, ..Confines::default() };
    let cell = Cell::new(&confines);
    let url = format!("http://name.example:{}/", victim.port);
    let request = get(&url, &format!("name.example:{}", victim.port));
    // Nobody listens at the address that was checked, and no other is tried.
    assert_eq!(status(&cell.send(&request).await), 502);
    // And each request is checked anew.
    assert_eq!(status(&cell.send(&request).await), 403);
    assert_eq!(cell.refusals().await, ["name.example may not be reached: 127.0.0.1 is loopback"]);
    assert_eq!(victim.heard(), heard);
}

#[tokio::test]
async fn another_port_of_a_granted_host_is_connected_to() {
    let victim = Victim::new().await;
    let authority = format!("name.example:{}", victim.port);
    for (grant, reached) in [("name.example:443", 403), ("name.example", 200)] {
        let cell = Cell::new(&Confines { grants: &[grant], ..Confines::default() });
        let (head, _) = cell.tunnel(&authority, &hello("name.example")).await;
        assert_eq!(status(&head), reached, "{head}");
    }
}

#[tokio::test]
async fn the_header_names_another_host_than_the_url() {
    let victim = Victim::new().await;
    let authority = format!("name.example:{}", victim.port);
    let url = format!("http://{authority}/");
    for headers in [
        "host: inner.example\r\n".to_owned(),
        format!("host: {authority}\r\nhost: inner.example\r\n"),
        format!("host: inner.example\r\nhost: {authority}\r\n"),
        "host: name.example\r\n".to_owned(),
        format!("host: {authority}, inner.example\r\n"),
        format!("host: inner.example@{authority}\r\n"),
    ] {
        let request = format!("GET {url} HTTP/1.1\r\n{headers}connection: close\r\n\r\n");
        let cell = Cell::new(&Confines::default());
        assert_eq!(status(&cell.send(request.as_bytes()).await), 403, "{headers}");
        let reason = format!("a request to {authority} names another host in its header");
        assert_eq!(cell.refusals().await, [reason]);
        assert_eq!(victim.text(), "", "{headers}");
    }
    let cell = Cell::new(&Confines {
        omitted: Omitted { host_header: true, ..Omitted::default() },
        ..Confines::default()
    });
    cell.send(&get(&url, "inner.example")).await;
    assert!(victim.text().contains("host: inner.example\r\n"), "{}", victim.text());
}

#[tokio::test]
async fn a_tunnel_to_one_host_is_used_for_another() {
    let victim = Victim::new().await;
    let authority = format!("name.example:{}", victim.port);
    for (first, reason) in [
        (hello("inner.example"), "asks for another host by TLS"),
        (hello("192.0.2.1"), "does not ask for it by TLS"),
        (b"GET / HTTP/1.1\r\nhost: inner.example\r\n\r\n".to_vec(), "is no TLS"),
        (b"SSH-2.0-OpenSSH_10.0\r\n".to_vec(), "is no TLS"),
    ] {
        let cell = Cell::new(&Confines::default());
        let (head, answer) = cell.tunnel(&authority, &first).await;
        assert_eq!((status(&head), answer), (200, vec![21, 3, 3, 0, 2, 2, 112]));
        let refused = cell.refusals().await;
        assert!(refused.len() == 1 && refused[0].ends_with(reason), "{refused:?}");
        assert_eq!(victim.text(), "");
    }
    let omitted = Omitted { server_name: true, ..Omitted::default() };
    let cell = Cell::new(&Confines { omitted, ..Confines::default() });
    let (_, answer) = cell.tunnel(&authority, &hello("inner.example")).await;
    assert!(answer.ends_with(b"secret"));
    assert!(victim.heard().windows(13).any(|window| window == b"inner.example"));
}

/// The proxy goes nowhere by itself: whoever is sent elsewhere has to ask for it.
#[tokio::test]
async fn a_granted_host_sends_to_the_metadata_of_the_cloud() {
    let victim = Victim::new().await;
    let location = format!("http://127.0.0.1:{}/", victim.port);
    let moved = format!("HTTP/1.1 302 Found\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n");
    let server = Victim::at("127.0.0.1", moved.into_bytes()).await;
    let authority = format!("name.example:{}", server.port);
    let url = format!("http://{authority}/");
    for (grants, second) in [(&["name.example"][..], 403), (&["name.example", "127.0.0.1"], 200)] {
        let cell = Cell::new(&Confines { grants, ..Confines::default() });
        let answer = cell.send(&get(&url, &authority)).await;
        assert_eq!(status(&answer), 302);
        assert_eq!(victim.text(), "");
        let answer = cell.send(&get(&location, &format!("127.0.0.1:{}", victim.port))).await;
        assert_eq!(status(&answer), second);
    }
}

/// Two lengths of one body, of which each reader believes another.
#[tokio::test]
async fn a_request_hides_in_the_body_of_another() {
    let hidden = "GET /admin HTTP/1.1\r\nhost: inner.example\r\n\r\n";
    let (length, chunked) = (hidden.len() + 5, "0\r\n\r\n");
    for framing in [
        format!("content-length: {length}\r\ntransfer-encoding: chunked\r\n"),
        format!("transfer-encoding: chunked\r\ncontent-length: {length}\r\n"),
        format!("content-length: 5\r\ncontent-length: {length}\r\n"),
        format!("content-length: {length}\r\ntransfer-encoding: xchunked\r\n"),
        format!("content-length: {length}\r\ntransfer-encoding : chunked\r\n"),
        format!("content-length: {length}\r\ntransfer-encoding: chunked, identity\r\n"),
        format!("content-length: +{length}\r\n"),
        "content-length: 5\r\n".to_owned(),
    ] {
        let victim = Victim::new().await;
        let authority = format!("name.example:{}", victim.port);
        let request = |target: &str| {
            format!("POST {target} HTTP/1.1\r\nhost: {authority}\r\n{framing}\r\n{chunked}{hidden}")
        };
        let cell = Cell::new(&Confines::default());
        // The last one is refused, and ends the connection if nothing before it did.
        let last = get("http://other.example/", "other.example");
        let first = request(&format!("http://{authority}/"));
        cell.send(&[first.as_bytes(), &last].concat()).await;
        cell.record().await;
        let heard = victim.text();
        assert!(!heard.contains("\r\n\r\nGET /admin"), "{framing}: {heard}");
        assert!(heard.matches("content-length").count() <= 1, "{framing}: {heard}");
        let chunks = heard.contains("transfer-encoding");
        assert!(!(chunks && heard.contains("content-length")), "{framing}: {heard}");

        // Without the proxy it arrives as it was sent.
        let mut stream = TcpStream::connect(("127.0.0.1", victim.port)).await.unwrap();
        stream.write_all(request("/").as_bytes()).await.unwrap();
        read_all(&mut stream).await;
        assert!(
            victim.text().contains("\r\n\r\nGET /admin") || victim.text().contains("0\r\n\r\nGET")
        );
    }
}

#[tokio::test]
async fn a_second_request_on_a_connection_goes_elsewhere() {
    let victim = Victim::new().await;
    let authority = format!("name.example:{}", victim.port);
    let first = format!("GET http://{authority}/ HTTP/1.1\r\nhost: {authority}\r\n\r\n");
    let inner = format!("127.0.0.1:{}", victim.port);
    let second = get(&format!("http://{inner}/admin"), &inner);
    for (grants, statuses) in
        [(&["name.example"][..], [200, 403]), (&["name.example", "127.0.0.1"], [200, 200])]
    {
        let cell = Cell::new(&Confines { grants, ..Confines::default() });
        let answer = cell.send(&[first.as_bytes(), &second].concat()).await;
        let found: Vec<u16> =
            answer.match_indices("HTTP/1.1 ").map(|(start, _)| status(&answer[start..])).collect();
        assert_eq!(found, statuses, "{answer}");
    }
}

/// What is between the command and the proxy stays there.
#[tokio::test]
async fn headers_for_the_proxy_are_not_passed_on() {
    let victim = Victim::new().await;
    let authority = format!("name.example:{}", victim.port);
    let request = format!(
        "GET http://{authority}/a?b HTTP/1.1\r\nhost: {authority}\r\nproxy-authorization: basic x\r\n\
         connection: close, x-secret, host\r\nx-secret: y\r\nupgrade: websocket\r\nx-kept: z\r\n\r\n"
    );
    let cell = Cell::new(&Confines::default());
    assert_eq!(status(&cell.send(request.as_bytes()).await), 200);
    let heard = victim.text();
    let mut lines: Vec<_> = heard.lines().filter(|line| !line.is_empty()).collect();
    lines[1..].sort();
    assert_eq!(lines, ["GET /a?b HTTP/1.1", &format!("host: {authority}"), "x-kept: z"]);
}

#[tokio::test]
async fn what_is_no_request_to_a_proxy_is_said_so() {
    let cell = Cell::new(&Confines::default());
    for request in [
        "GET / HTTP/1.1\r\nhost: name.example\r\n\r\n",
        "GET https://name.example/ HTTP/1.1\r\nhost: name.example\r\n\r\n",
        "GET ftp://name.example/ HTTP/1.1\r\nhost: name.example\r\n\r\n",
        "CONNECT name.example HTTP/1.1\r\nhost: name.example\r\n\r\n",
        "CONNECT name.example:0 HTTP/1.1\r\nhost: name.example\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "GET http://user:pass@name.example/ HTTP/1.1\r\nhost: name.example\r\n\r\n",
    ] {
        let mut stream = cell.connect().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let answer = read_all(&mut stream).await;
        assert!(matches!(status(&answer), 400 | 0), "{request}: {answer}");
    }
}
