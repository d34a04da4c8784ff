//! Attempts to get out through the proxy: each is stopped by the check it is about, and shown
//! to succeed without it, so that none is stopped by accident.

mod attempts;
mod limits;
mod targets;
mod victim;

use std::sync::Arc;

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Duration, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Egress, Ledger, Proxy, Record, Way,
    outward::{
        Outward,
        tests::{Names, addresses},
    },
    proxy::Omitted,
};
use crate::host::Grant;

/// What a test takes for forever.
pub const LONG: Duration = Duration::from_secs(20);

/// What an attempt is confined by.
pub struct Confines<'a> {
    pub grants: &'a [&'a str],
    pub allowances: &'a [&'a str],
    pub names: &'a [(&'a str, &'a [&'a [&'a str]])],
    pub omitted: Omitted,
    pub bytes: u64,
}

impl Default for Confines<'_> {
    /// The name `name.example` is granted, and is at this machine, which the operator allows.
    fn default() -> Self {
        Confines {
            grants: &["name.example"],
            allowances: &["127.0.0.1"],
            names: &[("name.example", &[&["127.0.0.1"]])],
            omitted: Omitted::default(),
            bytes: u64::MAX,
        }
    }
}

/// A proxy at work, and the way to it that a command in its sandbox has.
pub struct Cell {
    pub proxy: Proxy,
    address: std::net::SocketAddr,
}

impl Cell {
    pub fn new(confines: &Confines<'_>) -> Cell {
        let names = Names::new(confines.names);
        let way = Way {
            outward: Outward::resolving(addresses(confines.allowances), names),
            grants: confines.grants.iter().map(|text| Grant::new(text).unwrap()).collect(),
            ledger: Arc::new(Ledger::new(confines.bytes)),
            omitted: confines.omitted,
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        };
        let egress = Egress { way: Arc::new(way), hosts: Vec::new() };
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        Cell { proxy: egress.start(listener).unwrap(), address }
    }

    pub async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends bytes, says that there are no more, and reads whatever comes back.
    pub async fn send(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect().await;
        stream.write_all(bytes).await.unwrap();
        read_all(&mut stream).await
    }

    /// Asks for a tunnel and sends bytes through it; the answer to the first, and whether there
    /// was one to the second.
    pub async fn tunnel(&self, authority: &str, bytes: &[u8]) -> (String, Vec<u8>) {
        let mut stream = self.connect().await;
        let request = format!("CONNECT {authority} HTTP/1.1\r\nhost: {authority}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            match timeout(LONG, stream.read_u8()).await.expect("there is an answer") {
                Ok(next) => head.push(next),
                Err(_) => break,
            }
        }
        let head = String::from_utf8(head).unwrap();
        let mut answer = Vec::new();
        if head.starts_with("HTTP/1.1 200") {
            stream.write_all(bytes).await.unwrap();
            // One that is cut off mid-way may be reset.
            let _ = timeout(LONG, stream.read_to_end(&mut answer)).await.expect("it ends");
        }
        (head, answer)
    }

    pub async fn refusals(self) -> Vec<String> {
        self.record().await.refused
    }

    pub async fn record(self) -> Record {
        timeout(LONG, self.proxy.finish()).await.expect("the proxy ends")
    }
}

pub async fn read_all(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    let _ = timeout(LONG, stream.read_to_end(&mut answer)).await.expect("the answer ends");
    String::from_utf8_lossy(&answer).into_owned()
}

/// A request for a URL as programs send it to a proxy.
pub fn get(url: &str, host: &str) -> Vec<u8> {
    format!("GET {url} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n").into_bytes()
}

pub fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
}
