//! Somebody whom hooks are posted to.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode, Uri, header::LOCATION},
    response::{IntoResponse, Response},
};
use serde_json::Value;
use tokio::{net::TcpListener, time::sleep};

/// Answers according to the path it is called at, and remembers what it was told.
#[derive(Clone)]
pub struct Receiver {
    pub address: String,
    heard: Arc<Mutex<Vec<Heard>>>,
}

/// A call.
#[derive(Debug, Clone)]
pub struct Heard {
    pub headers: HeaderMap,
    pub text: String,
}

impl Heard {
    pub fn body(&self) -> Value {
        serde_json::from_str(&self.text).unwrap()
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

impl Receiver {
    pub async fn start() -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let receiver = Receiver { address, heard: Arc::default() };
        let router = Router::new().fallback(answer).with_state(receiver.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        receiver
    }

    /// A URL that answers with this.
    pub fn says(&self, answer: &str) -> String {
        let hex = data_encoding::HEXLOWER.encode(answer.as_bytes());
        format!("http://{}/says/{hex}", self.address)
    }

    /// A URL that behaves in this way.
    pub fn does(&self, what: &str) -> String {
        format!("http://{}/{what}", self.address)
    }

    /// All calls since the last time.
    pub fn heard(&self) -> Vec<Heard> {
        std::mem::take(&mut *self.heard.lock().unwrap())
    }
}

async fn answer(
    State(receiver): State<Receiver>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let text = String::from_utf8(body.to_vec()).unwrap();
    receiver.heard.lock().unwrap().push(Heard { headers, text });
    let path = uri.path();
    if let Some(hex) = path.strip_prefix("/says/") {
        return data_encoding::HEXLOWER.decode(hex.as_bytes()).unwrap().into_response();
    }
    match path {
        "/sleeps" => {
            sleep(Duration::from_secs(30)).await;
            "{}".into_response()
        }
        "/fails" => (StatusCode::INTERNAL_SERVER_ERROR, "{}").into_response(),
        "/floods" => vec![b' '; 2 * 1024 * 1024].into_response(),
        "/redirects" => {
            (StatusCode::FOUND, [(LOCATION, receiver.does("says/7b7d"))], "").into_response()
        }
        "/nothing" => StatusCode::NO_CONTENT.into_response(),
        _ => StatusCode::NOT_FOUND.into_response(),
    }
}
