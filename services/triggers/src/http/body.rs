//! What was posted: all of it, or nothing of what is too large.

use std::time::Duration;

use axum::{
    body::Body,
    http::{HeaderMap, header::CONTENT_LENGTH},
};
use chassis::{Place, Tenant};
use http_body_util::BodyExt as _;
use serde_json::{Map, Value};
use tokio::time::timeout;

use super::{Rooms, answer::Refusal};
use crate::webhook::Provider;

/// How long a body may take to arrive.
const PATIENCE: Duration = Duration::from_secs(10);

/// How much all bodies together may be, in pieces of a KiB: what they say takes several times as
/// much memory again.
pub const ROOM: usize = 32 * 1024;
const PIECE: usize = 1024;

/// A body, and the room that it takes.
pub struct Held {
    pub bytes: Vec<u8>,
    _room: Option<Place>,
}

/// Takes room only for what has arrived, so that slow senders take none from others.
pub async fn read(
    headers: &HeaderMap,
    body: Body,
    most: usize,
    room: &Rooms,
    owner: &Option<Tenant>,
) -> Result<Held, Refusal> {
    let told = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    if told.is_some_and(|length: u64| length > most as u64) {
        return Err(Refusal::TooLarge(most));
    }
    timeout(PATIENCE, collect(body, most, room, owner)).await.unwrap_or(Err(Refusal::TooSlow))
}

async fn collect(
    mut body: Body,
    most: usize,
    room: &Rooms,
    owner: &Option<Tenant>,
) -> Result<Held, Refusal> {
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
        let more = room.try_take_many(owner, more).ok_or(Refusal::Busy)?;
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
///
/// Stripe and Slack sign the body and not the header that says what it is, and deliveries of theirs
/// are known by what the body says. So what is JSON is JSON under any header: a copy under another
/// one would be another delivery.
pub fn payload(provider: &Provider, headers: &HeaderMap, body: &[u8]) -> Result<Value, Refusal> {
    let kind = headers.get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let is_form = kind.to_ascii_lowercase().starts_with("application/x-www-form-urlencoded");
    match provider {
        Provider::Stripe => json(body),
        // Slack has events, which are JSON, and commands, which are forms.
        Provider::Slack if is_form => Ok(json(body).unwrap_or_else(|_| form(body))),
        Provider::Github | Provider::Standard | Provider::Hmac { .. } if is_form => Ok(form(body)),
        Provider::Slack | Provider::Github | Provider::Standard | Provider::Hmac { .. } => {
            json(body)
        }
    }
}

fn json(body: &[u8]) -> Result<Value, Refusal> {
    serde_json::from_slice(body)
        .map_err(|_| Refusal::Malformed("the body is neither JSON nor a form"))
}

fn form(body: &[u8]) -> Value {
    let mut fields = Map::new();
    for (key, value) in url::form_urlencoded::parse(body) {
        if key == "payload"
            && let Ok(payload) = serde_json::from_str(&value)
        {
            return payload;
        }
        fields.insert(key.into_owned(), Value::String(value.into_owned()));
    }
    Value::Object(fields)
}

#[cfg(test)]
mod tests {
    use chassis::Places;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const FORM: &str = "application/x-www-form-urlencoded";

    fn parsed_of(provider: &Provider, kind: &str, body: &str) -> Result<Value, Refusal> {
        let mut headers = HeaderMap::new();
        headers.insert("content-type", kind.parse().unwrap());
        payload(provider, &headers, body.as_bytes())
    }

    fn parsed(kind: &str, body: &str) -> Result<Value, Refusal> {
        parsed_of(&Provider::Github, kind, body)
    }

    #[test]
    fn a_body_is_json_or_a_form() {
        let form = FORM;
        assert_eq!(parsed("application/json", r#"{"a":1}"#), Ok(json!({ "a": 1 })));
        assert_eq!(parsed("text/plain", "[1]"), Ok(json!([1])));
        assert_eq!(parsed(form, "text=a+b&user=%C3%A9"), Ok(json!({ "text": "a b", "user": "é" })));
        assert_eq!(parsed(form, "payload=%7B%22a%22%3A1%7D&x=1"), Ok(json!({ "a": 1 })));
        assert!(parsed("application/json", "a=b").is_err());
        assert!(parsed("application/json", "").is_err());
        // However deep it is, it is refused and not followed.
        assert!(parsed("application/json", &"[".repeat(100_000)).is_err());
    }

    #[test]
    fn a_copy_under_another_header_says_the_same() {
        let (stripe, slack) = (r#"{"id":"evt_1"}"#, r#"{"event_id":"Ev1","text":"&payload={}"}"#);
        for kind in ["application/json", "text/plain", FORM, "Application/X-WWW-Form-Urlencoded;x"]
        {
            let said = parsed_of(&Provider::Stripe, kind, stripe);
            assert_eq!(said, Ok(json!({ "id": "evt_1" })), "{kind}");
            let said = parsed_of(&Provider::Slack, kind, slack);
            assert_eq!(said.map(|said| said["event_id"].clone()), Ok(json!("Ev1")), "{kind}");
        }
        assert!(parsed_of(&Provider::Stripe, FORM, "id=evt_1").is_err(), "Stripe sends no forms");
        let command = "command=%2Fdeploy&text=the+pump";
        let said = json!({ "command": "/deploy", "text": "the pump" });
        assert_eq!(parsed_of(&Provider::Slack, FORM, command), Ok(said));
        assert!(parsed_of(&Provider::Slack, "application/json", command).is_err());
        let pressed = "payload=%7B%22type%22%3A%22block_actions%22%7D";
        let said = json!({ "type": "block_actions" });
        assert_eq!(parsed_of(&Provider::Slack, FORM, pressed), Ok(said));
    }

    #[tokio::test]
    async fn bodies_share_a_bounded_room() {
        let room = Places::new(6, 4);
        let headers = HeaderMap::new();
        let (nobody, acme) = (None, Some("acme".parse().unwrap()));
        let take = |owner, bytes: usize| {
            read(&headers, Body::from(vec![b'x'; bytes]), 3_000, &room, owner)
        };
        let first = take(&nobody, 2_100).await.unwrap_or_else(|refusal| panic!("{refusal:?}"));
        assert_eq!((first.bytes.len(), room.taken()), (2_100, 3));
        assert_eq!(take(&nobody, 1_025).await.err(), Some(Refusal::Busy));
        assert_eq!(take(&nobody, 3_001).await.err(), Some(Refusal::TooLarge(3_000)));
        assert!(take(&acme, 3_000).await.is_ok(), "strangers are in the way of a tenant");
        drop(first);
        assert_eq!(room.taken(), 0);
        assert!(take(&nobody, 3_000).await.is_ok());
    }

    proptest! {
        #[test]
        fn no_body_breaks_the_reader(body: Vec<u8>, form: bool) {
            let mut headers = HeaderMap::new();
            let kind = if form { FORM } else { "application/json" };
            headers.insert("content-type", kind.parse().unwrap());
            for provider in [Provider::Github, Provider::Stripe, Provider::Slack] {
                let _ = payload(&provider, &headers, &body);
            }
        }
    }
}
