//! Somebody who runs models and answers at once, in the words of OpenAI's chat completions.

use std::{net::SocketAddr, sync::Arc, thread, time::Duration};

use anyhow::Result;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    runtime::Builder,
    sync::oneshot,
    time::sleep,
};

/// The model that says everything at once, and the one that goes on for ever.
pub const QUICK: &str = "quick";
pub const SLOW: &str = "slow";

/// As fast as models are that people wait for.
const PACE: Duration = Duration::from_millis(50);

const HEAD: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

pub struct Upstream {
    address: SocketAddr,
    /// Dropped, it ends the server.
    _stop: oneshot::Sender<()>,
}

impl Upstream {
    /// Serves on a thread of its own, because nobody is in the same thread as whoever calls them: a
    /// direct call has to wake somebody up, too.
    pub fn start() -> Result<Upstream> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    result = accept(listener) => result.expect("the upstream listens"),
                    _ = stopped => (),
                }
            });
        });
        Ok(Upstream { address, _stop: stop })
    }

    pub fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// A catalogue with its models.
    pub fn catalogue(&self) -> String {
        let model = |model: &str| {
            json!({
                "provider": "local", "model": model, "tier": "balanced", "capabilities": ["tools"],
                "context_tokens": 128_000, "output_tokens": 8_192,
                "price": {
                    "currency": "USD", "input_micros": 1_000_000, "output_micros": 2_000_000,
                    "cache_read_micros": 100_000, "cache_write_micros": 1_000_000,
                },
            })
        };
        json!({
            "providers": [
                { "name": "local", "kind": "openai_chat", "base_url": self.url() },
            ],
            "models": [model(QUICK), model(SLOW)],
        })
        .to_string()
    }
}

async fn accept(listener: std::net::TcpListener) -> Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let quick: Arc<[u8]> = format!("{HEAD}{}0\r\n\r\n", piece(&answer())).into_bytes().into();
    loop {
        let (connection, _) = listener.accept().await?;
        connection.set_nodelay(true)?;
        tokio::spawn(serve(connection, quick.clone()));
    }
}

/// One request after the other, until the caller goes away.
async fn serve(mut connection: TcpStream, quick: Arc<[u8]>) {
    let mut bytes = Vec::new();
    while let Some(slow) = request(&mut connection, &mut bytes).await {
        let answered = match slow {
            false => connection.write_all(&quick).await,
            true => drip(&mut connection).await,
        };
        if answered.is_err() {
            return;
        }
    }
}

/// Reads a request to its end; whether it is for the slow model.
async fn request(connection: &mut TcpStream, bytes: &mut Vec<u8>) -> Option<bool> {
    loop {
        if let Some(head) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
            let length = text.lines().find_map(|line| line.strip_prefix("content-length:"));
            let end = head + 4 + length?.trim().parse::<usize>().ok()?;
            if bytes.len() >= end {
                let body = String::from_utf8_lossy(&bytes[head..end]);
                let slow = body.contains(&format!("\"{SLOW}\""));
                bytes.drain(..end);
                return Some(slow);
            }
        }
        if connection.read_buf(bytes).await.ok()? == 0 {
            return None;
        }
    }
}

/// Ends when the caller hangs up.
async fn drip(connection: &mut TcpStream) -> std::io::Result<()> {
    connection.write_all(HEAD.as_bytes()).await?;
    loop {
        connection.write_all(piece(&event(delta("word "))).as_bytes()).await?;
        sleep(PACE).await;
    }
}

/// As many deltas as turns of the other parts have, what was used, and the end.
fn answer() -> String {
    let mut answer: String = (0..64).map(|_| event(delta("word "))).collect();
    answer += &event(json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "stop" }] }));
    let usage = json!({ "prompt_tokens": 9, "completion_tokens": 64, "total_tokens": 73 });
    answer += &event(json!({ "choices": [], "usage": usage }));
    answer + "data: [DONE]\n\n"
}

fn delta(text: &str) -> Value {
    json!({
        "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "local",
        "choices": [{ "index": 0, "delta": { "content": text }, "finish_reason": null }],
    })
}

fn event(value: Value) -> String {
    format!("data: {value}\n\n")
}

fn piece(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.len())
}
