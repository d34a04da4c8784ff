use chassis::{auth::Kind, telemetry};
use proto::{
    event::v1::{Event, Payload, TurnSubmitted},
    session::v1::{self as pb, submit_turn_request::RunPolicy, turn_service_server::TurnService},
};
use tonic::{Request, Response, Status};

use super::{Api, check, convert, sessions::payload, stamp};
use crate::{
    error::{Error, Result, parse},
    ids::{MessageId, SessionId},
    message::Metadata,
    store::{self, turns::NewTurn},
};

#[tonic::async_trait]
impl TurnService for Api {
    async fn submit_turn(
        &self,
        request: Request<pb::SubmitTurnRequest>,
    ) -> Result<Response<pb::SubmitTurnResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        let id: SessionId = parse("session_id", &request.session_id)?;
        let digest = check::digest(&request);
        let request_id = check::request_id(&request.request_id)?.to_owned();
        let policy = RunPolicy::try_from(request.run_policy)
            .map_err(|_| check::invalid("run_policy", "unknown value"))?;
        if request.trigger.is_some() && caller.kind != Kind::Service {
            return Err(check::invalid("trigger", "only the triggers service may set it").into());
        }
        let (metadata, agent) = metadata(&request)?;
        let parts = check::parts(request.parts)?;
        if parts.is_empty() && metadata.agent.is_none() && metadata.model.is_none() {
            let problem = "a message needs at least one part, or an agent or model to switch to";
            return Err(check::invalid("parts", problem).into());
        }
        if let Some(agent) = &agent {
            self.host.agent(&caller.tenant, agent).await?;
        }

        let (message_id, trace_parent) = (MessageId::new(), telemetry::traceparent());
        let submitted = Payload::TurnSubmitted(TurnSubmitted {
            status: String::new(),
            message_id: message_id.to_string(),
            subject: caller.subject.clone(),
            source: if request.trigger.is_some() { "trigger" } else { "user" }.to_owned(),
        });
        let new = NewTurn {
            tenant: &caller.tenant,
            session_id: id,
            message_id,
            request_id: &request_id,
            request_digest: &digest,
            parts: &parts,
            metadata: &serde_json::to_value(&metadata).map_err(Error::Json)?,
            submitted: &payload(&submitted)?,
            subject: &caller.subject,
            trace_parent: trace_parent.as_deref(),
            reject: policy == RunPolicy::Reject,
            queue_limit: self.host.config.max_queue,
        };
        let mut turn = store::turns::submit(&self.host.db, new, &stamp(self.host.replica)).await?;
        let ready = turn.events.iter().any(makes_ready);
        self.host.bus.publish(id, std::mem::take(&mut turn.events), ready);
        Ok(Response::new(convert::submitted(id, turn)))
    }

    async fn get_turn(
        &self,
        request: Request<pb::GetTurnRequest>,
    ) -> Result<Response<pb::GetTurnResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        let session_id = parse("session_id", &request.session_id)?;
        let turn_id = parse("turn_id", &request.turn_id)?;
        let turn = store::turns::get(&self.host.db, &caller.tenant, session_id, turn_id).await?;
        Ok(Response::new(pb::GetTurnResponse { turn: Some(convert::turn(session_id, turn)) }))
    }
}

/// Whether there is a turn to claim now: this one, or one that waited before it.
fn makes_ready(event: &Event) -> bool {
    match &event.payload {
        Some(Payload::TurnSubmitted(submitted)) => submitted.status == "accepted",
        Some(Payload::QueueChanged(changed)) => changed.change == "fired",
        _ => false,
    }
}

/// What is kept with the message, and the agent it switches to.
fn metadata(request: &pb::SubmitTurnRequest) -> Result<(Metadata, Option<String>)> {
    let agent = check::agent_id("agent", &request.agent)?.map(str::to_owned);
    let model = match check::text("model", &request.model, 200)? {
        "" => None,
        model => Some(model.to_owned()),
    };
    let metadata = Metadata {
        agent: agent.clone(),
        model,
        headless: request.headless || request.trigger.is_some(),
        trigger: request.trigger.as_ref().map(serde_json::to_value).transpose()?,
        client: check::metadata(&request.metadata_json)?,
        ..Metadata::default()
    };
    Ok((metadata, agent))
}
