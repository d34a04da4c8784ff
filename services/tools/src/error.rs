use std::{io, time::Duration};

use proto::error::v1::Reason;
use sandbox::Tier;
use tonic::Status;

use crate::{
    call::{OutputRef, ProcessId, SessionId, ToolCallId, WorkspaceId},
    store::snapshots::Which,
    workspaces::Limits,
};

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// When to come back to a server that was busy.
const RETRY: Duration = Duration::from_secs(1);

/// What can go wrong with a call as such, in words the caller understands. What goes wrong
/// inside of a tool is an outcome and never comes here.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("invalid {field}: {problem}")]
    Invalid { field: &'static str, problem: String },

    #[error("page_token is not one of ours")]
    InvalidCursor,

    #[error("epoch {epoch} of session {session_id} is over, {current_epoch} is in force")]
    EpochStale { session_id: SessionId, epoch: i64, current_epoch: i64 },

    #[error("tool call {0} was started before and is never run again")]
    CallRepeated(ToolCallId),

    #[error(
        "this machine's sandbox is of tier {tier}, {minimum_tier} is demanded; it lacks {missing}"
    )]
    SandboxUnavailable { tier: Tier, minimum_tier: Tier, missing: String },

    #[error("this server does as much at once as it may")]
    Overloaded,

    #[error("there is no workspace {0}, or nothing has used it yet")]
    WorkspaceNotFound(WorkspaceId),

    #[error("request_id {0:?} was used before for something else")]
    RequestIdReused(String),

    #[error(
        "workspace {id} is full: it may hold {} bytes in {} files, nested at most 128 deep",
        limits.bytes, limits.files
    )]
    WorkspaceFull { id: WorkspaceId, limits: Limits },

    #[error("workspace {0} is in use, or being changed as a whole")]
    WorkspaceBusy(WorkspaceId),

    #[error("workspace {0} is not empty, and only an empty one can be filled")]
    WorkspaceNotEmpty(WorkspaceId),

    #[error("workspace {workspace_id} has no snapshot {which}")]
    SnapshotNotFound { workspace_id: WorkspaceId, which: Which },

    #[error("there is no {0:?} in the workspace")]
    PathNotFound(String),

    #[error("{0:?} leads out of the workspace")]
    PathOutside(String),

    #[error("there is no output {0}, or it has expired")]
    OutputNotFound(OutputRef),

    #[error("session {0} was deleted")]
    SessionNotFound(SessionId),

    #[error("there is no process {0}, or it was over long ago")]
    ProcessNotFound(ProcessId),

    #[error("process {id} is {status}")]
    ProcessOver { id: ProcessId, status: String },

    #[error("the input of process {0} is closed")]
    ProcessInputClosed(ProcessId),

    #[error("the {scope} runs {limit} processes, which is as many as it may")]
    ProcessLimit { scope: &'static str, limit: i64 },

    #[error("process {0} runs on another server")]
    Elsewhere(ProcessId),

    #[error("process {0} printed faster than it was read, attach again from the last offset")]
    ReaderTooSlow(ProcessId),
    #[error("there is no rule, hook or MCP server {0:?} here")]
    PolicyNotFound(String),

    #[error("MCP server {id}: {why}")]
    McpUnavailable { id: String, why: String },

    #[error("file system failed")]
    Files(#[from] io::Error),

    #[error("database failed")]
    Database(#[from] sqlx::Error),
}

/// The only place where our errors meet gRPC.
impl From<Error> for Status {
    fn from(error: Error) -> Status {
        let (reason, metadata) = match &error {
            Error::Invalid { field, problem } => return chassis::invalid(field, problem),
            Error::InvalidCursor => {
                (Reason::InvalidCursor, vec![("field", "page_token".to_owned())])
            }
            Error::EpochStale { session_id, epoch, current_epoch } => (
                Reason::EpochStale,
                vec![
                    ("session_id", session_id.to_string()),
                    ("epoch", epoch.to_string()),
                    ("current_epoch", current_epoch.to_string()),
                ],
            ),
            Error::CallRepeated(id) => {
                (Reason::CallRepeated, vec![("tool_call_id", id.to_string())])
            }
            Error::SandboxUnavailable { tier, minimum_tier, missing } => (
                Reason::SandboxUnavailable,
                vec![
                    ("tier", tier.to_string()),
                    ("minimum_tier", minimum_tier.to_string()),
                    ("missing", missing.clone()),
                ],
            ),
            Error::Overloaded => return chassis::overloaded(error.to_string()),
            Error::WorkspaceNotFound(id) => {
                (Reason::WorkspaceNotFound, vec![("workspace_id", id.to_string())])
            }
            Error::RequestIdReused(id) => {
                (Reason::RequestIdReused, vec![("request_id", id.clone())])
            }
            Error::WorkspaceFull { id, limits } => (
                Reason::WorkspaceFull,
                vec![
                    ("workspace_id", id.to_string()),
                    ("quota_bytes", limits.bytes.to_string()),
                    ("quota_files", limits.files.to_string()),
                ],
            ),
            Error::WorkspaceBusy(id) => {
                (Reason::WorkspaceBusy, vec![("workspace_id", id.to_string())])
            }
            Error::WorkspaceNotEmpty(id) => {
                (Reason::WorkspaceNotEmpty, vec![("workspace_id", id.to_string())])
            }
            Error::SnapshotNotFound { workspace_id, which } => (
                Reason::SnapshotNotFound,
                vec![
                    ("workspace_id", workspace_id.to_string()),
                    ("snapshot_id", which.to_string()),
                ],
            ),
            Error::PathNotFound(path) => (Reason::PathNotFound, vec![("path", path.clone())]),
            Error::PathOutside(path) => (Reason::PathOutside, vec![("path", path.clone())]),
            Error::OutputNotFound(id) => {
                (Reason::OutputNotFound, vec![("output_ref", id.to_string())])
            }
            Error::SessionNotFound(id) => {
                (Reason::SessionNotFound, vec![("session_id", id.to_string())])
            }
            Error::ProcessNotFound(id) => {
                (Reason::ProcessNotFound, vec![("process_id", id.to_string())])
            }
            Error::ProcessOver { id, status } => (
                Reason::ProcessOver,
                vec![("process_id", id.to_string()), ("status", status.clone())],
            ),
            Error::ProcessInputClosed(id) => {
                (Reason::ProcessInputClosed, vec![("process_id", id.to_string())])
            }
            Error::ProcessLimit { scope, limit } => (
                Reason::ProcessLimit,
                vec![("scope", (*scope).to_owned()), ("limit", limit.to_string())],
            ),
            Error::Elsewhere(_) => return chassis::unavailable("tools", RETRY),
            Error::ReaderTooSlow(id) => {
                (Reason::ReaderTooSlow, vec![("process_id", id.to_string())])
            }
            Error::PolicyNotFound(id) => (Reason::PolicyNotFound, vec![("id", id.clone())]),
            Error::McpUnavailable { id, .. } => {
                (Reason::DependencyUnavailable, vec![("dependency", id.clone())])
            }
            Error::Files(error) => return chassis::internal(error),
            Error::Database(error) => return chassis::database_error(error),
        };
        chassis::status(reason, &error, metadata)
    }
}
