use data_encoding::HEXLOWER;
use hmac::{Hmac, Mac as _};
use serde_json::Value;
use sha2::Sha256;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
};

/// Somebody who posts to us over HTTP, on one connection, and hears what we say.
pub struct Sender {
    stream: BufReader<TcpStream>,
    host: String,
}

/// An answer over HTTP.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    pub status: u16,
    pub retry_after: Option<u64>,
    pub body: Value,
}

impl Sender {
    /// Connects to whoever has this URL.
    pub async fn to(url: &str) -> Sender {
        let host = url.strip_prefix("http://").unwrap().split('/').next().unwrap().to_owned();
        let stream = TcpStream::connect(&host).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Sender { stream: BufReader::new(stream), host }
    }

    /// Posts once, on a connection of its own.
    pub async fn post_once(url: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        Sender::to(url).await.post(url, headers, body).await
    }

    pub async fn post(&mut self, url: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let host = &self.host;
        let path = url.split_once(host.as_str()).map_or("/", |(_, path)| path);
        let length = body.len();
        let mut request =
            format!("POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {length}\r\n");
        for (name, value) in headers {
            request += &format!("{name}: {value}\r\n");
        }
        request += "\r\n";
        request += body;
        // Whoever refuses a request may do so before all of it was sent.
        let _ = self.stream.write_all(request.as_bytes()).await;
        self.answer().await
    }

    async fn answer(&mut self) -> Answer {
        let status = self.line().await.split(' ').nth(1).unwrap().parse().unwrap();
        let (mut length, mut retry_after) = (0, None);
        loop {
            let line = self.line().await.to_ascii_lowercase();
            match line.split_once(": ") {
                Some(("content-length", value)) => length = value.parse().unwrap(),
                Some(("retry-after", value)) => retry_after = value.parse().ok(),
                Some(_) => (),
                None => break,
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).await.unwrap();
        Answer { status, retry_after, body: serde_json::from_slice(&body).unwrap_or_default() }
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).await.unwrap();
        line.trim_end().to_owned()
    }
}

/// The HMAC-SHA256 of some pieces, as most senders write it.
pub fn signed(key: &[u8], pieces: &[&str]) -> String {
    HEXLOWER.encode(&hmac_of(key, pieces))
}

/// The same as bytes.
pub fn hmac_of(key: &[u8], pieces: &[&str]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    pieces.iter().for_each(|piece| mac.update(piece.as_bytes()));
    mac.finalize().into_bytes().to_vec()
}
