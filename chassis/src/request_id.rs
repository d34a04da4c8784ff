//! The name under which logs, traces and answers know a call.

use std::{fmt, sync::Arc};

use http::{HeaderMap, HeaderName, HeaderValue};
use uuid::Uuid;

pub const HEADER: HeaderName = HeaderName::from_static("x-request-id");

/// The caller's own name for a call, or one of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestId(Arc<str>);

/// A header cannot be read.
#[derive(Debug, Clone, Copy)]
pub struct Malformed;

tokio::task_local! {
    static CURRENT: RequestId;
}

/// The id of the call that the current task is answering.
pub fn request_id() -> Option<RequestId> {
    CURRENT.try_with(Clone::clone).ok()
}

impl RequestId {
    pub fn new() -> RequestId {
        RequestId(Uuid::now_v7().simple().to_string().into())
    }

    /// The id that a call came with, if it came with one.
    pub fn from_headers(headers: &HeaderMap) -> Result<Option<RequestId>, Malformed> {
        let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        let Some(value) = headers.get(HEADER) else { return Ok(None) };
        match value.as_bytes() {
            bytes if (1..=128).contains(&bytes.len()) && bytes.iter().all(allowed) => {
                Ok(Some(RequestId(String::from_utf8_lossy(bytes).into())))
            }
            _ => Err(Malformed),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn header(&self) -> HeaderValue {
        HeaderValue::from_str(&self.0).expect("a request id is plain ASCII")
    }

    /// Makes [`request_id`] return this one while `future` runs.
    pub async fn scope<F: Future>(self, future: F) -> F::Output {
        CURRENT.scope(self, future).await
    }

    /// Makes [`request_id`] return this one while `poll` runs.
    pub fn sync_scope<T>(&self, poll: impl FnOnce() -> T) -> T {
        CURRENT.sync_scope(self.clone(), poll)
    }
}

impl Default for RequestId {
    fn default() -> RequestId {
        RequestId::new()
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}
