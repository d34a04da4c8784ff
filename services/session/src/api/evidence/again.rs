//! Runs a recorded turn again, and says what differs.

use std::time::Duration;

use chassis::{Caller, telemetry};
use proto::{
    event::v1::{EvidenceChanged, Payload, TurnSubmitted},
    session::v1 as pb,
};
use sha2::{Digest as _, Sha256};
use tokio::time::timeout;

use crate::{
    api::{Api, check, sessions::payload, snapshot, stamp},
    error::{Error, Result, parse},
    evidence::{Past, Shown, differences},
    ids::{MessageId, SessionId, TurnId, WorkspaceId},
    message::{Message, Metadata, Replay, Role},
    seal::hex,
    store::{
        evidence::{self, NewReplay},
        messages, sessions,
        turns::{self, NewTurn},
    },
    submit::submit,
};

/// A wake-up that was lost costs this long.
const LOOK: Duration = Duration::from_millis(500);

/// The provider that answers the same again.
const SCRIPTED: &str = "scripted";

impl Api {
    pub(super) async fn again(
        &self,
        caller: Caller,
        request: pb::ReplayTurnRequest,
    ) -> Result<pb::ReplayTurnResponse> {
        let turn_id: TurnId = parse("turn_id", &request.turn_id)?;
        let request_id = check::request_id(&request.request_id)?.to_owned();
        // Sessions are created in several ways, and the same bytes may ask for each.
        let digest = format!("replay:{}", check::digest(&request));
        let (db, tenant) = (&self.host.db, &caller.tenant);
        let Some(parent_id) = evidence::session_of(db, tenant, turn_id).await? else {
            return Err(Error::EvidenceNotFound { scope: "turn", id: request.turn_id });
        };
        let (recorded, asked, provider) = self.past(parent_id, turn_id).await?;
        let Some(asked) = asked.filter(|_| is_over(&recorded.status)) else {
            let problem = "the turn has not ended, there is nothing to replay";
            return Err(Error::NotAtRest { id: parent_id, turn_id: Some(turn_id), problem });
        };
        let asked_again = provider == SCRIPTED;
        let parent = sessions::get(db, tenant, parent_id).await?;
        let id = SessionId::new();
        let new = NewReplay {
            id,
            tenant,
            parent_id,
            turn_id,
            // Where tools run they must not change the files of the turn that they repeat.
            workspace_id: match request.recorded_tools {
                true => parent.workspace_id,
                false => WorkspaceId::new(),
            },
            subject: &caller.subject,
            request_id: &request_id,
            request_digest: &digest,
        };
        let session_id = evidence::begin_replay(db, new, &stamp(self.host.replica)).await?;
        let replay = Replay {
            session_id: parent_id,
            turn_id,
            recorded_tools: request.recorded_tools,
            recorded_model: !asked_again,
        };
        let running = Running {
            api: self.clone(),
            caller,
            session_id,
            created: session_id == id,
            request_id,
            digest,
            asked,
            replay,
        };
        // In a task of its own: a caller that hangs up and comes back finds it done.
        let stop = self.stop.clone();
        let running = tokio::spawn(async move {
            let ran = stop.run_until_cancelled(running.run(&recorded, Shown { asked_again }));
            ran.await.unwrap_or(Err(Error::Stopping))
        });
        running.await.unwrap_or(Err(Error::Corrupt("a replay broke off")))
    }

    /// A turn as it is stored, the message that asked for it, and the provider that answered.
    async fn past(
        &self,
        session_id: SessionId,
        turn_id: TurnId,
    ) -> Result<(Past, Option<Message>, String)> {
        let mut db = snapshot::one_state(&self.host.db).await?;
        let turn = turns::of(&mut *db, session_id, &[turn_id]).await?.pop();
        let turn = turn.ok_or(Error::TurnNotFound { session_id, turn_id })?;
        let stored = messages::past(&mut db, session_id, turn_id, false).await?;
        db.commit().await?;
        let (history, steps) = messages::split(stored, turn_id)?;
        let view = turn.view.0;
        let provider = view.routing_decision.map(|decided| decided.provider).unwrap_or_default();
        let past = Past {
            status: turn.status,
            reason: view.status_reason,
            agent: view.agent,
            agent_version: view.agent_version,
            steps,
        };
        let asked = history.into_iter().find(|message| message.role == Role::User);
        Ok((past, asked, provider))
    }
}

fn is_over(status: &str) -> bool {
    matches!(status, "completed" | "failed" | "cancelled")
}

/// A replay under way.
struct Running {
    api: Api,
    caller: Caller,
    session_id: SessionId,
    /// By this call and not by one before it.
    created: bool,
    request_id: String,
    digest: String,
    asked: Message,
    replay: Replay,
}

impl Running {
    async fn run(self, recorded: &Past, shown: Shown) -> Result<pb::ReplayTurnResponse> {
        let (session_id, created) = (self.session_id, self.created);
        let (api, caller, replay) = (self.api.clone(), self.caller.clone(), self.replay.clone());
        let turn_id = self.submit().await?;
        let mut listener = api.hub.listen(session_id).await;
        let replayed = loop {
            let turn = turns::get(&api.host.db, &caller.tenant, session_id, turn_id).await?;
            if is_over(&turn.status) {
                break api.past(session_id, turn_id).await?.0;
            }
            let _ = timeout(LOOK, listener.notices.recv()).await;
        };
        let differences = differences(recorded, &replayed, shown);
        if created {
            let changed = Payload::EvidenceChanged(EvidenceChanged {
                evidence_id: session_id.to_string(),
                scope: "turn".to_owned(),
                change: "replayed".to_owned(),
                digest: hex(&Sha256::digest(differences.join("\n"))),
            });
            let (tenant, stamp) = (&caller.tenant, stamp(api.host.replica));
            let Replay { session_id: home, turn_id, .. } = replay;
            let changed = payload(&changed)?;
            let events =
                evidence::note(&api.host.db, tenant, home, Some(turn_id), &changed, &stamp).await?;
            api.host.bus.publish(tenant, home, events, false);
        }
        Ok(pb::ReplayTurnResponse { session_id: session_id.to_string(), differences })
    }

    async fn submit(self) -> Result<TurnId> {
        let message_id = MessageId::new();
        let submitted = Payload::TurnSubmitted(TurnSubmitted {
            status: String::new(),
            message_id: message_id.to_string(),
            subject: self.caller.subject.clone(),
            source: "replay".to_owned(),
        });
        let metadata = Metadata {
            replay: Some(self.replay),
            // Nobody waits for its questions.
            headless: true,
            queued_at: None,
            ..self.asked.metadata
        };
        let new = NewTurn {
            tenant: self.caller.tenant,
            session_id: self.session_id,
            message_id,
            request_id: self.request_id,
            request_digest: self.digest,
            parts: self.asked.parts,
            metadata: serde_json::to_value(&metadata)?,
            submitted: payload(&submitted)?,
            subject: self.caller.subject,
            trace_parent: telemetry::traceparent(),
            reject: false,
            queue_limit: self.api.host.config.max_queue,
        };
        let stamp = stamp(self.api.host.replica);
        Ok(submit(&self.api.host, new, stamp).await?.turn_id)
    }
}
