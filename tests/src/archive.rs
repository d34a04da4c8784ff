use std::time::Duration;

use proto::session::v1::{
    ExportSessionRequest, ImportSessionRequest, VerifyLogRequest, VerifyLogResponse,
};
use tokio::time::{sleep, timeout};
use tonic::Status;

use crate::{Client, Session};

/// Longer than any sweep on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

impl Session {
    /// The session as JSON lines.
    pub async fn export(&self, events: bool) -> Vec<String> {
        let request = ExportSessionRequest {
            session_id: self.id.clone(),
            events,
            ..ExportSessionRequest::default()
        };
        let mut chunks = self.client.sessions().export_session(request).await.unwrap().into_inner();
        let mut data = Vec::new();
        while let Some(chunk) = chunks.message().await.unwrap() {
            assert!(chunk.data.len() <= 1024 * 1024);
            data.extend(chunk.data);
        }
        String::from_utf8(data).unwrap().lines().map(str::to_owned).collect()
    }

    pub async fn verify(&self) -> VerifyLogResponse {
        let request = VerifyLogRequest { session_id: self.id.clone() };
        self.client.sessions().verify_log(request).await.unwrap().into_inner()
    }

    /// What `VerifyLog` says once everything up to `sequence` is sealed.
    pub async fn sealed(&self, sequence: i64) -> VerifyLogResponse {
        self.eventually(async || {
            let verified = self.verify().await;
            (verified.sealed_through_sequence >= sequence).then_some(verified)
        })
        .await
    }

    /// Waits for something that happens by itself.
    pub async fn eventually<T>(&self, look: impl AsyncFn() -> Option<T>) -> T {
        let looking = async {
            loop {
                match look().await {
                    Some(found) => return found,
                    None => sleep(Duration::from_millis(50)).await,
                }
            }
        };
        timeout(PATIENCE, looking).await.expect("it does not happen")
    }
}

impl Client {
    /// Makes a session from lines.
    pub async fn import(&self, request_id: &str, lines: &[String]) -> Result<Session, Status> {
        let requests = request(request_id, lines);
        let response =
            self.sessions().import_session(futures::stream::iter(requests)).await?.into_inner();
        Ok(Session { client: self.clone(), id: response.session.unwrap().session_id })
    }
}

/// Lines as the messages of an import, cut where it happens to be.
pub fn request(request_id: &str, lines: &[String]) -> Vec<ImportSessionRequest> {
    let data: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let chunks = data.as_bytes().chunks(700_001).zip(0..);
    chunks
        .map(|(data, index)| ImportSessionRequest {
            request_id: if index == 0 { request_id.to_owned() } else { String::new() },
            data: data.to_vec(),
        })
        .collect()
}
