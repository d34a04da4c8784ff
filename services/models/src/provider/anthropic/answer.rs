//! What Anthropic answers.

use serde::Deserialize;
use serde_json::Value;

use super::{REDACTED, SHOWN};
use crate::{
    provider::{
        Chunk, Delta, Failure, FinishReason,
        calls::Calls,
        refusal::Complaint,
        signature,
        sse::Event,
        wire::{Reader, parse},
    },
    usage::{Counting, Counts, Usage},
};

#[derive(Default)]
pub struct Answer {
    calls: Calls,
    /// The signature of the thinking that is being told.
    signature: String,
    counted: Counted,
    /// Something was said since it counted.
    uncounted: bool,
    finish_reason: Option<FinishReason>,
}

impl Reader for Answer {
    fn read(&mut self, event: &Event, chunks: &mut Vec<Chunk>) -> Result<(), Failure> {
        let told = parse::<Told>(&event.data)?;
        self.uncounted |=
            matches!(told, Told::ContentBlockStart { .. } | Told::ContentBlockDelta { .. });
        match told {
            Told::MessageStart { message } => self.counted.update(message.usage),
            Told::ContentBlockStart { index, content_block } => match content_block {
                Opened::ToolUse { id, name } => self.calls.start(index, id, name, chunks)?,
                Opened::RedactedThinking { data } => {
                    let signature = signature::seal(REDACTED, &data);
                    chunks.push(Chunk::Delta(Delta::Reasoning { text: String::new(), signature }));
                }
                Opened::Other => (),
            },
            Told::ContentBlockDelta { index, delta } => match delta {
                Grown::TextDelta { text } => chunks.push(Chunk::Delta(Delta::Text(text))),
                Grown::ThinkingDelta { thinking: text } => {
                    let signature = String::new();
                    chunks.push(Chunk::Delta(Delta::Reasoning { text, signature }));
                }
                Grown::SignatureDelta { signature } => self.signature.push_str(&signature),
                Grown::InputJsonDelta { partial_json } => {
                    self.calls.grow(index, partial_json, chunks);
                }
                Grown::Other => (),
            },
            Told::ContentBlockStop { index } => {
                if !self.signature.is_empty() {
                    let signature = signature::seal(SHOWN, &std::mem::take(&mut self.signature));
                    chunks.push(Chunk::Delta(Delta::Reasoning { text: String::new(), signature }));
                }
                self.calls.complete(index, chunks);
            }
            Told::MessageDelta { delta, usage } => {
                self.uncounted &= usage.is_none();
                self.counted.update(usage.unwrap_or_default());
                self.finish_reason = delta.stop_reason.map(|reason| match reason.as_str() {
                    "max_tokens" | "model_context_window_exceeded" => FinishReason::Length,
                    "tool_use" => FinishReason::ToolCalls,
                    "refusal" => FinishReason::Refused,
                    _ => FinishReason::Stop,
                });
            }
            Told::MessageStop => {
                self.calls.complete_all(chunks);
                let finish_reason = self.finish_reason.unwrap_or(FinishReason::Stop);
                chunks.push(Chunk::Finished { finish_reason, usage: Some(self.counted.usage()) });
            }
            Told::Error { error } => return Err(Complaint::of(&error).event()),
            Told::Other => (),
        }
        Ok(())
    }

    fn counted(&self) -> Option<Usage> {
        let is_known = self.counted.input_tokens.is_some() && !self.uncounted;
        is_known.then(|| self.counted.usage())
    }
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Told {
    MessageStart {
        message: Started,
    },
    ContentBlockStart {
        index: u64,
        content_block: Opened,
    },
    ContentBlockDelta {
        index: u64,
        delta: Grown,
    },
    ContentBlockStop {
        index: u64,
    },
    MessageDelta {
        delta: Stopped,
        usage: Option<Counted>,
    },
    MessageStop,
    Error {
        error: Value,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Started {
    #[serde(default)]
    usage: Counted,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Opened {
    ToolUse {
        id: String,
        name: String,
    },
    RedactedThinking {
        data: String,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Grown {
    TextDelta {
        text: String,
    },
    ThinkingDelta {
        thinking: String,
    },
    SignatureDelta {
        signature: String,
    },
    InputJsonDelta {
        partial_json: String,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Stopped {
    stop_reason: Option<String>,
}

/// Counts that are cumulative: what comes later replaces what came before.
#[derive(Debug, Default, Deserialize)]
struct Counted {
    input_tokens: Option<i64>,
    output_tokens: Option<i64>,
    cache_read_input_tokens: Option<i64>,
    cache_creation_input_tokens: Option<i64>,
}

impl Counted {
    fn update(&mut self, newer: Counted) {
        self.input_tokens = newer.input_tokens.or(self.input_tokens);
        self.output_tokens = newer.output_tokens.or(self.output_tokens);
        self.cache_read_input_tokens =
            newer.cache_read_input_tokens.or(self.cache_read_input_tokens);
        self.cache_creation_input_tokens =
            newer.cache_creation_input_tokens.or(self.cache_creation_input_tokens);
    }

    fn usage(&self) -> Usage {
        Usage::normalised(Counts {
            input: self.input_tokens.unwrap_or_default(),
            output: self.output_tokens.unwrap_or_default(),
            // Thinking is output like any other, and not told apart.
            reasoning: 0,
            reasoning_is: Counting::Included,
            cache_read: self.cache_read_input_tokens.unwrap_or_default(),
            cache_write: self.cache_creation_input_tokens.unwrap_or_default(),
            cache_is: Counting::Separate,
        })
    }
}
