use std::time::Duration;

use jiff::Timestamp;
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

    #[error("{limit} for this {scope} is {value}, and that is in use")]
    HostRateLimited { limit: String, scope: String, value: i64, retry_after: Duration },

    #[error(
        "the quota {quota} for this {scope} is {value}, of which {used} is used, and this call may take {needed}: \
         wait until {resets_at}, ask for fewer tokens with max_output_tokens, or have the limit raised"
    )]
    QuotaBlocked {
        quota: String,
        scope: String,
        value: i64,
        used: i64,
        needed: i64,
        resets_at: Timestamp,
    },

    #[error(
        "budget {budget_id} has {remaining_micros} millionths left and this call may cost {needed_micros}: \
         have the budget raised, ask for fewer tokens with max_output_tokens, or use a cheaper model"
    )]
    BudgetExceeded { budget_id: String, remaining_micros: i64, needed_micros: i64 },

    #[error("request_id {0} was used before for another budget")]
    RequestIdReused(String),

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

    #[error("{dependency} does not answer")]
    Unavailable { dependency: &'static str, retry_after: Duration },

    #[error("database failed")]
    Database(#[from] sqlx::Error),

    #[error("the database holds what we did not write: {0}")]
    Corrupt(&'static str),
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
            Error::HostRateLimited { limit, scope, retry_after, .. } => {
                retry = Some(*retry_after);
                (Reason::RateLimited, vec![("limit", limit.clone()), ("scope", scope.clone())])
            }
            Error::QuotaBlocked { quota, resets_at, .. } => (
                Reason::QuotaBlocked,
                vec![("quota", quota.clone()), ("resets_at", resets_at.to_string())],
            ),
            Error::BudgetExceeded { budget_id, remaining_micros, needed_micros } => (
                Reason::BudgetExceeded,
                vec![
                    ("budget_id", budget_id.clone()),
                    ("remaining_micros", remaining_micros.to_string()),
                    ("needed_micros", needed_micros.to_string()),
                ],
            ),
            Error::RequestIdReused(request_id) => {
                (Reason::RequestIdReused, vec![("request_id", request_id.clone())])
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
            Error::Unavailable { dependency, retry_after } => {
                return chassis::unavailable(dependency, *retry_after);
            }
            Error::Database(cause) => return chassis::database_error(cause),
            Error::Corrupt(_) => return chassis::internal(&error),
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
