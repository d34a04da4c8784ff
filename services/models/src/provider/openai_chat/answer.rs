//! What chat completions answer, with what servers make of the format.

use serde::Deserialize;
use serde_json::Value;

use crate::{
    provider::{
        Chunk, Delta, Failure, FinishReason,
        calls::Calls,
        refusal::Complaint,
        sse::Event,
        wire::{Reader, parse},
    },
    usage::{Counting, Counts, Usage},
};

#[derive(Default)]
pub struct Answer {
    calls: Calls,
    finish_reason: Option<FinishReason>,
    usage: Option<Usage>,
}

impl Reader for Answer {
    fn read(&mut self, event: &Event, chunks: &mut Vec<Chunk>) -> Result<(), Failure> {
        if event.data == "[DONE]" {
            self.end(chunks);
            // Some servers say that they are done and never why.
            if !matches!(chunks.last(), Some(Chunk::Finished { .. })) {
                self.finish(FinishReason::Stop, chunks);
            }
            return Ok(());
        }
        let piece: Piece = parse(&event.data)?;
        if let Some(error) = &piece.error {
            return Err(Complaint::of(error).event());
        }
        if let Some(usage) = piece.usage {
            self.usage = Some(usage.into());
        }
        let Some(choice) = piece.choices.into_iter().next() else { return Ok(()) };
        let delta = choice.delta;
        for text in [delta.reasoning_content, delta.reasoning].into_iter().flatten() {
            if !text.is_empty() {
                chunks.push(Chunk::Delta(Delta::Reasoning { text, signature: String::new() }));
            }
        }
        for text in [delta.content, delta.refusal].into_iter().flatten() {
            if !text.is_empty() {
                chunks.push(Chunk::Delta(Delta::Text(text)));
            }
        }
        for call in delta.tool_calls.unwrap_or_default() {
            // Some servers send whole calls and number none of them.
            let key = call.index.unwrap_or(0);
            let function = call.function.unwrap_or_default();
            let begins = function.name.as_ref().is_some_and(|name| !name.is_empty());
            if begins && (call.index.is_none() || !self.calls.knows(key)) {
                let name = function.name.unwrap_or_default();
                self.calls.complete(key, chunks);
                self.calls.start(key, call.id.unwrap_or_default(), name, chunks)?;
            }
            self.calls.grow(key, function.arguments.unwrap_or_default(), chunks);
        }
        if let Some(reason) = choice.finish_reason {
            self.calls.complete_all(chunks);
            self.finish_reason = Some(match reason.as_str() {
                "length" => FinishReason::Length,
                "content_filter" => FinishReason::Refused,
                // Some servers say `stop` although there are calls to make.
                _ if !self.calls.is_empty() => FinishReason::ToolCalls,
                _ => FinishReason::Stop,
            });
        }
        Ok(())
    }

    fn end(&mut self, chunks: &mut Vec<Chunk>) {
        if let Some(reason) = self.finish_reason.take() {
            self.finish(reason, chunks);
        }
    }
}

impl Answer {
    fn finish(&mut self, finish_reason: FinishReason, chunks: &mut Vec<Chunk>) {
        self.calls.complete_all(chunks);
        chunks.push(Chunk::Finished { finish_reason, usage: self.usage.take() });
    }
}

#[derive(Deserialize)]
struct Piece {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Counted>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    delta: Spoken,
    finish_reason: Option<String>,
}

#[derive(Default, Deserialize)]
struct Spoken {
    content: Option<String>,
    refusal: Option<String>,
    /// As DeepSeek and vLLM have it.
    reasoning_content: Option<String>,
    /// As Ollama and OpenRouter have it.
    reasoning: Option<String>,
    tool_calls: Option<Vec<CallPiece>>,
}

#[derive(Deserialize)]
struct CallPiece {
    index: Option<u64>,
    id: Option<String>,
    function: Option<FunctionPiece>,
}

#[derive(Default, Deserialize)]
struct FunctionPiece {
    name: Option<String>,
    arguments: Option<String>,
}

#[derive(Default, Deserialize)]
struct Counted {
    #[serde(default)]
    prompt_tokens: i64,
    #[serde(default)]
    completion_tokens: i64,
    prompt_tokens_details: Option<PromptDetails>,
    completion_tokens_details: Option<CompletionDetails>,
}

#[derive(Default, Deserialize)]
struct PromptDetails {
    cached_tokens: Option<i64>,
}

#[derive(Default, Deserialize)]
struct CompletionDetails {
    reasoning_tokens: Option<i64>,
}

impl From<Counted> for Usage {
    fn from(counted: Counted) -> Usage {
        let prompt = counted.prompt_tokens_details.unwrap_or_default();
        let completion = counted.completion_tokens_details.unwrap_or_default();
        Usage::normalised(Counts {
            input: counted.prompt_tokens,
            output: counted.completion_tokens,
            reasoning: completion.reasoning_tokens.unwrap_or_default(),
            reasoning_is: Counting::Included,
            cache_read: prompt.cached_tokens.unwrap_or_default(),
            cache_write: 0,
            cache_is: Counting::Included,
        })
    }
}
