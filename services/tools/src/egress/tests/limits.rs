//! What one call may use, and what is known of it afterwards.

use proptest::prelude::*;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::timeout,
};

use super::{Cell, Confines, LONG, get, read_all, status, victim::Victim};
use crate::egress::{hello::tests::hello, ledger::Exhausted};

#[tokio::test]
async fn what_was_reached_is_on_record() {
    let victim = Victim::new().await;
    let authority = format!("name.example:{}", victim.port);
    let cell = Cell::new(&Confines::default());
    for _ in 0..3 {
        cell.send(&get(&format!("http://{authority}/"), &authority)).await;
    }
    cell.tunnel(&authority, &hello("name.example")).await;
    cell.send(&get("http://other.example/", "other.example")).await;
    let record = cell.record().await;
    assert_eq!(record.refused, ["other.example:80 was not granted"]);
    let [reached] = &record.reached[..] else { panic!("{record:?}") };
    assert_eq!(reached.host.to_string(), authority);
    assert_eq!(reached.address.to_string(), format!("127.0.0.1:{}", victim.port));
    assert_eq!(reached.traffic.connections, 4);
    assert_eq!(reached.traffic.sent_bytes, victim.heard().len() as u64);
    assert!(reached.traffic.received_bytes > 4 * 6);
}

#[tokio::test]
async fn a_call_receives_only_so_much() {
    let flood = [b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n".to_vec(), vec![b'x'; 1 << 20]];
    let server = Victim::at("127.0.0.1", flood.concat()).await;
    let authority = format!("name.example:{}", server.port);
    let request = get(&format!("http://{authority}/"), &authority);
    for (bytes, refused) in [(u64::MAX, vec![]), (100_000, vec![Exhausted.to_string()])] {
        let cell = Cell::new(&Confines { bytes, ..Confines::default() });
        let answer = cell.send(&request).await;
        assert_eq!(answer.len() > 1 << 20, refused.is_empty());
        assert_eq!(cell.refusals().await, refused);
    }
}

#[tokio::test]
async fn a_head_is_only_so_large() {
    let cell = Cell::new(&Confines::default());
    for header in ["x".repeat(40_000), "a: b\r\n".repeat(200)] {
        let request = format!("GET http://name.example/ HTTP/1.1\r\nx: {header}\r\n\r\n");
        let mut stream = cell.connect().await;
        // It may hang up before it has heard all of it.
        let _ = stream.write_all(request.as_bytes()).await;
        let answer = read_all(&mut stream).await;
        assert!(matches!(status(&answer), 431 | 0), "{answer}");
    }
}

#[tokio::test]
async fn a_proxy_ends_with_its_call() {
    let silent = Victim::at("127.0.0.1", Vec::new()).await;
    let cell = Cell::new(&Confines::default());
    let mut stream = cell.connect().await;
    let authority = format!("name.example:{}", silent.port);
    let request = format!("CONNECT {authority} HTTP/1.1\r\nhost: {authority}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    drop(cell);
    let mut rest = Vec::new();
    let _ = timeout(LONG, stream.read_to_end(&mut rest)).await.expect("the connection ends");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// However a request is written, nobody hears of it who was not granted.
    #[test]
    fn nothing_reaches_a_host_that_was_not_granted(
        method in "(GET|POST|CONNECT|OPTIONS|[A-Z]{1,5})",
        scheme in "(http://|https://|HTTP://|//|)",
        prefix in "(name.example@|name.example#|name.example\\\\|name.example%00|)",
        spelling in "(127.0.0.1|127.1|localhost|0x7f.1|\\[::ffff:7f00:1\\])",
        path in "(/|/name.example|\\?name.example|)",
        header in "(name.example|127.0.0.1|)",
        noise in "[ -~]{0,20}",
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let victim = Victim::new().await;
            let cell = Cell::new(&Confines {
                names: &[("name.example", &[&["192.0.2.1"]]), ("localhost", &[&["127.0.0.1"]])],
                ..Confines::default()
            });
            let port = victim.port;
            let request = format!(
                "{method} {scheme}{prefix}{spelling}:{port}{path} HTTP/1.1\r\nhost: {header}\r\n\
                 x: {noise}\r\nconnection: close\r\n\r\n"
            );
            let mut stream = cell.connect().await;
            stream.write_all(request.as_bytes()).await.unwrap();
            let _ = stream.shutdown().await;
            read_all(&mut stream).await;
            prop_assert_eq!(victim.text(), "", "{}", request);
            Ok(())
        })?;
    }
}
