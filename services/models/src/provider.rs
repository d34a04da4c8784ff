//! What answers: a request in, a stream of chunks or a classified failure out.

pub mod scripted;
mod openai_chat;
mod openai_responses;
mod anthropic;
mod gemini;
mod wire;
mod sse;
mod refusal;
mod calls;
mod json;
mod signature;

use std::{collections::BTreeMap, str::FromStr, sync::Arc, time::Duration};

use futures::stream::BoxStream;

use self::wire::Wire;
use crate::{
    catalogue::{self, Catalogue, Kind, Thinking},
    prompt::Prompt,
    script,
    usage::Usage,
};

/// Somebody who runs models.
pub trait Provider: Send + Sync {
    /// Answers with chunks, the last of which is [`Chunk::Finished`]. Nothing happens
    /// before the stream is polled and nothing goes on after it is dropped.
    fn generate(&self, request: Request) -> BoxStream<'static, Result<Chunk, Broken>>;
}

/// Everybody we can ask, by name.
#[derive(Clone)]
pub struct Providers(BTreeMap<String, Arc<dyn Provider>>);

impl Providers {
    pub fn of(catalogue: &Catalogue) -> anyhow::Result<Providers> {
        let providers = catalogue.providers.iter();
        let providers = providers.map(|one| Ok((one.name.clone(), Providers::one(one)?)));
        Ok(Providers(providers.collect::<anyhow::Result<_>>()?))
    }

    fn one(provider: &catalogue::Provider) -> anyhow::Result<Arc<dyn Provider>> {
        Ok(match provider.kind {
            Kind::Scripted => Arc::new(scripted::Scripted),
            Kind::OpenaiChat => {
                let output_limit_field = provider.output_limit_field;
                Arc::new(Wire::new(provider, openai_chat::OpenaiChat { output_limit_field })?)
            }
            Kind::OpenaiResponses => {
                Arc::new(Wire::new(provider, openai_responses::OpenaiResponses)?)
            }
            Kind::Anthropic => Arc::new(Wire::new(provider, anthropic::Anthropic)?),
            Kind::Gemini => Arc::new(Wire::new(provider, gemini::Gemini)?),
        })
    }

    pub fn get(&self, name: &str) -> Option<&dyn Provider> {
        self.0.get(name).map(|provider| &**provider)
    }
}

/// What every provider is asked in.
#[derive(Debug, Clone)]
pub struct Request {
    /// The provider's own name for the model.
    pub model: String,
    pub prompt: Arc<Prompt>,
    /// What kind of work it is: `chat`, `title`, …
    pub profile: String,
    /// How many tokens the answer may have.
    pub max_output_tokens: i32,
    pub temperature: Option<f64>,
    /// `None`: as the model likes.
    pub effort: Option<Effort>,
    pub thinking: Thinking,
    /// The JSON Schema that the answer must match.
    pub output_schema_json: Option<String>,
    /// 1, and more when the caller repeats a request.
    pub attempt: u32,
}

#[cfg(test)]
impl Request {
    /// The plainest request there is.
    pub fn about(prompt: Prompt) -> Request {
        Request {
            model: "some-model".to_owned(),
            prompt: Arc::new(prompt),
            profile: "chat".to_owned(),
            max_output_tokens: 1_000,
            temperature: None,
            effort: None,
            thinking: Thinking::default(),
            output_schema_json: None,
            attempt: 1,
        }
    }
}

/// How much to reason before answering.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Effort {
    None,
    Low,
    Medium,
    High,
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

/// The end of an answer that is none.
#[derive(Debug, Clone, PartialEq)]
pub struct Broken {
    pub failure: Failure,
    /// What the provider counted until then, if it did.
    pub usage: Option<Usage>,
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

impl Failure {
    /// Whether somebody else may do better. Who finds the prompt too long, the content
    /// improper or the request wrong has understood it.
    pub fn passes_on(&self) -> bool {
        match self {
            Failure::Transient(_) | Failure::RateLimited { .. } | Failure::Auth | Failure::Cut => {
                true
            }
            Failure::Overflow | Failure::Refused | Failure::Invalid(_) | Failure::Script(_) => {
                false
            }
        }
    }
}

impl From<Failure> for Broken {
    fn from(failure: Failure) -> Broken {
        Broken { failure, usage: None }
    }
}

impl Effort {
    const ALL: [Effort; 4] = [Effort::None, Effort::Low, Effort::Medium, Effort::High];

    pub fn as_str(self) -> &'static str {
        match self {
            Effort::None => "none",
            Effort::Low => "low",
            Effort::Medium => "medium",
            Effort::High => "high",
        }
    }

    /// As tokens, for providers that want it so.
    pub fn budget(self) -> i32 {
        match self {
            Effort::None => 0,
            Effort::Low => 2_048,
            Effort::Medium => 8_192,
            Effort::High => 24_576,
        }
    }
}

impl FromStr for Effort {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Effort, &'static str> {
        let known = Effort::ALL.into_iter().find(|effort| effort.as_str() == text);
        known.ok_or("must be none, low, medium or high")
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
