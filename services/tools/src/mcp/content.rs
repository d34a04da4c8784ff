//! What a tool of a server answers, as text. Decides and touches nothing.

use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};
use serde_json::Value;

use super::describe::clean;
use crate::text::shorten;

/// How much of what names something is worth repeating, in characters.
const LONGEST_LABEL: usize = 200;

/// How much structure an answer keeps beside its text, in bytes.
const MOST_STRUCTURE: usize = 32 * 1024;

/// An answer: what is to be read, and the structure of it where it has one.
pub struct Answer {
    pub text: String,
    pub structured: Option<Value>,
    pub is_error: bool,
}

/// Pictures, sounds and other data are named and not shown: models get text from tools.
pub fn answer(result: CallToolResult) -> Answer {
    let blocks: Vec<String> = result.content.iter().map(block).collect();
    let mut text = blocks.join("\n");
    let mut structured = result.structured_content.filter(|value| !value.is_null());
    if let Some(value) = &structured {
        let json = value.to_string();
        // Servers say the same as text, for clients that know nothing of structure.
        let said: Result<Value, _> = serde_json::from_str(&text);
        let repeated = said.is_ok_and(|said| said == *value);
        let large = json.len() > MOST_STRUCTURE;
        if !repeated && (large || text.is_empty()) {
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str(&json);
        }
        if large {
            structured = None;
        }
    }
    Answer { text, structured, is_error: result.is_error == Some(true) }
}

fn block(block: &ContentBlock) -> String {
    match block {
        ContentBlock::Text(text) => text.text.clone(),
        ContentBlock::Image(image) => binary("image", &image.mime_type, &image.data),
        ContentBlock::Audio(audio) => binary("audio", &audio.mime_type, &audio.data),
        ContentBlock::Resource(embedded) => match &embedded.resource {
            ResourceContents::TextResourceContents { uri, text, .. } => {
                format!("[resource {}]\n{text}", label(uri))
            }
            ResourceContents::BlobResourceContents { uri, mime_type, blob, .. } => {
                let kind = format!("resource {}", label(uri));
                binary(&kind, mime_type.as_deref().unwrap_or("application/octet-stream"), blob)
            }
            _ => "[a resource of an unknown kind]".to_owned(),
        },
        ContentBlock::ResourceLink(resource) => {
            format!("[link to resource {}: {}]", label(&resource.uri), label(&resource.name))
        }
        _ => "[content of an unknown kind]".to_owned(),
    }
}

fn binary(kind: &str, media_type: &str, base64: &str) -> String {
    let bytes = base64.trim_end_matches('=').len() * 3 / 4;
    format!("[{kind}, {}, {bytes} bytes, not shown]", label(media_type))
}

fn label(text: &str) -> String {
    shorten(&clean(text).replace('\n', " "), LONGEST_LABEL)
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use serde_json::json;

    use super::*;

    #[test]
    fn every_kind_of_content_is_read_or_named() {
        let mut lines = String::new();
        for result in [
            json!({ "content": [{ "type": "text", "text": "one" }, { "type": "text", "text": "two" }] }),
            json!({ "content": [{ "type": "image", "data": "aGVsbG8=", "mimeType": "image/png" }] }),
            json!({ "content": [{ "type": "audio", "data": "aGVsbG8=", "mimeType": "audio/wav\u{1b}" }] }),
            json!({ "content": [{ "type": "resource", "resource": { "uri": "a://b", "text": "c" } }] }),
            json!({ "content": [{ "type": "resource", "resource": { "uri": "a://b", "blob": "aGVsbG8" } }] }),
            json!({ "content": [{ "type": "resource_link", "uri": "a://b", "name": "c" }] }),
            json!({ "content": [], "structuredContent": { "a": 1 } }),
            json!({ "content": [{ "type": "text", "text": "{\"a\": 1}" }], "structuredContent": { "a": 1 } }),
            json!({ "content": [{ "type": "text", "text": "one" }], "structuredContent": { "a": 1 } }),
            json!({ "content": [{ "type": "text", "text": "no" }], "isError": true }),
        ] {
            let Answer { text, structured, is_error } =
                answer(serde_json::from_value(result).unwrap());
            lines += &format!("{text:?} {structured:?} {is_error}\n");
        }
        expect![[r#"
            "one\ntwo" None false
            "[image, image/png, 5 bytes, not shown]" None false
            "[audio, audio/wav, 5 bytes, not shown]" None false
            "[resource a://b]\nc" None false
            "[resource a://b, application/octet-stream, 5 bytes, not shown]" None false
            "[link to resource a://b: c]" None false
            "{\"a\":1}" Some(Object {"a": Number(1)}) false
            "{\"a\": 1}" Some(Object {"a": Number(1)}) false
            "one" Some(Object {"a": Number(1)}) false
            "no" None true
        "#]]
        .assert_eq(&lines);
    }

    #[test]
    fn structure_that_is_too_much_is_text() {
        let value = json!({ "a": "x".repeat(MOST_STRUCTURE) });
        let result = json!({ "content": [], "structuredContent": value });
        let answer = answer(serde_json::from_value(result).unwrap());
        assert_eq!((answer.text, answer.structured), (value.to_string(), None));
    }
}
