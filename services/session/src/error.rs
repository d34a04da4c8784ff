use chassis::{ParseIdError, status};
use proto::error::v1::Reason;
use tonic::Status;

use crate::ids::{SessionId, TurnId};

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong, in words the caller understands.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("invalid {field}: {problem}")]
    Invalid { field: &'static str, problem: String },

    #[error("session {0} not found")]
    SessionNotFound(SessionId),

    #[error("session {session_id} has no turn {turn_id}")]
    TurnNotFound { session_id: SessionId, turn_id: TurnId },

    #[error("session {id} is busy, and the run policy says to refuse")]
    SessionBusy { id: SessionId, turn_id: Option<TurnId> },

    #[error("session {id} has {limit} turns waiting, which is as many as it may")]
    QueueFull { id: SessionId, limit: i32 },

    #[error("request id {0} was used before for something else")]
    RequestIdReused(String),

    #[error("agent {0} not found")]
    AgentNotFound(String),

    #[error("invalid manifest: {field}: {problem}")]
    AgentInvalid { field: &'static str, problem: String },

    #[error("the cursor in {0} is not one of ours")]
    InvalidCursor(&'static str),

    #[error("session {id} ends at sequence {last}, before {after}")]
    CursorAhead { id: SessionId, after: i64, last: i64 },

    #[error("key {0} not found")]
    KeyNotFound(String),

    #[error("a key cannot hold the scope {0}, which its creator does not hold")]
    ScopeNotHeld(String),

    #[error("this server is stopping, resume on another")]
    Stopping,

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
            Error::SessionNotFound(id) => {
                (Reason::SessionNotFound, vec![("session_id", id.to_string())])
            }
            Error::TurnNotFound { session_id, turn_id } => (
                Reason::TurnNotFound,
                vec![("session_id", session_id.to_string()), ("turn_id", turn_id.to_string())],
            ),
            Error::SessionBusy { id, turn_id } => (
                Reason::SessionBusy,
                vec![
                    ("session_id", id.to_string()),
                    ("turn_id", turn_id.map(|id| id.to_string()).unwrap_or_default()),
                ],
            ),
            Error::QueueFull { id, limit } => (
                Reason::QueueFull,
                vec![("session_id", id.to_string()), ("limit", limit.to_string())],
            ),
            Error::RequestIdReused(id) => {
                (Reason::RequestIdReused, vec![("request_id", id.clone())])
            }
            Error::AgentNotFound(agent) => (Reason::AgentNotFound, vec![("agent", agent.clone())]),
            Error::AgentInvalid { field, .. } => {
                (Reason::AgentInvalid, vec![("field", (*field).to_owned())])
            }
            Error::InvalidCursor(field) => {
                (Reason::InvalidCursor, vec![("field", (*field).to_owned())])
            }
            Error::CursorAhead { id, after, last } => (
                Reason::CursorAhead,
                vec![
                    ("session_id", id.to_string()),
                    ("after_sequence", after.to_string()),
                    ("last_sequence", last.to_string()),
                ],
            ),
            Error::KeyNotFound(id) => (Reason::KeyNotFound, vec![("key_id", id.clone())]),
            Error::ScopeNotHeld(scope) => (Reason::ScopeMissing, vec![("scope", scope.clone())]),
            Error::Stopping => (Reason::Stopping, vec![]),
            Error::Database(cause) => return chassis::database_error(cause),
            Error::Json(_) | Error::Corrupt(_) => return chassis::internal(&error),
        };
        status(reason, &error, metadata)
    }
}

/// Reads a field that is an id.
pub fn parse<T: std::str::FromStr<Err = ParseIdError>>(
    field: &'static str,
    text: &str,
) -> Result<T> {
    text.parse().map_err(|error: ParseIdError| Error::Invalid { field, problem: error.to_string() })
}
