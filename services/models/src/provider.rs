//! What answers: a request in, a stream of chunks or a classified failure out.

pub mod scripted;

use std::{collections::BTreeMap, str::FromStr, sync::Arc, time::Duration};

use futures::stream::BoxStream;

use crate::{prompt::Prompt, script, usage::Usage};

/// Somebody who runs models.
pub trait Provider: Send + Sync {
    /// Answers with chunks, the last of which is [`Chunk::Finished`]. Nothing happens
    /// before the stream is polled and nothing goes on after it is dropped.
    fn generate(&self, request: Request) -> BoxStream<'static, Result<Chunk, Failure>>;
}

/// Everybody we can ask, by name.
#[derive(Clone)]
pub struct Providers(BTreeMap<&'static str, Arc<dyn Provider>>);

impl Providers {
    pub fn built_in() -> Providers {
        let scripted: Arc<dyn Provider> = Arc::new(scripted::Scripted);
        Providers(BTreeMap::from([("scripted", scripted)]))
    }

    pub fn get(&self, name: &str) -> Option<&dyn Provider> {
        self.0.get(name).map(|provider| &**provider)
    }
}

/// What every provider is asked in.
#[derive(Debug, Clone)]
pub struct Request {
    pub prompt: Arc<Prompt>,
    /// What kind of work it is: `chat`, `title`, …
    pub profile: String,
    /// How many tokens the answer may have.
    pub max_output_tokens: i32,
    /// 1, and more when the caller repeats a request.
    pub attempt: u32,
}

#[derive(Debug, PartialEq)]
pub enum Chunk {
    Delta(Delta),
    /// The end. `usage` is what the provider counted, if it did.
    Finished {
        finish_reason: FinishReason,
        usage: Option<Usage>,
    },
}

/// A piece of the answer.
#[derive(Debug, PartialEq)]
pub enum Delta {
    Text(String),
    Reasoning {
        text: String,
        signature: String,
    },
    ToolCallStarted {
        index: i32,
        provider_call_id: String,
        tool: String,
    },
    /// Only what is new.
    ToolCallInput {
        index: i32,
        input_json: String,
    },
    /// All of it.
    ToolCallCompleted {
        index: i32,
        input_json: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FinishReason {
    Stop,
    Length,
    ToolCalls,
    Refused,
}

/// Why there is no answer, or no more of it, in no provider's own words.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Failure {
    /// It may pass.
    #[error("{0}")]
    Transient(String),

    #[error("a rate limit was hit")]
    RateLimited { retry_after: Duration },

    #[error("the credential was refused")]
    Auth,

    #[error("the prompt is larger than the context")]
    Overflow,

    #[error("the content was refused")]
    Refused,

    #[error("{0}")]
    Invalid(String),

    /// The connection broke.
    #[error("the stream broke off")]
    Cut,

    #[error(transparent)]
    Script(#[from] script::Error),
}

impl Failure {
    /// One word for statistics.
    pub fn kind(&self) -> &'static str {
        match self {
            Failure::Transient(_) => "transient",
            Failure::RateLimited { .. } => "rate_limit",
            Failure::Auth => "auth",
            Failure::Overflow => "context_overflow",
            Failure::Refused => "refused",
            Failure::Invalid(_) | Failure::Script(_) => "invalid",
            Failure::Cut => "cut",
        }
    }
}

impl FinishReason {
    const ALL: [FinishReason; 4] =
        [FinishReason::Stop, FinishReason::Length, FinishReason::ToolCalls, FinishReason::Refused];

    pub fn as_str(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::ToolCalls => "tool_calls",
            FinishReason::Refused => "refused",
        }
    }
}

impl FromStr for FinishReason {
    type Err = ();

    fn from_str(text: &str) -> Result<FinishReason, ()> {
        FinishReason::ALL.into_iter().find(|reason| reason.as_str() == text).ok_or(())
    }
}
