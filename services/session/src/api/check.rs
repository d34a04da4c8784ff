//! What a request must look like before anything is written.

use std::str::FromStr;

use prost::Message;
use proto::session::v1::{InputPart, Trigger, input_part::Content};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::{
    agent,
    error::{Error, Result},
    message::{File, Part},
};

const MAX_METADATA: usize = 16 * 1024;
const MAX_PARTS: usize = 100;
const MAX_INPUT: usize = 1024 * 1024;

pub fn invalid(field: &'static str, problem: impl Into<String>) -> Error {
    Error::Invalid { field, problem: problem.into() }
}

/// An idempotency key of the caller's.
pub fn request_id(text: &str) -> Result<&str> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    match (1..=100).contains(&text.len()) && text.bytes().all(allowed) {
        true => Ok(text),
        false => {
            Err(invalid("request_id", "expected 1 to 100 characters of A-Z, a-z, 0-9, _ and -"))
        }
    }
}

pub fn text<'a>(field: &'static str, text: &'a str, most: usize) -> Result<&'a str> {
    if text.chars().count() > most {
        return Err(invalid(field, format!("at most {most} characters")));
    }
    if text.contains('\0') {
        return Err(invalid(field, "must not contain NUL"));
    }
    Ok(text)
}

/// A text that may be long, and is measured in bytes.
pub fn long_text<'a>(field: &'static str, text: &'a str, most: usize) -> Result<&'a str> {
    if text.len() > most {
        return Err(invalid(field, format!("at most {} KiB", most / 1024)));
    }
    self::text(field, text, most)
}

/// The id that the last page ended with, if this is not the first.
pub fn cursor<T: FromStr>(token: &str) -> Result<Option<T>> {
    match token {
        "" => Ok(None),
        token => token.parse().map(Some).map_err(|_| Error::InvalidCursor("page_token")),
    }
}

/// The name of an agent, if one is given.
pub fn agent_id<'a>(field: &'static str, text: &'a str) -> Result<Option<&'a str>> {
    match text {
        "" => Ok(None),
        text if agent::is_id(text) => Ok(Some(text)),
        _ => Err(invalid(field, "expected 1 to 64 characters of a-z, 0-9 and -")),
    }
}

/// A JSON object that we keep and give back.
pub fn metadata(json: &str) -> Result<Option<Value>> {
    const FIELD: &str = "metadata_json";
    if json.is_empty() {
        return Ok(None);
    }
    if json.len() > MAX_METADATA {
        return Err(invalid(FIELD, "at most 16 KiB"));
    }
    match serde_json::from_str(json) {
        Ok(Value::Object(fields)) => {
            let value = Value::Object(fields);
            match value.to_string().contains("\\u0000") {
                true => Err(invalid(FIELD, "must not contain NUL")),
                false => Ok(Some(value)),
            }
        }
        Ok(_) => Err(invalid(FIELD, "must be a JSON object")),
        Err(error) => Err(invalid(FIELD, format!("is not JSON: {error}"))),
    }
}

/// What fired a turn, as it is kept with the message; what nobody said is left out.
pub fn trigger(trigger: &Trigger) -> Result<Value> {
    const SOURCES: [&str; 5] = ["schedule", "webhook", "api", "self_schedule", "mcp_event"];
    if !SOURCES.contains(&trigger.source.as_str()) {
        return Err(invalid("trigger.source", format!("expected one of {}", SOURCES.join(", "))));
    }
    if !["", "plan", "never_ask"].contains(&trigger.mode.as_str()) {
        return Err(invalid("trigger.mode", "expected nothing, plan or never_ask"));
    }
    let fired_at = trigger.fire_time.as_ref();
    let mut kept = json!({
        "source": trigger.source,
        "fired_at": fired_at.map(|time| time.seconds * 1000 + i64::from(time.nanos / 1_000_000)),
        "schedule_id": trigger.schedule_id,
        "delivery_id": trigger.delivery_id,
        "headers": trigger.headers,
        "auth_subject": trigger.auth_subject,
        "mode": trigger.mode,
    });
    if let Value::Object(fields) = &mut kept {
        fields.retain(|_, value| match value {
            Value::Null => false,
            Value::String(text) => !text.is_empty(),
            Value::Object(fields) => !fields.is_empty(),
            _ => true,
        });
    }
    match kept.to_string().contains("\\u0000") {
        true => Err(invalid("trigger", "must not contain NUL")),
        false => Ok(kept),
    }
}

/// What the user says.
pub fn parts(parts: Vec<InputPart>) -> Result<Vec<Part>> {
    const FIELD: &str = "parts";
    if parts.len() > MAX_PARTS {
        return Err(invalid(FIELD, format!("at most {MAX_PARTS} parts")));
    }
    let mut bytes = 0;
    let mut checked = Vec::with_capacity(parts.len());
    for part in parts {
        let part = match part.content {
            Some(Content::Text(text)) if text.is_empty() => {
                return Err(invalid(FIELD, "a text part is empty"));
            }
            Some(Content::Text(text)) => {
                bytes += text.len();
                Part::text(text)
            }
            Some(Content::File(file)) => {
                bytes +=
                    file.data.len() + file.name.len() + file.media_type.len() + file.r#ref.len();
                Part::File(File {
                    name: file.name,
                    media_type: file.media_type,
                    reference: file.r#ref,
                    data: file.data,
                })
            }
            None => return Err(invalid(FIELD, "a part has no content")),
        };
        if part.data().to_string().contains("\\u0000") {
            return Err(invalid(FIELD, "must not contain NUL"));
        }
        checked.push(part);
    }
    match bytes > MAX_INPUT {
        true => Err(invalid(FIELD, "at most 1 MiB in all")),
        false => Ok(checked),
    }
}

/// How many rows the caller wants; zero leaves it to us.
pub fn count(field: &'static str, asked: i32, default: i64, most: i64) -> Result<i64> {
    match i64::from(asked) {
        0 => Ok(default),
        asked if asked < 0 => Err(invalid(field, "must not be negative")),
        asked => Ok(asked.min(most)),
    }
}

/// Tells a repeated request from another one with the same id.
pub fn digest(request: &impl Message) -> String {
    format!("{:x}", Sha256::digest(request.encode_to_vec()))
}
