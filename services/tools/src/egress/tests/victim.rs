//! A service of the host that trusts whoever can reach it.

use std::sync::{Arc, Mutex};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

pub struct Victim {
    pub port: u16,
    heard: Arc<Mutex<Vec<u8>>>,
}

const SECRET: &str = "HTTP/1.1 200 OK\r\ncontent-length: 6\r\nconnection: close\r\n\r\nsecret";

impl Victim {
    pub async fn new() -> Victim {
        Victim::at("127.0.0.1", SECRET.as_bytes().to_vec()).await
    }

    /// One that answers whatever it hears with these bytes, and hangs up.
    pub async fn at(address: &str, answer: Vec<u8>) -> Victim {
        let listener = TcpListener::bind((address, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let hearing = heard.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (hearing, answer) = (hearing.clone(), answer.clone());
                tokio::spawn(async move {
                    let mut chunk = [0; 4096];
                    let mut answered = false;
                    while let Ok(read @ 1..) = stream.read(&mut chunk).await {
                        hearing.lock().unwrap().extend_from_slice(&chunk[..read]);
                        if !answered {
                            answered = stream.write_all(&answer).await.is_ok();
                            let _ = stream.shutdown().await;
                        }
                    }
                });
            }
        });
        Victim { port, heard }
    }

    /// Everything that it was ever told.
    pub fn heard(&self) -> Vec<u8> {
        self.heard.lock().unwrap().clone()
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.heard()).into_owned()
    }
}
