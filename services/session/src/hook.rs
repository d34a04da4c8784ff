//! What hooks leave in a conversation: what they want the model to know, and what they want it
//! not to. No I/O.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::message::Part;

/// The type of the part that a hook left.
pub const KIND: &str = "data-hook";

/// What happens to a turn and hooks may have a say about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    SessionStart,
    UserPromptSubmit,
    Stop,
}

impl Event {
    /// As in `HookStarted.event`.
    pub fn as_str(self) -> &'static str {
        match self {
            Event::SessionStart => "session_start",
            Event::UserPromptSubmit => "user_prompt_submit",
            Event::Stop => "stop",
        }
    }
}

/// `data-hook`, as it is stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Note {
    pub event: Event,
    /// A hook blocked, and `text` says which and why. Otherwise it is what the model should know.
    pub blocked: bool,
    pub text: String,
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

    /// Whether no model may see the message that the turn began with.
    pub fn hides_the_message(&self) -> bool {
        self.blocked && self.event != Event::Stop
    }

    /// What the model reads.
    pub fn told(&self) -> String {
        match self.blocked {
            true => format!("You cannot stop yet: {}", self.text),
            false => format!("A hook says:\n\n{}", self.text),
        }
    }
}
