//! Keeps the files of a workspace before a turn changes them, where the agent asks for it.

use std::time::Duration;

use proto::{
    event::v1::{Event, Payload, SnapshotUpdated, ToolMetadata},
    tools::v1::SnapshotWorkspaceRequest,
};

use tokio::select;
use tonic::Status;

use super::{Driver, own};
use crate::{
    ids::ToolCallId,
    message::without_nul,
    passing::Asked,
    time,
    turn::{Outcome, TASK},
};

/// How long a large workspace may take to be copied.
const PATIENCE: Duration = Duration::from_secs(60);

impl Driver {
    /// Takes the turn's snapshot if this call is the first that may change something. A turn has
    /// one, by whoever drives it: its id is the request's. What is put on record here is
    /// committed before the call runs.
    pub(super) async fn keep_files(&mut self, id: ToolCallId) -> Result<(), Outcome> {
        if !self.agent.manifest.snapshots || self.files_kept {
            return Ok(());
        }
        let Some(tool_use) = self.turn.call(id).filter(|tool_use| !tool_use.read_only) else {
            return Ok(());
        };
        // What runs here changes no files, but a child may.
        if tool_use.tool != TASK && own::hosts(&self.host, &self.caller, &tool_use.tool).await {
            return Ok(());
        }
        let snapshot_id = match self.snapshot().await {
            Ok(snapshot_id) => snapshot_id,
            Err(status) => {
                let text = format!(
                    "not run, because the files could not be kept before: {}",
                    status.message()
                );
                return Err(Outcome::Error {
                    text: without_nul(text),
                    kind: "unavailable".into(),
                    metadata: ToolMetadata::default(),
                });
            }
        };
        self.files_kept = true;
        let now = time::now();
        let updated = SnapshotUpdated { snapshot_id: snapshot_id.clone(), ..Default::default() };
        let kept = Event {
            timestamp: Some(time::to_proto(now)),
            trace_id: self.trace.trace_id.clone().unwrap_or_default(),
            span_id: self.trace.span_id.clone().unwrap_or_default(),
            refs: [("snapshotId".to_owned(), snapshot_id)].into(),
            ..Event::fact(Payload::SnapshotUpdated(updated))
        };
        self.writer.add(|pending| {
            pending.append(kept, now);
        });
        Ok(())
    }

    /// Asks for it until somebody is there, or somebody wants the turn stopped: nothing else is heard
    /// meanwhile.
    async fn snapshot(&self) -> Result<String, Status> {
        let mut signals = self.writer.signals();
        let mut asked = Asked::new(&self.host);
        loop {
            let (mut client, peer) = self.host.workspaces();
            let request = SnapshotWorkspaceRequest {
                workspace_id: self.workspace_id.to_string(),
                request_id: self.claim.turn_id.to_string(),
            };
            let request = peer.request_within(PATIENCE, &self.caller, request);
            let answer = client.snapshot_workspace(request).await;
            let goes_on = select! {
                goes_on = asked.is_worth_another(&answer) => goes_on,
                Ok(()) = signals.changed() => false,
            };
            if !goes_on {
                return Ok(answer?.into_inner().snapshot_id);
            }
        }
    }
}
