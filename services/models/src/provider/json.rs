//! What the wire formats write alike.

use data_encoding::BASE64;
use serde::Serialize;
use serde_json::value::RawValue;

/// Puts JSON text into JSON as it is, without reading more of it than its end; an empty
/// object where it is no JSON, because no provider takes anything else for arguments.
pub fn raw(json: &str) -> &RawValue {
    let object = serde_json::from_str::<&RawValue>(json).ok();
    let object = object.filter(|value| value.get().starts_with('{'));
    object.unwrap_or_else(|| serde_json::from_str("{}").unwrap_or(RawValue::NULL))
}

pub fn base64(data: &[u8]) -> String {
    BASE64.encode(data)
}

pub fn data_url(media_type: &str, data: &[u8]) -> String {
    format!("data:{media_type};base64,{}", BASE64.encode(data))
}

/// The body of a request. Nothing of ours fails to be JSON.
pub fn body(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}
