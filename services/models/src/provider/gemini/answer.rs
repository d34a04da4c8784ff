//! What Gemini answers.

use serde::Deserialize;
use serde_json::{Value, value::RawValue};

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
    made: u64,
    usage: Option<Usage>,
    finish_reason: Option<FinishReason>,
}

impl Reader for Answer {
    fn read(&mut self, event: &Event, chunks: &mut Vec<Chunk>) -> Result<(), Failure> {
        let piece: Piece = parse(&event.data)?;
        if let Some(error) = &piece.error {
            return Err(Complaint::of(error).event());
        }
        // Every piece counts from the beginning.
        if let Some(usage) = piece.usage_metadata {
            self.usage = Some(usage.into());
        }
        if piece.prompt_feedback.is_some_and(|feedback| feedback.block_reason.is_some()) {
            return Err(Failure::Refused);
        }
        let Some(candidate) = piece.candidates.into_iter().next() else { return Ok(()) };
        for part in candidate.content.unwrap_or_default().parts {
            self.part(part, chunks)?;
        }
        if let Some(reason) = candidate.finish_reason {
            self.finish_reason = Some(match reason.as_str() {
                "MAX_TOKENS" => FinishReason::Length,
                "SAFETY" | "RECITATION" | "BLOCKLIST" | "PROHIBITED_CONTENT" | "SPII"
                | "IMAGE_SAFETY" => FinishReason::Refused,
                "MALFORMED_FUNCTION_CALL" | "UNEXPECTED_TOOL_CALL" => {
                    return Err(Failure::Transient("it made a call that is none".to_owned()));
                }
                _ if self.made > 0 => FinishReason::ToolCalls,
                _ => FinishReason::Stop,
            });
        }
        Ok(())
    }

    /// The last piece looks like all others, so the end is the end of the connection.
    fn end(&mut self, chunks: &mut Vec<Chunk>) {
        if let Some(finish_reason) = self.finish_reason.take() {
            chunks.push(Chunk::Finished { finish_reason, usage: self.usage.take() });
        }
    }

    fn counted(&self) -> Option<Usage> {
        self.usage
    }
}

impl Answer {
    fn part(&mut self, part: Spoken, chunks: &mut Vec<Chunk>) -> Result<(), Failure> {
        if let Some(text) = part.text.filter(|text| !text.is_empty()) {
            chunks.push(Chunk::Delta(match part.thought {
                true => Delta::Reasoning { text, signature: String::new() },
                false => Delta::Text(text),
            }));
        }
        let Some(call) = part.function_call else { return Ok(()) };
        if let Some(value) = part.thought_signature {
            let signature = signature::seal(OWNER, &value);
            chunks.push(Chunk::Delta(Delta::Reasoning { text: String::new(), signature }));
        }
        let key = self.made;
        self.made += 1;
        self.calls.start(key, call.id.unwrap_or_default(), call.name, chunks)?;
        self.calls.grow(
            key,
            call.args.map_or_else(String::new, |args| args.get().to_owned()),
            chunks,
        );
        self.calls.complete(key, chunks);
        Ok(())
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Piece<'a> {
    #[serde(default, borrow)]
    candidates: Vec<Candidate<'a>>,
    usage_metadata: Option<Counted>,
    prompt_feedback: Option<Feedback>,
    error: Option<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Candidate<'a> {
    #[serde(borrow)]
    content: Option<Spoke<'a>>,
    finish_reason: Option<String>,
}

#[derive(Default, Deserialize)]
struct Spoke<'a> {
    #[serde(default, borrow)]
    parts: Vec<Spoken<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spoken<'a> {
    text: Option<String>,
    #[serde(default)]
    thought: bool,
    thought_signature: Option<String>,
    #[serde(borrow)]
    function_call: Option<CallMade<'a>>,
}

#[derive(Deserialize)]
struct CallMade<'a> {
    id: Option<String>,
    name: String,
    #[serde(borrow)]
    args: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Feedback {
    block_reason: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Counted {
    #[serde(default)]
    prompt_token_count: i64,
    #[serde(default)]
    candidates_token_count: i64,
    #[serde(default)]
    thoughts_token_count: i64,
    #[serde(default)]
    cached_content_token_count: i64,
}

impl From<Counted> for Usage {
    fn from(counted: Counted) -> Usage {
        Usage::normalised(Counts {
            input: counted.prompt_token_count,
            output: counted.candidates_token_count,
            reasoning: counted.thoughts_token_count,
            reasoning_is: Counting::Separate,
            cache_read: counted.cached_content_token_count,
            cache_write: 0,
            cache_is: Counting::Included,
        })
    }
}
