//! What OpenAI's responses answer.

use serde::Deserialize;
use serde_json::Value;

use super::OWNER;
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
    /// Of an answer that failed.
    usage: Option<Usage>,
}

impl Reader for Answer {
    fn read(&mut self, event: &Event, chunks: &mut Vec<Chunk>) -> Result<(), Failure> {
        match parse::<Told>(&event.data)? {
            Told::TextDelta { delta } | Told::RefusalDelta { delta } => {
                chunks.push(Chunk::Delta(Delta::Text(delta)));
            }
            Told::SummaryDelta { delta } | Told::ReasoningDelta { delta } => {
                let signature = String::new();
                chunks.push(Chunk::Delta(Delta::Reasoning { text: delta, signature }));
            }
            Told::ItemAdded { output_index, item } => {
                if let Output::FunctionCall { call_id, name } = item {
                    self.calls.start(output_index, call_id, name, chunks)?;
                }
            }
            Told::ArgumentsDelta { output_index, delta } => {
                self.calls.grow(output_index, delta, chunks);
            }
            Told::ItemDone { output_index, item } => match item {
                Output::FunctionCall { .. } => self.calls.complete(output_index, chunks),
                Output::Reasoning { id, encrypted_content: Some(content) } => {
                    let signature = signature::seal(OWNER, &format!("{id}:{content}"));
                    chunks.push(Chunk::Delta(Delta::Reasoning { text: String::new(), signature }));
                }
                Output::Reasoning { .. } | Output::Other => (),
            },
            Told::Completed { response } => {
                let reason = match self.calls.is_empty() {
                    true => FinishReason::Stop,
                    false => FinishReason::ToolCalls,
                };
                self.finish(reason, response, chunks);
            }
            Told::Incomplete { response } => {
                let why =
                    response.incomplete_details.as_ref().and_then(|one| one.reason.as_deref());
                let reason = match why {
                    Some("content_filter") => FinishReason::Refused,
                    _ => FinishReason::Length,
                };
                self.finish(reason, response, chunks);
            }
            Told::Failed { response } => {
                self.usage = response.usage.map(Usage::from);
                return Err(Complaint::of(&response.error.unwrap_or_default()).event());
            }
            Told::Error(error) => {
                return Err(Complaint::of(error.get("error").unwrap_or(&error)).event());
            }
            Told::Other => (),
        }
        Ok(())
    }

    fn counted(&self) -> Option<Usage> {
        self.usage
    }
}

impl Answer {
    fn finish(&mut self, finish_reason: FinishReason, response: Response, chunks: &mut Vec<Chunk>) {
        self.calls.complete_all(chunks);
        chunks.push(Chunk::Finished { finish_reason, usage: response.usage.map(Usage::from) });
    }
}

#[derive(Deserialize)]
#[serde(tag = "type")]
enum Told {
    #[serde(rename = "response.output_text.delta")]
    TextDelta { delta: String },
    #[serde(rename = "response.refusal.delta")]
    RefusalDelta { delta: String },
    #[serde(rename = "response.reasoning_summary_text.delta")]
    SummaryDelta { delta: String },
    #[serde(rename = "response.reasoning_text.delta")]
    ReasoningDelta { delta: String },
    #[serde(rename = "response.output_item.added")]
    ItemAdded { output_index: u64, item: Output },
    #[serde(rename = "response.function_call_arguments.delta")]
    ArgumentsDelta { output_index: u64, delta: String },
    #[serde(rename = "response.output_item.done")]
    ItemDone { output_index: u64, item: Output },
    #[serde(rename = "response.completed")]
    Completed { response: Response },
    #[serde(rename = "response.incomplete")]
    Incomplete { response: Response },
    #[serde(rename = "response.failed")]
    Failed { response: Response },
    #[serde(rename = "error")]
    Error(Value),
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Output {
    FunctionCall {
        call_id: String,
        name: String,
    },
    Reasoning {
        id: String,
        encrypted_content: Option<String>,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Response {
    usage: Option<Counted>,
    error: Option<Value>,
    incomplete_details: Option<Incomplete>,
}

#[derive(Deserialize)]
struct Incomplete {
    reason: Option<String>,
}

#[derive(Deserialize)]
struct Counted {
    #[serde(default)]
    input_tokens: i64,
    #[serde(default)]
    output_tokens: i64,
    input_tokens_details: Option<InputDetails>,
    output_tokens_details: Option<OutputDetails>,
}

#[derive(Default, Deserialize)]
struct InputDetails {
    #[serde(default)]
    cached_tokens: i64,
}

#[derive(Default, Deserialize)]
struct OutputDetails {
    #[serde(default)]
    reasoning_tokens: i64,
}

impl From<Counted> for Usage {
    fn from(counted: Counted) -> Usage {
        Usage::normalised(Counts {
            input: counted.input_tokens,
            output: counted.output_tokens,
            reasoning: counted.output_tokens_details.unwrap_or_default().reasoning_tokens,
            reasoning_is: Counting::Included,
            cache_read: counted.input_tokens_details.unwrap_or_default().cached_tokens,
            cache_write: 0,
            cache_is: Counting::Included,
        })
    }
}
