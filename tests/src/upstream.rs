use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::sleep,
};

/// Somebody who runs models: a server that answers requests byte for byte as a test says,
/// and remembers what it was asked.
pub struct Upstream {
    pub url: String,
    state: Arc<Mutex<State>>,
    server: JoinHandle<()>,
}

#[derive(Default)]
struct State {
    answers: VecDeque<Vec<Act>>,
    heard: Vec<Heard>,
}

/// One request, as it came over the wire.
#[derive(Debug, Clone)]
pub struct Heard {
    /// The request line and the headers.
    pub head: String,
    pub body: String,
}

/// What it does with a connection. After the last act it closes it.
#[derive(Debug, Clone)]
pub enum Act {
    /// Sends these bytes.
    Raw(Vec<u8>),
    /// Sends a piece of a stream that [`Act::stream`] began.
    Piece(String),
    /// Ends such a stream in peace.
    End,
    Wait(Duration),
    /// Says nothing until the caller goes away.
    Hang,
}

impl Act {
    /// Begins a stream of events.
    pub fn stream() -> Act {
        Act::Raw(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
                .to_vec(),
        )
    }

    /// A whole stream of events.
    pub fn events(text: &str) -> Vec<Act> {
        vec![Act::stream(), Act::Piece(text.to_owned()), Act::End]
    }

    /// A whole answer that is none.
    pub fn refusal(status: &str, headers: &str, body: &str) -> Vec<Act> {
        let length = body.len();
        let text = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n{headers}\r\n{body}"
        );
        vec![Act::Raw(text.into_bytes())]
    }
}

impl Upstream {
    pub async fn start() -> Upstream {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::<Mutex<State>>::default();
        let server = tokio::spawn({
            let state = state.clone();
            async move {
                while let Ok((connection, _)) = listener.accept().await {
                    tokio::spawn(serve(connection, state.clone()));
                }
            }
        });
        Upstream { url, state, server }
    }

    /// What the next request is answered with that has no answer yet.
    pub fn answer(&self, acts: Vec<Act>) {
        self.state.lock().unwrap().answers.push_back(acts);
    }

    /// Everything it was asked so far.
    pub fn heard(&self) -> Vec<Heard> {
        self.state.lock().unwrap().heard.clone()
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// A caller may go away at any time, which is none of our business.
async fn serve(mut connection: TcpStream, state: Arc<Mutex<State>>) {
    let Some(heard) = listen(&mut connection).await else { return };
    let acts = {
        let mut state = state.lock().unwrap();
        state.heard.push(heard);
        state.answers.pop_front()
    };
    // Whom nobody told what to say is out of order.
    let acts = acts.unwrap_or_else(|| Act::refusal("500 Internal Server Error", "", ""));
    for act in acts {
        let bytes = match act {
            Act::Raw(bytes) => bytes,
            Act::Piece(text) => format!("{:x}\r\n{text}\r\n", text.len()).into_bytes(),
            Act::End => b"0\r\n\r\n".to_vec(),
            Act::Wait(duration) => {
                sleep(duration).await;
                continue;
            }
            Act::Hang => {
                let _ = connection.read(&mut [0]).await;
                return;
            }
        };
        if connection.write_all(&bytes).await.is_err() {
            return;
        }
    }
    let _ = connection.shutdown().await;
}

async fn listen(connection: &mut TcpStream) -> Option<Heard> {
    let mut bytes = Vec::new();
    loop {
        if connection.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
        let text = String::from_utf8_lossy(&bytes);
        let Some((head, _)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
        });
        let (start, length) = (head.len() + 4, length.unwrap_or(0));
        if bytes.len() >= start + length {
            let body = String::from_utf8_lossy(&bytes[start..start + length]).into_owned();
            return Some(Heard { head: head.to_owned(), body });
        }
    }
}
