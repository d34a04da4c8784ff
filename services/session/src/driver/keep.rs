//! Keeps the files of a workspace before a turn changes them, where the agent asks for it.

use std::{sync::Arc, time::Duration};

use chassis::Caller;
use futures::{
    FutureExt as _,
    future::{BoxFuture, Shared},
};
use proto::{
    event::v1::{Event, Payload, SnapshotUpdated, ToolMetadata},
    tools::v1::SnapshotWorkspaceRequest,
};
use tonic::Status;
use tracing::Instrument as _;

use super::{Driver, Inputs, own};
use crate::{
    host::Host,
    ids::ToolCallId,
    message::without_nul,
    passing::Asked,
    turn::{Effect, Input, Outcome, TASK},
};

/// How long a large workspace may take to be copied.
const PATIENCE: Duration = Duration::from_secs(60);

/// The snapshot that a turn asked for, for all calls that wait for it: whoever asks for one that is
/// being made has it made twice.
pub type Keeping = Shared<BoxFuture<'static, Result<String, Status>>>;

impl Driver {
    /// Puts off what begins a call until the turn's snapshot is there, if this call is the first that
    /// may change something; ends in `Kept`, or in `ToolEnded` with why it cannot be. A turn has one
    /// snapshot, by whoever drives it and however often it is asked for: its id is the request's.
    pub(super) async fn keeps_files_first(
        &mut self,
        id: ToolCallId,
        put_off: Effect,
        inputs: &Inputs,
    ) -> bool {
        if !self.agent.manifest.snapshots || self.files_kept {
            return false;
        }
        let Some(tool_use) = self.turn.call(id).filter(|tool_use| !tool_use.read_only) else {
            return false;
        };
        // What runs here changes no files, but a child may.
        let tool = &tool_use.tool;
        let here = match self.tools.get() {
            Some(tools) => own::is_here(tools, tool),
            None => own::hosts(&self.host, &self.caller, tool).await,
        };
        if here && tool != TASK {
            return false;
        }
        let (kept, inputs) = (self.keeping(), inputs.clone());
        let keeping = async move {
            let input = match kept.await {
                Ok(snapshot_id) => {
                    let fact = Some(Box::new(fact(snapshot_id)));
                    Input::Kept { id, fact, put_off: Box::new(put_off) }
                }
                Err(status) => Input::ToolEnded { id, outcome: refusal(&status) },
            };
            let _ = inputs.send(vec![input]).await;
        };
        self.tasks.spawn(keeping.in_current_span());
        true
    }

    /// The snapshot under way, or another one if that failed.
    fn keeping(&mut self) -> Keeping {
        let known = self.keeping.take().filter(|known| !matches!(known.peek(), Some(Err(_))));
        let keeping = known.unwrap_or_else(|| {
            let request = SnapshotWorkspaceRequest {
                workspace_id: self.workspace_id.to_string(),
                request_id: self.claim.turn_id.to_string(),
            };
            snapshot(self.host.clone(), self.caller.clone(), request).boxed().shared()
        });
        self.keeping.insert(keeping).clone()
    }

    /// Remembers that the files are kept. Several calls may have waited for the same snapshot, which is
    /// put on record once.
    pub(super) fn note_kept(&mut self, input: &mut Input) {
        if let Input::Kept { fact, .. } = input {
            fact.take_if(|_| self.files_kept);
            self.files_kept = true;
        }
    }
}

/// Asks for it until somebody is there.
async fn snapshot(
    host: Arc<Host>,
    caller: Caller,
    request: SnapshotWorkspaceRequest,
) -> Result<String, Status> {
    let mut asked = Asked::new(&host);
    loop {
        let (mut client, peer) = host.workspaces();
        let request = peer.request_within(PATIENCE, &caller, request.clone());
        let answer = client.snapshot_workspace(request).await;
        if !asked.is_worth_another(&answer).await {
            return Ok(answer?.into_inner().snapshot_id);
        }
    }
}

fn fact(snapshot_id: String) -> Event {
    let updated = SnapshotUpdated { snapshot_id: snapshot_id.clone(), ..Default::default() };
    Event {
        refs: [("snapshotId".to_owned(), snapshot_id)].into(),
        ..Event::fact(Payload::SnapshotUpdated(updated))
    }
}

fn refusal(status: &Status) -> Outcome {
    let why = status.message();
    let text = format!("not run, because the files could not be kept before: {why}");
    let (text, kind) = (without_nul(text), "unavailable".into());
    Outcome::Error { text, kind, metadata: ToolMetadata::default() }
}
