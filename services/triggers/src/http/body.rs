//! What was posted: all of it, or nothing of what is too large.

use std::time::Duration;

use axum::{
    body::Body,
    http::{HeaderMap, header::CONTENT_LENGTH},
};
use http_body_util::BodyExt as _;
use serde_json::{Map, Value};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::timeout,
};

use super::answer::Refusal;

/// How long a body may take to arrive.
const PATIENCE: Duration = Duration::from_secs(10);

/// How much all bodies together may be, in pieces of a KiB: what they say takes several times as
/// much memory again.
pub const ROOM: usize = 32 * 1024;
const PIECE: usize = 1024;

/// A body, and the room that it takes.
pub struct Held<'a> {
    pub bytes: Vec<u8>,
    _room: Option<SemaphorePermit<'a>>,
}

/// Takes room only for what has arrived, so that slow senders take none from others.
pub async fn read<'a>(
    headers: &HeaderMap,
    body: Body,
    most: usize,
    room: &'a Semaphore,
) -> Result<Held<'a>, Refusal> {
    let told = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    if told.is_some_and(|length: u64| length > most as u64) {
        return Err(Refusal::TooLarge(most));
    }
    timeout(PATIENCE, collect(body, most, room)).await.unwrap_or(Err(Refusal::TooSlow))
}

async fn collect<'a>(
    mut body: Body,
    most: usize,
    room: &'a Semaphore,
) -> Result<Held<'a>, Refusal> {
    let mut held = Held { bytes: Vec::new(), _room: None };
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Refusal::Malformed("the body broke off"))?;
        let Ok(data) = frame.into_data() else { continue };
        if held.bytes.len() + data.len() > most {
            return Err(Refusal::TooLarge(most));
        }
        let pieces = |length: usize| length.div_ceil(PIECE);
        let more = pieces(held.bytes.len() + data.len()) - pieces(held.bytes.len());
        let more = u32::try_from(more).map_err(|_| Refusal::TooLarge(most))?;
        let more = room.try_acquire_many(more).map_err(|_| Refusal::Busy)?;
        match &mut held._room {
            Some(room) => room.merge(more),
            none => *none = Some(more),
        }
        held.bytes.extend_from_slice(&data);
    }
    Ok(held)
}

/// What a body says: JSON, or the fields of a form, of which `payload` may be JSON itself, as
/// GitHub and Slack have it.
pub fn payload(headers: &HeaderMap, body: &[u8]) -> Result<Value, Refusal> {
    let kind = headers.get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    if !kind.to_ascii_lowercase().starts_with("application/x-www-form-urlencoded") {
        return serde_json::from_slice(body)
            .map_err(|_| Refusal::Malformed("the body is neither JSON nor a form"));
    }
    let mut fields = Map::new();
    for (key, value) in url::form_urlencoded::parse(body) {
        if key == "payload"
            && let Ok(payload) = serde_json::from_str(&value)
        {
            return Ok(payload);
        }
        fields.insert(key.into_owned(), Value::String(value.into_owned()));
    }
    Ok(Value::Object(fields))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn parsed(kind: &'static str, body: &str) -> Result<Value, Refusal> {
        let mut headers = HeaderMap::new();
        headers.insert("content-type", kind.parse().unwrap());
        payload(&headers, body.as_bytes())
    }

    #[test]
    fn a_body_is_json_or_a_form() {
        let form = "application/x-www-form-urlencoded";
        assert_eq!(parsed("application/json", r#"{"a":1}"#), Ok(json!({ "a": 1 })));
        assert_eq!(parsed("text/plain", "[1]"), Ok(json!([1])));
        assert_eq!(parsed(form, "text=a+b&user=%C3%A9"), Ok(json!({ "text": "a b", "user": "é" })));
        assert_eq!(parsed(form, "payload=%7B%22a%22%3A1%7D&x=1"), Ok(json!({ "a": 1 })));
        assert!(parsed("application/json", "a=b").is_err());
        assert!(parsed("application/json", "").is_err());
        // However deep it is, it is refused and not followed.
        assert!(parsed("application/json", &"[".repeat(100_000)).is_err());
    }

    #[tokio::test]
    async fn bodies_share_a_bounded_room() {
        let room = Semaphore::new(4);
        let headers = HeaderMap::new();
        let take = |bytes: usize| read(&headers, Body::from(vec![b'x'; bytes]), 3_000, &room);
        let first = take(2_100).await.unwrap_or_else(|refusal| panic!("{refusal:?}"));
        assert_eq!((first.bytes.len(), room.available_permits()), (2_100, 1));
        assert_eq!(take(1_025).await.err(), Some(Refusal::Busy));
        assert_eq!(take(3_001).await.err(), Some(Refusal::TooLarge(3_000)));
        drop(first);
        assert_eq!(room.available_permits(), 4);
        assert!(take(3_000).await.is_ok());
    }

    proptest! {
        #[test]
        fn no_body_breaks_the_reader(body: Vec<u8>, form: bool) {
            let mut headers = HeaderMap::new();
            let kind = if form { "application/x-www-form-urlencoded" } else { "application/json" };
            headers.insert("content-type", kind.parse().unwrap());
            let _ = payload(&headers, &body);
        }
    }
}
