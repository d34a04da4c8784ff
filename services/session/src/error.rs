use chassis::{ParseIdError, status};
use proto::error::v1::Reason;
use tonic::Status;

use crate::ids::{
    ActionId, ItemId, JobId, MessageId, SessionId, SubagentId, TaskId, TrialId, TurnId, WorkspaceId,
};

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

    #[error("turn {turn_id} is over, there is nothing to interrupt")]
    TurnOver { turn_id: TurnId, status: String },

    #[error("session {0} runs no turn, there is nothing to interrupt")]
    NothingRuns(SessionId),

    #[error("session {session_id} has no action {action_id}")]
    ActionNotFound { session_id: SessionId, action_id: ActionId },

    #[error("action {action_id} is {status}, the first answer stands")]
    ActionResolved { action_id: ActionId, status: String },

    #[error("action {action_id} does not take this answer: {problem}")]
    ActionWrongAnswer { action_id: ActionId, allowed: &'static str, problem: String },

    #[error("session {id} is busy, and the run policy says to refuse")]
    SessionBusy { id: SessionId, turn_id: Option<TurnId> },

    #[error("session {id} has {limit} turns waiting, which is as many as it may")]
    QueueFull { id: SessionId, limit: i32 },

    #[error("turn {turn_id} is not queued, it is {status}")]
    TurnNotQueued { session_id: SessionId, turn_id: TurnId, status: String },

    #[error("session {id} is not at rest: {problem}")]
    NotAtRest { id: SessionId, turn_id: Option<TurnId>, problem: &'static str },

    #[error("session {session_id} has no visible message {message_id}")]
    MessageNotFound { session_id: SessionId, message_id: MessageId },

    #[error("session {id} cannot be rewound so: {problem}")]
    NothingToRewind { id: SessionId, problem: String },

    #[error("the files of {workspace_id} were not kept before they changed after {message_id}")]
    FilesNotKept { workspace_id: WorkspaceId, message_id: MessageId },

    #[error("request id {0} was used before for something else")]
    RequestIdReused(String),

    #[error("agent {0} not found")]
    AgentNotFound(String),

    #[error("subagent {0} not found")]
    SubagentNotFound(SubagentId),

    #[error("subagent {0} has finished and takes no more input; spawn another")]
    SubagentFinished(SubagentId),

    #[error("session {0} is a subagent that has finished and takes no more input")]
    ChildFinished(SessionId),

    #[error("agent {0} ships with the server and cannot be deleted")]
    AgentBuiltIn(String),

    #[error("invalid manifest: {field}: {problem}")]
    AgentInvalid { field: &'static str, problem: String },

    #[error("there is no {scope} memory {name}")]
    MemoryNotFound { scope: &'static str, name: String },

    #[error("task {0} not found")]
    TaskNotFound(TaskId),

    #[error("task {id} is {status}, which does not allow this")]
    TaskWrongStatus { id: TaskId, status: String },

    #[error("an edge from task {id} to {target_id} would make a circle")]
    TaskCycle { id: TaskId, target_id: TaskId },

    #[error("job {0} not found")]
    JobNotFound(JobId),

    #[error("job {job_id} has no item {id}")]
    JobItemNotFound { job_id: JobId, id: ItemId },

    #[error("{} is {status}, which does not allow this", about(*job_id, *item_id))]
    JobWrongStatus { job_id: JobId, item_id: Option<ItemId>, status: String },

    #[error("trial {0} not found")]
    TrialNotFound(TrialId),

    #[error("trial {0} has another reward already")]
    TrialRewarded(TrialId),

    #[error("the cursor in {0} is not one of ours")]
    InvalidCursor(&'static str),

    #[error("session {id} ends at sequence {last}, before {after}")]
    CursorAhead { id: SessionId, after: i64, last: i64 },

    #[error("session {id} no longer holds what follows sequence {after}; it goes on at {first}")]
    CursorExpired { id: SessionId, after: i64, first: i64 },

    #[error("this reader did not keep up, subscribe again after sequence {last}")]
    ReaderTooSlow { id: SessionId, last: i64 },

    #[error("this watcher did not keep up, list the sessions and watch again")]
    WatcherTooSlow,

    #[error("there is no evidence of {scope} {id}")]
    EvidenceNotFound { scope: &'static str, id: String },

    #[error("invalid import, line {line}: {problem}")]
    ImportInvalid { line: usize, problem: String },

    #[error("key {0} not found")]
    KeyNotFound(String),

    #[error("a key cannot hold the scope {0}, which its creator does not hold")]
    ScopeNotHeld(String),

    #[error("as many sessions are being imported as may be")]
    Overloaded,

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
            Error::TurnOver { turn_id, status } => (
                Reason::TurnOver,
                vec![("turn_id", turn_id.to_string()), ("status", status.clone())],
            ),
            Error::NothingRuns(_) => (Reason::TurnOver, vec![]),
            Error::ActionNotFound { session_id, action_id } => (
                Reason::ActionNotFound,
                vec![("session_id", session_id.to_string()), ("action_id", action_id.to_string())],
            ),
            Error::ActionResolved { action_id, status } => (
                Reason::ActionResolved,
                vec![("action_id", action_id.to_string()), ("status", status.clone())],
            ),
            Error::ActionWrongAnswer { action_id, allowed, .. } => (
                Reason::ActionWrongAnswer,
                vec![("action_id", action_id.to_string()), ("allowed", (*allowed).to_owned())],
            ),
            Error::SessionBusy { id, turn_id } | Error::NotAtRest { id, turn_id, .. } => (
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
            Error::TurnNotQueued { session_id, turn_id, status } => (
                Reason::TurnNotQueued,
                vec![
                    ("session_id", session_id.to_string()),
                    ("turn_id", turn_id.to_string()),
                    ("status", status.clone()),
                ],
            ),
            Error::MessageNotFound { session_id, message_id } => (
                Reason::MessageNotFound,
                vec![
                    ("session_id", session_id.to_string()),
                    ("message_id", message_id.to_string()),
                ],
            ),
            Error::NothingToRewind { id, .. } => {
                (Reason::NothingToRewind, vec![("session_id", id.to_string())])
            }
            Error::FilesNotKept { workspace_id, message_id } => (
                Reason::SnapshotNotFound,
                vec![
                    ("workspace_id", workspace_id.to_string()),
                    ("snapshot_id", String::new()),
                    ("message_id", message_id.to_string()),
                ],
            ),
            Error::RequestIdReused(id) => {
                (Reason::RequestIdReused, vec![("request_id", id.clone())])
            }
            Error::AgentNotFound(agent) | Error::AgentBuiltIn(agent) => {
                (Reason::AgentNotFound, vec![("agent", agent.clone())])
            }
            Error::SubagentNotFound(id) => {
                (Reason::SubagentNotFound, vec![("subagent_id", id.to_string())])
            }
            Error::SubagentFinished(id) => {
                (Reason::SubagentFinished, vec![("subagent_id", id.to_string())])
            }
            Error::ChildFinished(id) => {
                let id = SubagentId::from_uuid(id.uuid());
                (Reason::SubagentFinished, vec![("subagent_id", id.to_string())])
            }
            Error::AgentInvalid { field, .. } => {
                (Reason::AgentInvalid, vec![("field", (*field).to_owned())])
            }
            Error::MemoryNotFound { scope, name } => (
                Reason::MemoryNotFound,
                vec![("scope", (*scope).to_owned()), ("name", name.clone())],
            ),
            Error::TaskNotFound(id) => (Reason::TaskNotFound, vec![("task_id", id.to_string())]),
            Error::TaskWrongStatus { id, status } => (
                Reason::TaskWrongStatus,
                vec![("task_id", id.to_string()), ("status", status.clone())],
            ),
            Error::TaskCycle { id, target_id } => (
                Reason::TaskCycle,
                vec![("task_id", id.to_string()), ("target_task_id", target_id.to_string())],
            ),
            Error::JobNotFound(id) => (Reason::JobNotFound, vec![("job_id", id.to_string())]),
            Error::JobItemNotFound { job_id, id } => (
                Reason::JobItemNotFound,
                vec![("job_id", job_id.to_string()), ("item_id", id.to_string())],
            ),
            Error::JobWrongStatus { job_id, item_id, status } => (
                Reason::JobWrongStatus,
                vec![
                    ("job_id", job_id.to_string()),
                    ("item_id", item_id.map(|id| id.to_string()).unwrap_or_default()),
                    ("status", status.clone()),
                ],
            ),
            Error::TrialNotFound(id) => (Reason::TrialNotFound, vec![("trial_id", id.to_string())]),
            Error::TrialRewarded(id) => (Reason::TrialRewarded, vec![("trial_id", id.to_string())]),
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
            Error::CursorExpired { id, after, first } => (
                Reason::CursorExpired,
                vec![
                    ("session_id", id.to_string()),
                    ("after_sequence", after.to_string()),
                    ("first_sequence", first.to_string()),
                ],
            ),
            Error::ReaderTooSlow { id, last } => (
                Reason::ReaderTooSlow,
                vec![("session_id", id.to_string()), ("last_sequence", last.to_string())],
            ),
            Error::WatcherTooSlow => (Reason::ReaderTooSlow, vec![]),
            Error::EvidenceNotFound { scope, id } => {
                (Reason::EvidenceNotFound, vec![("scope", (*scope).to_owned()), ("id", id.clone())])
            }
            Error::ImportInvalid { line, problem } => (
                Reason::ImportInvalid,
                vec![("line", line.to_string()), ("problem", problem.clone())],
            ),
            Error::KeyNotFound(id) => (Reason::KeyNotFound, vec![("key_id", id.clone())]),
            Error::ScopeNotHeld(scope) => (Reason::ScopeMissing, vec![("scope", scope.clone())]),
            Error::Overloaded => return chassis::overloaded(error.to_string()),
            Error::Stopping => (Reason::Stopping, vec![]),
            Error::Database(cause) => return chassis::database_error(cause),
            Error::Json(_) | Error::Corrupt(_) => return chassis::internal(&error),
        };
        status(reason, &error, metadata)
    }
}

/// Whose status it is.
fn about(job_id: JobId, item_id: Option<ItemId>) -> String {
    item_id.map_or_else(|| format!("job {job_id}"), |id| format!("item {id} of job {job_id}"))
}

/// Reads a field that is an id.
pub fn parse<T: std::str::FromStr<Err = ParseIdError>>(
    field: &'static str,
    text: &str,
) -> Result<T> {
    text.parse().map_err(|error: ParseIdError| Error::Invalid { field, problem: error.to_string() })
}
