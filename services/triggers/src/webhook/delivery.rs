//! By what a delivery is known, so that the same one is not taken twice.

use data_encoding::HEXLOWER;
use http::HeaderMap;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::{Provider, signature::one};

/// The longest id that is kept as it is, in bytes.
const LONGEST: usize = 200;

/// The sender's own id of what it sent, the same when it sends it again. One that has none is known
/// by its body.
pub fn id(provider: &Provider, headers: &HeaderMap, body: &[u8], payload: &Value) -> String {
    let header = |name: &str| one(headers, name).ok().map(str::to_owned);
    let field = |name: &str| payload.get(name).and_then(Value::as_str).map(str::to_owned);
    let given = match provider {
        Provider::Github => header("x-github-delivery"),
        Provider::Standard => header("webhook-id"),
        // These two are part of what is signed.
        Provider::Stripe => field("id"),
        Provider::Slack => field("event_id"),
        Provider::Hmac { delivery_header, .. } => header(delivery_header),
    };
    match given {
        Some(given) if is_plain(&given) => given,
        Some(given) => digest(given.as_bytes()),
        None => digest(body),
    }
}

/// The id that whoever fires an API trigger may give.
pub fn given(text: &str) -> Option<String> {
    is_plain(text).then(|| text.to_owned())
}

fn is_plain(text: &str) -> bool {
    (1..=LONGEST).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256-{}", HEXLOWER.encode(&Sha256::digest(bytes)))
}
