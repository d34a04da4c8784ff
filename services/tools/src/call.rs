use chassis::Tenant;
use proto::tools::v1::Permissions;

chassis::id!(SessionId, "ses");
chassis::id!(ToolCallId, "call");
chassis::id!(WorkspaceId, "ws");
chassis::id!(OutputRef, "out");
chassis::id!(SnapshotId, "snap");
chassis::id!(ReplicaId, "rpl");

/// One call of one tool, by one owner of a session.
#[derive(Debug, Clone)]
pub struct Call {
    pub tenant: Tenant,
    pub session_id: SessionId,

    /// Which owner calls. A later one has a higher epoch.
    pub epoch: i64,

    /// For correlation only.
    pub turn_id: String,
    pub step_id: String,

    pub tool_call_id: ToolCallId,
    pub tool: String,

    /// What the model wrote. It may be anything, also not JSON.
    pub input_json: String,
    pub workspace_id: WorkspaceId,

    /// The language of permissions is the contract's own.
    pub permissions: Permissions,

    /// Nobody is there to ask.
    pub headless: bool,
}
