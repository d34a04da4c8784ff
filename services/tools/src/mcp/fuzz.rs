//! Anything that a server may print: however it is cut into pieces it makes the same messages,
//! and whatever they say of tools becomes tools that hold what was promised of all tools.
#![allow(clippy::unwrap_used, reason = "what fails here is what was looked for")]

use std::collections::BTreeSet;

use rmcp::model::{CallToolResult, ListToolsResult, Tool};
use serde_json::{Value, json};

use super::{
    content, describe,
    lines::{Frames, Line},
};

/// A first line of digits says how long the pieces are, in turns, and how long a line may be at
/// most, in steps of 64 bytes; from there on it is what the server prints.
pub fn mcp(data: &[u8]) {
    let end = data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len());
    let (digits, printed) = data.split_at(end);
    let digits: Vec<usize> = digits.iter().map(|digit| usize::from(digit % 10)).collect();
    let printed = printed.get(1..).unwrap_or_default();
    let longest = 64 * (1 + digits.first().copied().unwrap_or(9));

    let read = frames(pieces(printed, &digits), longest);
    assert_eq!(read, reference(printed, longest), "pieces make other messages than the whole");
    for line in printed.split(|byte| *byte == b'\n').take(50) {
        told(line);
    }
}

/// The bytes in pieces of the given lengths, over and over.
fn pieces<'a>(mut rest: &'a [u8], lengths: &[usize]) -> Vec<&'a [u8]> {
    let mut pieces = Vec::new();
    let mut lengths = lengths.iter().map(|length| length + 1).cycle();
    while !rest.is_empty() {
        let length = lengths.next().unwrap_or(rest.len()).min(rest.len());
        let (piece, after) = rest.split_at(length);
        pieces.push(piece);
        rest = after;
    }
    pieces
}

/// Of each line whether it is a message, and whether the last one was too long.
fn frames(pieces: Vec<&[u8]>, longest: usize) -> (Vec<bool>, bool) {
    let mut frames = Frames::new(longest);
    let mut lines = Vec::new();
    for piece in pieces {
        frames.push(piece);
        loop {
            match frames.next() {
                Ok(Some(line)) => lines.push(matches!(line, Line::Message(_))),
                Ok(None) => break,
                Err(_) => return (lines, true),
            }
        }
    }
    (lines, false)
}

/// The same, all at once.
fn reference(printed: &[u8], longest: usize) -> (Vec<bool>, bool) {
    let mut lines = Vec::new();
    for line in printed.split_inclusive(|byte| *byte == b'\n') {
        match line.strip_suffix(b"\n") {
            Some(line) if line.len() > longest => return (lines, true),
            Some(line) => {
                let message = serde_json::from_slice::<
                    rmcp::service::RxJsonRpcMessage<rmcp::RoleClient>,
                >(line);
                lines.push(message.is_ok());
            }
            None => return (lines, line.len() > longest),
        }
    }
    (lines, false)
}

/// What a line says of tools and of what one of them answered, if it does.
fn told(line: &[u8]) {
    let Ok(message) = serde_json::from_slice::<Value>(line) else { return };
    let result = message.get("result").unwrap_or(&message);
    if let Ok(listed) = serde_json::from_value::<ListToolsResult>(result.clone()) {
        tools(listed.tools);
    }
    if let Ok(answered) = serde_json::from_value::<CallToolResult>(result.clone()) {
        content::answer(answered);
    }
}

fn tools(listed: Vec<Tool>) {
    let count = listed.len();
    let (described, left_out) = describe::tools("server", false, listed, |name| name == "server_");
    assert!(described.len() <= count.min(describe::MOST_TOOLS));
    assert!(described.len() == count || !left_out.is_empty() || count > 1, "one is forgotten");
    let mut names = BTreeSet::new();
    for tool in described {
        let name = &tool.about.name;
        assert!(names.insert(name.to_string()), "two tools are called {name}");
        assert!(name.len() <= 64 && name != "server_", "{name} is taken or too long");
        assert!(name.starts_with("server_"), "{name} is somebody else's");
        let fits = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_');
        assert!(name.bytes().all(fits), "{name} is no name");
        let unseen = tool.about.description.chars().any(|one| one.is_control() && one != '\n');
        assert!(!unseen, "the description has what a terminal obeys");
        // Whatever the schema says, checking an input comes to an end.
        for input in [json!({}), json!({ "a": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!" })] {
            let _ = tool.validator.is_valid(&input);
        }
    }
}
