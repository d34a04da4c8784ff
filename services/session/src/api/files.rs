//! Puts the files of a session back together with its conversation.
//!
//! Files come first, because that is what may fail for reasons that nobody here knows, and
//! because it can be repeated: as long as the messages are visible, the same call does the same
//! again. Between the two there is no lock: a turn that is submitted in that moment makes the
//! rewind fail, and then the files are taken back, which the tools service kept meanwhile.

use std::time::Duration;

use chassis::Caller;
use proto::tools::v1::RestoreWorkspaceRequest;
use tonic::Status;

use super::Api;
use crate::{
    ids::{MessageId, SessionId},
    store,
};

/// How long a large workspace may take to be copied.
const PATIENCE: Duration = Duration::from_secs(120);

/// What was put back, and what was there before.
pub struct Restored {
    workspace_id: String,
    pub snapshot_id: String,
    replaced_snapshot_id: String,
}

/// Puts the workspace back as it was when a message was sent. `None`: it is as it was.
pub async fn restore(
    api: &Api,
    caller: &Caller,
    id: SessionId,
    message_id: MessageId,
) -> Result<Option<Restored>, Status> {
    let files = store::history::files_at(&api.host.db, &caller.tenant, id, message_id).await?;
    let Some(snapshot_id) = files.snapshot_id else { return Ok(None) };
    let workspace_id = files.workspace_id.to_string();
    let replaced_snapshot_id = put_back(api, caller, &workspace_id, &snapshot_id).await?;
    Ok(Some(Restored { workspace_id, snapshot_id, replaced_snapshot_id }))
}

/// The conversation stays, so the files do, too.
pub async fn take_back(api: &Api, caller: &Caller, restored: Restored) {
    let Restored { workspace_id, replaced_snapshot_id, .. } = restored;
    if let Err(status) = put_back(api, caller, &workspace_id, &replaced_snapshot_id).await {
        tracing::warn!(
            %status,
            workspace.id = workspace_id,
            snapshot.id = replaced_snapshot_id,
            "files were put back and the conversation was not; the snapshot has what was there"
        );
    }
}

async fn put_back(
    api: &Api,
    caller: &Caller,
    workspace_id: &str,
    snapshot_id: &str,
) -> Result<String, Status> {
    let (mut client, peer) = api.host.workspaces();
    let request = RestoreWorkspaceRequest {
        workspace_id: workspace_id.to_owned(),
        snapshot_id: snapshot_id.to_owned(),
        ..RestoreWorkspaceRequest::default()
    };
    let request = peer.request_within(PATIENCE, caller, request);
    let answer = client.restore_workspace(request).await.map_err(|status| peer.failed(&status))?;
    Ok(answer.into_inner().replaced_snapshot_id)
}
