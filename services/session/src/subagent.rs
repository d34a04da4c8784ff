//! Children: what is known of one, what one leaves in its parent's conversation, and what of its
//! own conversation is shown there. No I/O.

use proto::{
    event::v1::{SubagentEnded, ToolMetadata},
    tools::v1::Permissions,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    ids::{MessageId, PartId, SessionId, StepId, SubagentId, ToolCallId, TurnId, WorkspaceId},
    message::{Message, Part, Role},
    turn,
};

/// The type of the part that says how a child in the background has ended.
pub const KIND: &str = "data-subagent";

/// What its calls read when the parent of a child was stopped, and what the parent's read.
pub const ABORTED: &str = "aborted by parent";

/// How much of a child's last message its parent is given.
const MOST_OUTPUT: usize = 64 * 1024;

/// How much of a child's conversation is shown with the parent's call, and of one text in it.
const MOST_TRANSCRIPT: usize = 64 * 1024;
const MOST_TEXT: usize = 4 * 1024;

/// How long a title is that is made of a prompt, in characters.
const TITLE: usize = 80;

/// Whose child a session is, and what it may do: `chat_sessions.child`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Origin {
    pub subagent_id: SubagentId,
    /// Its own.
    pub session_id: SessionId,
    pub parent_id: SessionId,
    /// The message that its parent was answering.
    pub parent_message_id: MessageId,
    /// Whose parent nobody is. What the whole tree spends is counted there.
    pub root_id: SessionId,
    pub tool_call_id: ToolCallId,
    pub agent: String,
    pub background: bool,
    pub inspectable: bool,
    /// 1 for the children of a session without a parent.
    pub depth: i32,
    /// How deep its descendants may be.
    pub most_depth: i32,
    pub permissions: Permissions,
}

/// A child that is to be made.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Spawn {
    pub origin: Origin,
    pub step_id: StepId,
    pub title: String,
    pub subject: String,
    pub workspace_id: WorkspaceId,
    pub metadata: Value,
    pub message_id: MessageId,
    pub turn_id: TurnId,
    pub part_id: PartId,
    pub prompt: String,
    pub message_metadata: Value,
    /// The payloads of `session.created` and `turn.submitted`.
    pub created: Value,
    pub submitted: Value,
    pub trace_parent: Option<String>,
}

/// What a prompt is about, in a line.
pub fn title(prompt: &str) -> String {
    let line = prompt.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    match line.char_indices().nth(TITLE) {
        Some((end, _)) => format!("{}…", line[..end].trim_end()),
        None => line.to_owned(),
    }
}

/// How a child ended, as its parent is told: `subagent.outcome`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// `completed`, `failed` or `closed`.
    pub status: String,
    /// The payload of the event that says so.
    pub ended: SubagentEnded,
    /// Of one whose session is not listed: what was said there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transcript: Option<Value>,
    pub duration_ms: i32,
    pub inspectable: bool,
    /// Of one in the background: what stands in the parent's conversation, and the part's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<Note>,
    pub part_id: PartId,
}

/// Which child ended, and what its parent was told of it when it was spawned.
#[derive(Debug, Clone)]
pub struct About {
    pub subagent_id: SubagentId,
    pub session_id: SessionId,
    pub agent: String,
    pub background: bool,
    pub inspectable: bool,
    pub duration_ms: i32,
}

/// How its last turn ended.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct End {
    pub status: String,
    #[serde(default)]
    pub reason: String,
    #[serde(default)]
    pub subject: String,
}

impl Outcome {
    /// What there is to remember of a child, given its latest messages and whether there are more.
    pub fn new(about: About, end: End, messages: &[Message], more: bool) -> Outcome {
        let About { subagent_id, session_id, agent, background, inspectable, duration_ms } = about;
        let completed = end.status == "completed";
        let (output, cut) = within(&output(messages), MOST_OUTPUT);
        let output = match cut {
            true => format!("{output}…\n[the rest is in the session {session_id}]"),
            false => output,
        };
        let reason = match (completed, end.reason.is_empty()) {
            (true, _) => String::new(),
            (false, true) => "it ended without saying why".to_owned(),
            (false, false) => end.reason,
        };
        let transcript = (!inspectable).then(|| transcript(session_id, messages, more));
        let ended = SubagentEnded {
            child_session_id: session_id.to_string(),
            output: output.clone(),
            reason: reason.clone(),
            subject: end.subject,
            message_id: match background {
                true => subagent_id.message().to_string(),
                false => String::new(),
            },
            background,
        };
        let note = background.then(|| Note {
            subagent_id,
            session_id,
            agent,
            status: end.status.clone(),
            output,
            reason,
            transcript: transcript.clone(),
        });
        let (status, part_id) = (end.status, PartId::new());
        let transcript = transcript.filter(|_| !background);
        Outcome { status, ended, transcript, duration_ms, inspectable, note, part_id }
    }

    /// What the call that waited for it returns.
    pub fn of_call(self) -> turn::Outcome {
        let metadata = ToolMetadata {
            duration_ms: self.duration_ms,
            transcript_json: self.transcript.map(|value| value.to_string()).unwrap_or_default(),
            ..ToolMetadata::default()
        };
        let SubagentEnded { child_session_id, output, reason, .. } = self.ended;
        match self.status.as_str() {
            "completed" => {
                let data = match self.inspectable {
                    true => json!({ "session_id": child_session_id, "output": output }),
                    false => json!({ "output": output }),
                };
                turn::Outcome::Result { data_json: data.to_string(), metadata }
            }
            "closed" => {
                let text = format!("the subagent was closed: {reason}");
                turn::Outcome::Error { text, kind: "aborted".into(), metadata }
            }
            _ => {
                let text = format!("the subagent failed: {reason}");
                turn::Outcome::Error { text, kind: "failed".into(), metadata }
            }
        }
    }
}

/// `data-subagent`, as it is stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Note {
    pub subagent_id: SubagentId,
    pub session_id: SessionId,
    pub agent: String,
    pub status: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub output: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transcript: Option<Value>,
}

impl Note {
    pub fn part(&self) -> Part {
        Part::Data { kind: KIND.to_owned(), data: json!(self) }
    }

    /// The note in a message, if it is one.
    pub fn of(parts: &[Part]) -> Option<Note> {
        match parts.first()? {
            Part::Data { kind, data } if kind == KIND => serde_json::from_value(data.clone()).ok(),
            _ => None,
        }
    }

    /// What the model reads.
    pub fn told(&self) -> String {
        let Note { agent, session_id, output, reason, .. } = self;
        let head =
            format!("The subagent {agent} that works in the background (session {session_id})");
        match self.status.as_str() {
            "completed" => format!("{head} is done and says:\n\n{output}"),
            "closed" => format!("{head} was closed: {reason}"),
            _ => format!("{head} failed: {reason}"),
        }
    }
}

/// What the child said last.
fn output(messages: &[Message]) -> String {
    let answers = messages.iter().rev().filter(|message| message.role == Role::Assistant);
    let texts = answers.map(|message| {
        let texts = message.parts.iter().filter_map(|part| match part {
            Part::Text(text) => Some(text.text.as_str()),
            _ => None,
        });
        texts.collect::<String>()
    });
    texts.into_iter().find(|text| !text.is_empty()).unwrap_or_default()
}

/// The newest messages, as many as there is room for.
fn transcript(session_id: SessionId, messages: &[Message], more: bool) -> Value {
    let (mut shown, mut bytes, mut truncated) = (Vec::new(), 0, more);
    for message in messages.iter().rev() {
        let parts: Vec<Value> =
            message.parts.iter().map(|part| brief(part, &mut truncated)).collect();
        let message = json!({ "role": message.role, "parts": parts });
        bytes += message.to_string().len();
        if bytes > MOST_TRANSCRIPT {
            truncated = true;
            break;
        }
        shown.push(message);
    }
    shown.reverse();
    json!({ "session_id": session_id, "messages": shown, "truncated": truncated })
}

fn brief(part: &Part, truncated: &mut bool) -> Value {
    let mut short = |text: &str| {
        let (text, cut) = within(text, MOST_TEXT);
        *truncated |= cut;
        text
    };
    match part {
        Part::Text(text) | Part::Reasoning(text) => {
            json!({ "type": part.kind(), "text": short(&text.text) })
        }
        Part::Tool(tool_use) => {
            let mut shown = json!({
                "type": part.kind(), "state": tool_use.state, "input": short(&tool_use.input_json),
            });
            if let Some(output) = &tool_use.output_json {
                shown["output"] = short(output).into();
            }
            if let Some(error) = &tool_use.error_text {
                shown["error"] = short(error).into();
            }
            shown
        }
        Part::File(file) => json!({ "type": "file", "name": file.name }),
        Part::Data { kind, .. } => json!({ "type": kind }),
    }
}

/// A text within so many bytes, and whether that cut something off.
fn within(text: &str, most: usize) -> (String, bool) {
    match text.len() > most {
        true => (text[..text.floor_char_boundary(most)].to_owned(), true),
        false => (text.to_owned(), false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Metadata;

    fn said(role: Role, text: &str) -> Message {
        Message {
            id: MessageId::new(),
            turn_id: TurnId::new(),
            role,
            metadata: Metadata::default(),
            parts: vec![Part::text(text)],
        }
    }

    fn about(background: bool, inspectable: bool) -> About {
        let subagent_id = SubagentId::new();
        About {
            subagent_id,
            session_id: subagent_id.session(),
            agent: "explore".into(),
            background,
            inspectable,
            duration_ms: 5,
        }
    }

    fn end(status: &str) -> End {
        End { status: status.into(), reason: "too slow".into(), ..End::default() }
    }

    #[test]
    fn a_call_returns_the_last_thing_that_was_said() {
        let messages = [
            said(Role::User, "look"),
            said(Role::Assistant, "first"),
            said(Role::Assistant, "last"),
        ];
        let outcome = Outcome::new(about(false, false), end("completed"), &messages, false);
        let turn::Outcome::Result { data_json, metadata } = outcome.of_call() else { panic!() };
        assert_eq!(data_json, r#"{"output":"last"}"#);
        let transcript: Value = serde_json::from_str(&metadata.transcript_json).unwrap();
        assert_eq!(transcript["messages"].as_array().unwrap().len(), 3);
        assert_eq!(transcript["truncated"], false);

        let listed = Outcome::new(about(false, true), end("completed"), &messages, false);
        let id = listed.ended.child_session_id.clone();
        let turn::Outcome::Result { data_json, metadata } = listed.of_call() else { panic!() };
        assert_eq!(data_json, json!({ "session_id": id, "output": "last" }).to_string());
        assert_eq!(metadata.transcript_json, "");
    }

    #[test]
    fn a_child_that_failed_is_an_error_that_says_why() {
        let outcome = Outcome::new(about(false, false), end("failed"), &[], false);
        let turn::Outcome::Error { text, kind, .. } = outcome.of_call() else { panic!() };
        assert_eq!((text.as_str(), kind.as_str()), ("the subagent failed: too slow", "failed"));
    }

    #[test]
    fn what_a_child_says_is_bounded() {
        let long = "é".repeat(100_000);
        let messages: Vec<_> = (0..100).map(|_| said(Role::Assistant, &long)).collect();
        let outcome = Outcome::new(about(true, false), end("completed"), &messages, false);
        assert!(outcome.ended.output.len() < MOST_OUTPUT + 100);
        let note = outcome.note.unwrap();
        assert!(note.transcript.as_ref().unwrap().to_string().len() < MOST_TRANSCRIPT + 200);
        assert_eq!(note.transcript.as_ref().unwrap()["truncated"], true);
        assert_eq!(Note::of(&[note.part()]), Some(note));
    }

    #[test]
    fn a_title_is_the_first_line_of_a_prompt() {
        assert_eq!(title("\n  Look around.\nAnd more"), "Look around.");
        assert_eq!(title(&"a".repeat(81)), format!("{}…", "a".repeat(80)));
    }
}
