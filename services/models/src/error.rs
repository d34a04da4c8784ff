use std::time::Duration;

use proto::error::v1::Reason;
use tonic::Status;
use tonic_types::StatusExt as _;

use crate::{catalogue::Model, provider::Failure, script};

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong, in words the caller understands.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("invalid {field}: {problem}")]
    Invalid { field: String, problem: String },

    #[error("page_token is not one of ours")]
    InvalidCursor,

    #[error("model {0} not found")]
    ModelNotFound(String),

    #[error("budget {0} not found")]
    BudgetNotFound(String),

    #[error("no model can serve this {profile} request: {excluded}")]
    RoutingNotPossible { profile: String, excluded: String },

    #[error("the prompt has about {tokens} tokens and {model} reads at most {context}")]
    ContextOverflow { model: String, tokens: i32, context: i32 },

    #[error("{provider}/{model} failed: {problem}")]
    ProviderTransient { provider: String, model: String, problem: String },

    #[error("{provider} failed too often and is left alone for a while")]
    ProviderRests { provider: String, model: String, retry_after: Duration },

    #[error("{provider}/{model} is at its rate limit")]
    RateLimited { provider: String, model: String, retry_after: Duration },

    #[error("{provider} refused our credential")]
    ProviderAuth { provider: String },

    #[error("{provider}/{model} refused the content")]
    ContentRefused { provider: String, model: String },

    #[error("{provider}/{model} calls the request invalid: {problem}")]
    ProviderInvalidRequest { provider: String, model: String, problem: String },

    #[error("{provider}/{model} stopped in the middle of its answer: {cause}")]
    StreamCut { provider: String, model: String, cause: Failure },

    #[error(transparent)]
    Script(#[from] script::Error),

    #[error("this server is stopping, call again")]
    Stopping,
}

impl Error {
    /// What a provider's failure is to our caller. Before the first delta trying again
    /// repeats nothing, so the kind of failure matters; after it, that it is one.
    pub fn of(failure: Failure, model: &Model, tokens: i32, before_first_delta: bool) -> Error {
        let (context, name) = (model.context_tokens, model.name());
        let (provider, model) = (model.provider.clone(), model.model.clone());
        if !before_first_delta {
            return Error::StreamCut { provider, model, cause: failure };
        }
        match failure {
            Failure::Transient(problem) => Error::ProviderTransient { provider, model, problem },
            Failure::Cut => {
                let problem = "it broke off before its first word".to_owned();
                Error::ProviderTransient { provider, model, problem }
            }
            Failure::RateLimited { retry_after } => {
                Error::RateLimited { provider, model, retry_after }
            }
            Failure::Auth => Error::ProviderAuth { provider },
            Failure::Overflow => Error::ContextOverflow { model: name, tokens, context },
            Failure::Refused => Error::ContentRefused { provider, model },
            Failure::Invalid(problem) => Error::ProviderInvalidRequest { provider, model, problem },
            Failure::Script(error) => Error::Script(error),
        }
    }
}

/// When to come back after a provider failed and did not say.
const RETRY: Duration = Duration::from_millis(500);

/// The only place where our errors meet gRPC.
impl From<Error> for Status {
    fn from(error: Error) -> Status {
        let who = |provider: &String, model: &String| {
            vec![("provider", provider.clone()), ("model", model.clone())]
        };
        let mut retry = None;
        let (reason, metadata) = match &error {
            Error::Invalid { field, problem } => return chassis::invalid(field, problem),
            Error::InvalidCursor => {
                (Reason::InvalidCursor, vec![("field", "page_token".to_owned())])
            }
            Error::ModelNotFound(model) => (Reason::ModelNotFound, vec![("model", model.clone())]),
            Error::BudgetNotFound(id) => (Reason::BudgetNotFound, vec![("budget_id", id.clone())]),
            Error::RoutingNotPossible { profile, excluded } => (
                Reason::RoutingNotPossible,
                vec![("profile", profile.clone()), ("excluded", excluded.clone())],
            ),
            Error::ContextOverflow { model, tokens, context } => (
                Reason::ContextOverflow,
                vec![
                    ("model", model.clone()),
                    ("tokens", tokens.to_string()),
                    ("context", context.to_string()),
                ],
            ),
            Error::ProviderTransient { provider, model, .. } => {
                retry = Some(RETRY);
                (Reason::ProviderTransient, who(provider, model))
            }
            Error::ProviderRests { provider, model, retry_after } => {
                retry = Some(*retry_after);
                (Reason::ProviderTransient, who(provider, model))
            }
            Error::RateLimited { retry_after, .. } => {
                retry = Some(*retry_after);
                let metadata = [("limit", "requests_per_minute"), ("scope", "provider")];
                (Reason::RateLimited, metadata.map(|(key, value)| (key, value.to_owned())).into())
            }
            Error::ProviderAuth { provider } => {
                (Reason::ProviderAuth, vec![("provider", provider.clone())])
            }
            Error::ContentRefused { provider, model } => {
                (Reason::ContentRefused, who(provider, model))
            }
            Error::ProviderInvalidRequest { provider, model, .. } => {
                (Reason::ProviderInvalidRequest, who(provider, model))
            }
            Error::StreamCut { provider, model, .. } => {
                (Reason::ProviderStreamCut, who(provider, model))
            }
            Error::Script(script::Error { line, problem }) => (
                Reason::ScriptInvalid,
                vec![("line", line.to_string()), ("problem", problem.clone())],
            ),
            Error::Stopping => (Reason::Stopping, vec![]),
        };
        let status = chassis::status(reason, &error, metadata);
        match retry {
            Some(delay) => with_retry(&status, delay),
            None => status,
        }
    }
}

/// The same failure, and when to come back.
fn with_retry(status: &Status, delay: Duration) -> Status {
    let mut details = status.get_error_details();
    details.set_retry_info(Some(delay));
    Status::with_error_details(status.code(), status.message(), details)
}
