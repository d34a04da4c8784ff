//! What is said in a session: messages and their parts. No I/O.

use proto::event::v1::{ToolMetadata, Usage};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::ids::{MessageId, SessionId, SubagentId, ToolCallId, TurnId};

/// A message as the loop and the prompt see it.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    pub id: MessageId,
    pub turn_id: TurnId,
    pub role: Role,
    pub metadata: Metadata,
    pub parts: Vec<Part>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    User,
    Assistant,
}

/// `chat_messages.metadata_json`, as far as we read it ourselves.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Metadata {
    /// Of a user message: runs this agent from here on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Of a user message what was asked for, of an assistant message what answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub headless: bool,
    /// Of a user message: asks for a summary of what was said before, and for nothing else.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub compact: bool,
    /// When it was put into the queue, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queued_at: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_micros: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_digest: Option<String>,
    /// Of the tools as the model saw them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub catalog_digest: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finish_reason: Option<String>,
    /// What fired the turn, when no person did: `source`, `fired_at`, `schedule_id`, `delivery_id`,
    /// `headers`, `auth_subject`, `mode`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trigger: Option<Value>,
    /// What the caller wanted kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<Value>,
    /// Of a user message: the turn that runs again here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replay: Option<Replay>,
}

/// A turn that is over, and how it runs again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Replay {
    pub session_id: SessionId,
    pub turn_id: TurnId,
    /// No tool runs: what is recorded is what they say.
    pub recorded_tools: bool,
    /// No model is asked: what is recorded is what it says.
    pub recorded_model: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageStatus {
    Streaming,
    Completed,
    Failed,
    Cancelled,
}

impl MessageStatus {
    pub fn as_str(self) -> &'static str {
        match self {
            MessageStatus::Streaming => "streaming",
            MessageStatus::Completed => "completed",
            MessageStatus::Failed => "failed",
            MessageStatus::Cancelled => "cancelled",
        }
    }
}

/// A piece of a message. In Postgres its kind is `type` and the rest is `data_json`.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    Text(Text),
    Reasoning(Text),
    Tool(ToolUse),
    File(File),
    /// Anything else, as it is: `data-<name>`.
    Data {
        kind: String,
        data: Value,
    },
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Text {
    pub text: String,
    /// More may follow.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub streaming: bool,
    /// Of reasoning: what the provider wants back unchanged.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub signature: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolUse {
    pub tool_call_id: ToolCallId,
    /// In the part's type, and so not in its data.
    #[serde(skip)]
    pub tool: String,
    pub state: ToolState,
    /// It changes nothing, so it may run beside others of its kind.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
    /// It was about to run when this was stored, so whether it ran is unknown until it ends.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub running: bool,
    /// What became of the question whether it may run, or of the question it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<Asked>,
    /// The child that it spawned. Until the call is over, it waits for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subagent: Option<SubagentId>,
    /// JSON text, kept to the letter: exactly this is evaluated, approved and run.
    pub input_json: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_json: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<ToolMetadata>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ToolState {
    InputStreaming,
    InputAvailable,
    OutputAvailable,
    OutputError,
}

/// Where something stands that a person was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Asked {
    Open,
    Approved,
    Rejected,
    Answered,
    Expired,
    Cancelled,
}

impl ToolUse {
    /// A call as it begins.
    pub fn new(tool_call_id: ToolCallId, tool: String) -> ToolUse {
        ToolUse {
            tool_call_id,
            tool,
            state: ToolState::InputStreaming,
            read_only: false,
            running: false,
            asked: None,
            subagent: None,
            input_json: String::new(),
            output_json: None,
            error_text: None,
            metadata: None,
        }
    }
}

impl ToolState {
    pub fn as_str(self) -> &'static str {
        match self {
            ToolState::InputStreaming => "input-streaming",
            ToolState::InputAvailable => "input-available",
            ToolState::OutputAvailable => "output-available",
            ToolState::OutputError => "output-error",
        }
    }

    pub fn is_over(self) -> bool {
        matches!(self, ToolState::OutputAvailable | ToolState::OutputError)
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct File {
    pub name: String,
    pub media_type: String,
    #[serde(rename = "ref", skip_serializing_if = "String::is_empty")]
    pub reference: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub data: Vec<u8>,
}

impl Part {
    pub fn text(text: impl Into<String>) -> Part {
        Part::Text(Text { text: text.into(), ..Text::default() })
    }

    /// `chat_parts.type`.
    pub fn kind(&self) -> String {
        match self {
            Part::Text(_) => "text".to_owned(),
            Part::Reasoning(_) => "reasoning".to_owned(),
            Part::Tool(tool_use) => format!("{TOOL}{}", tool_use.tool),
            Part::File(_) => "file".to_owned(),
            Part::Data { kind, .. } => kind.clone(),
        }
    }

    /// `chat_parts.data_json`.
    pub fn data(&self) -> Value {
        match self {
            Part::Text(text) | Part::Reasoning(text) => json!(text),
            Part::Tool(tool_use) => json!(tool_use),
            Part::File(file) => json!(file),
            Part::Data { data, .. } => data.clone(),
        }
    }

    /// Reads back what `kind` and `data` wrote.
    pub fn from_row(kind: &str, data: Value) -> serde_json::Result<Part> {
        Ok(match kind {
            "text" => Part::Text(serde_json::from_value(data)?),
            "reasoning" => Part::Reasoning(serde_json::from_value(data)?),
            "file" => Part::File(serde_json::from_value(data)?),
            _ => match kind.strip_prefix(TOOL) {
                Some(tool) => {
                    let tool_use: ToolUse = serde_json::from_value(data)?;
                    Part::Tool(ToolUse { tool: tool.to_owned(), ..tool_use })
                }
                None => Part::Data { kind: kind.to_owned(), data },
            },
        })
    }

    /// Adds to a text that was still growing when it was last stored.
    pub fn extend(&mut self, more: &str) {
        if let Part::Text(text) | Part::Reasoning(text) = self {
            text.text.push_str(more);
        }
    }
}

const TOOL: &str = "tool-";

/// Postgres stores no NUL in text; what a tool or a model says may hold some.
pub fn without_nul(text: String) -> String {
    match text.contains('\0') {
        true => text.replace('\0', "\u{FFFD}"),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_survive_the_database() {
        let parts = [
            Part::text("hello"),
            Part::Reasoning(Text { text: "hm".into(), streaming: true, signature: "sig".into() }),
            Part::Tool(ToolUse {
                state: ToolState::OutputError,
                read_only: true,
                running: true,
                asked: Some(Asked::Approved),
                subagent: Some(SubagentId::new()),
                input_json: r#"{"b": 1, "a": 1.0}"#.into(),
                error_text: Some("no".into()),
                metadata: Some(ToolMetadata { duration_ms: 3, ..ToolMetadata::default() }),
                ..ToolUse::new(ToolCallId::new(), "bash".into())
            }),
            Part::File(File { name: "a.png".into(), data: vec![1, 2], ..File::default() }),
            Part::Data { kind: "data-compaction".into(), data: json!({"summary": "s"}) },
        ];
        for part in parts {
            assert_eq!(Part::from_row(&part.kind(), part.data()).unwrap(), part);
        }
    }
}
