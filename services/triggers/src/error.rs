use std::time::Duration;

use chassis::{ParseIdError, status};
use proto::error::v1::Reason;
use tonic::Status;
use tonic_types::{ErrorDetails, StatusExt as _};

use crate::ids::TriggerId;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong, in words the caller understands.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("invalid {field}: {problem}")]
    Invalid { field: String, problem: String },

    #[error("the page token is not one of ours")]
    InvalidCursor,

    #[error("request id {0} was used before for something else")]
    RequestIdReused(String),

    #[error("trigger {0} not found")]
    TriggerNotFound(String),

    #[error("the schedule never fires: {problem}")]
    NeverFires { field: String, problem: String },

    #[error("trigger {id} is {status}, so it does not fire")]
    NotActive { id: TriggerId, status: String },

    #[error("trigger {id} was dropped: {limit} is used up")]
    Throttled { id: TriggerId, limit: String, retry_after: Duration },

    #[error("firing {0} not found")]
    FiringNotFound(String),

    #[error("the wake-up cannot be kept: {problem}")]
    WakeupLimit { limit: String, problem: String },

    #[error("session {session_id} is no target for this trigger: nobody of this tenant knows it")]
    TargetForbidden { trigger_id: String, session_id: String },

    #[error("this server is stopping, call again")]
    Stopping,

    /// Another of our services said so.
    #[error("{}", .0.message())]
    Peer(Box<Status>),

    #[error("database failed")]
    Database(#[from] sqlx::Error),

    #[error("stored JSON cannot be read")]
    Json(#[from] serde_json::Error),

    #[error("{0}")]
    Corrupt(&'static str),
}

/// The only place where our errors meet gRPC.
impl From<Error> for Status {
    fn from(error: Error) -> Status {
        let (reason, metadata) = match &error {
            Error::Invalid { field, problem } => return chassis::invalid(field, problem),
            Error::InvalidCursor => (Reason::InvalidCursor, vec![("field", "page_token".into())]),
            Error::RequestIdReused(id) => {
                (Reason::RequestIdReused, vec![("request_id", id.clone())])
            }
            Error::TriggerNotFound(id) => {
                (Reason::TriggerNotFound, vec![("trigger_id", id.clone())])
            }
            Error::NeverFires { field, .. } => {
                (Reason::ScheduleNeverFires, vec![("field", field.clone())])
            }
            Error::NotActive { id, status } => (
                Reason::TriggerNotActive,
                vec![("trigger_id", id.to_string()), ("status", status.clone())],
            ),
            Error::Throttled { id, limit, retry_after } => {
                let metadata = vec![("trigger_id", id.to_string()), ("limit", limit.clone())];
                return patient(Reason::TriggerThrottled, &error, metadata, *retry_after);
            }
            Error::FiringNotFound(id) => (Reason::FiringNotFound, vec![("firing_id", id.clone())]),
            Error::WakeupLimit { limit, .. } => {
                (Reason::WakeupLimit, vec![("limit", limit.clone())])
            }
            Error::TargetForbidden { trigger_id, session_id } => (
                Reason::TargetForbidden,
                vec![("trigger_id", trigger_id.clone()), ("session_id", session_id.clone())],
            ),
            Error::Stopping => (Reason::Stopping, vec![]),
            Error::Peer(status) => return (**status).clone(),
            Error::Database(cause) => return chassis::database_error(cause),
            Error::Json(_) | Error::Corrupt(_) => return chassis::internal(&error),
        };
        status(reason, &error, metadata)
    }
}

/// A refusal that says when to come back.
fn patient(
    reason: Reason,
    error: &Error,
    metadata: Vec<(&str, String)>,
    retry_after: Duration,
) -> Status {
    let plain = status(reason, error, metadata);
    let info = plain.get_details_error_info();
    let mut details = ErrorDetails::with_retry_info(Some(retry_after));
    if let Some(info) = info {
        details.set_error_info(info.reason, info.domain, info.metadata);
    }
    Status::with_error_details(plain.code(), plain.message(), details)
}

pub fn invalid(field: impl Into<String>, problem: impl Into<String>) -> Error {
    Error::Invalid { field: field.into(), problem: problem.into() }
}

/// Reads a field that is an id.
pub fn parse<T: std::str::FromStr<Err = ParseIdError>>(field: &str, text: &str) -> Result<T> {
    text.parse().map_err(|error: ParseIdError| invalid(field, error.to_string()))
}
