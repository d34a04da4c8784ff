//! One and the same service of the host under many names.

use super::{Cell, Confines, get, status, victim::Victim};
use crate::egress::hello::tests::hello;

/// A target as it is written, the grant that would mean it, and what it is refused as.
const TARGETS: [(&str, &str, &str); 13] = [
    ("localhost", "localhost", "localhost"),
    ("LocalHost.", "localhost", "localhost"),
    ("127.0.0.1", "127.0.0.1", "127.0.0.1"),
    ("127.1", "127.0.0.1", "127.0.0.1"),
    ("2130706433", "127.0.0.1", "127.0.0.1"),
    ("0x7f000001", "127.0.0.1", "127.0.0.1"),
    ("0x7f.1", "127.0.0.1", "127.0.0.1"),
    ("0177.0.0.1", "127.0.0.1", "127.0.0.1"),
    ("0177.0.0.01", "127.0.0.1", "127.0.0.1"),
    ("[::ffff:127.0.0.1]", "127.0.0.1", "127.0.0.1"),
    ("[::ffff:7f00:1]", "127.0.0.1", "127.0.0.1"),
    ("inward.example", "*.example", "inward.example"),
    ("mapped.example", "mapped.example", "mapped.example"),
];

fn confines<'a>(grants: &'a [&'a str], allowances: &'a [&'a str]) -> Confines<'a> {
    Confines {
        grants,
        allowances,
        names: &[
            ("localhost", &[&["127.0.0.1"]]),
            ("inward.example", &[&["127.0.0.1"]]),
            ("mapped.example", &[&["::ffff:127.0.0.1"]]),
        ],
        ..Confines::default()
    }
}

/// The name and the address each stop it alone, and nothing else does.
#[tokio::test]
async fn a_service_of_the_host_is_asked_for() {
    for (target, grant, name) in TARGETS {
        let victim = Victim::new().await;
        let authority = format!("{target}:{}", victim.port);
        let request = get(&format!("http://{authority}/"), &authority);
        let not_granted = format!("{name}:{} was not granted", victim.port);
        let inward = format!("{name} may not be reached: 127.0.0.1 is loopback");
        for (grants, allowances, refusal) in [
            (&["other.example"][..], &[][..], Some(&not_granted)),
            (&["other.example"], &["127.0.0.1"], Some(&not_granted)),
            (&[grant], &[], Some(&inward)),
            (&[grant], &["127.0.0.1"], None),
        ] {
            let cell = Cell::new(&confines(grants, allowances));
            let answer = cell.send(&request).await;
            let refused = cell.refusals().await;
            match refusal {
                Some(refusal) => {
                    assert_eq!(status(&answer), 403, "{target}: {answer}");
                    assert!(answer.contains(refusal.as_str()), "{target}: {answer}");
                    assert_eq!(refused, std::slice::from_ref(refusal), "{target}");
                    assert_eq!(victim.text(), "", "{target}");
                }
                None => {
                    assert!(answer.ends_with("secret"), "{target}: {answer}");
                    assert!(victim.text().starts_with("GET / HTTP/1.1\r\n"), "{target}");
                    assert!(refused.is_empty());
                }
            }
        }
    }
}

#[tokio::test]
async fn a_service_of_the_host_is_connected_to() {
    for (target, grant, name) in TARGETS {
        let victim = Victim::new().await;
        let authority = format!("{target}:{}", victim.port);
        let first = match name {
            "127.0.0.1" => hello("192.0.2.1"),
            name => hello(name),
        };
        for (grants, allowances, reached) in [
            (&["other.example"][..], &["127.0.0.1"][..], false),
            (&[grant], &[], false),
            (&[grant], &["127.0.0.1"], true),
        ] {
            let cell = Cell::new(&confines(grants, allowances));
            let (head, answer) = cell.tunnel(&authority, &first).await;
            assert_eq!(status(&head), if reached { 200 } else { 403 }, "{target}: {head}");
            assert_eq!(answer.ends_with(b"secret"), reached, "{target}");
            assert_eq!(victim.heard(), if reached { first.clone() } else { Vec::new() });
            assert_eq!(cell.refusals().await.is_empty(), reached);
        }
    }
}

#[tokio::test]
async fn a_service_of_the_host_is_asked_for_over_the_newer_internet() {
    let victim = Victim::at("::1", b"HTTP/1.1 204 No Content\r\n\r\n".to_vec()).await;
    let url = format!("http://[0:0::1]:{}/", victim.port);
    let request = get(&url, &format!("[::1]:{}", victim.port));
    for (allowances, reached) in [(&["127.0.0.1"][..], 403), (&["::1"], 204)] {
        let cell = Cell::new(&confines(&["[::1]"], allowances));
        assert_eq!(status(&cell.send(&request).await), reached);
    }
}

/// Nobody is at these addresses, but a connection that is tried fails, and is not refused.
#[tokio::test]
async fn a_name_leads_to_what_only_neighbours_see() {
    for address in
        ["10.0.0.1", "169.254.169.254", "fd00:ec2::254", "64:ff9b::a9fe:a9fe", "100.100.100.200"]
    {
        let answer: &[&[&str]] = &[&[address]];
        let names = [("inward.example", answer)];
        let confined = |allowances| Confines {
            grants: &["inward.example"],
            allowances,
            names: &names,
            ..Confines::default()
        };
        let host = crate::host::Host::new("inward.example", 80).unwrap();
        let cell = Cell::new(&confined(&[]));
        let request = get("http://inward.example/", "inward.example");
        assert_eq!(status(&cell.send(&request).await), 403, "{address}");
        let refused = cell.refusals().await;
        assert!(refused[0].starts_with("inward.example may not be reached: "), "{refused:?}");

        let cell = Cell::new(&confined(&["inward.example"]));
        let found = cell.proxy.way.outward.locate(&host).await.unwrap();
        assert_eq!(found[0].ip().to_string(), address);
    }
}
