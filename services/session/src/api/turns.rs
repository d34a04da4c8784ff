use chassis::{auth::Kind, telemetry};
use proto::{
    event::v1::{Payload, TurnSubmitted},
    session::v1::{self as pb, submit_turn_request::RunPolicy, turn_service_server::TurnService},
};
use tonic::{Request, Response, Status};

use super::{Api, actions, check, convert, queue, sessions::payload, stamp};
use crate::{
    error::{Error, Result, parse},
    ids::{MessageId, SessionId},
    message::Metadata,
    store::{self, turns::NewTurn},
    submit::submit,
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
            tenant: caller.tenant,
            session_id: id,
            message_id,
            request_id,
            request_digest: digest,
            parts,
            metadata: serde_json::to_value(&metadata).map_err(Error::Json)?,
            submitted: payload(&submitted)?,
            subject: caller.subject,
            trace_parent,
            reject: policy == RunPolicy::Reject,
            queue_limit: self.host.config.max_queue,
        };
        let turn = submit(&self.host, new, stamp(self.host.replica)).await?;
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

    async fn list_queue(
        &self,
        request: Request<pb::ListQueueRequest>,
    ) -> Result<Response<pb::ListQueueResponse>, Status> {
        queue::list(self, request).await
    }

    async fn edit_queued_turn(
        &self,
        request: Request<pb::EditQueuedTurnRequest>,
    ) -> Result<Response<pb::EditQueuedTurnResponse>, Status> {
        queue::edit(self, request).await
    }

    async fn cancel_queued_turn(
        &self,
        request: Request<pb::CancelQueuedTurnRequest>,
    ) -> Result<Response<pb::CancelQueuedTurnResponse>, Status> {
        queue::cancel(self, request).await
    }

    async fn promote_queued_turn(
        &self,
        request: Request<pb::PromoteQueuedTurnRequest>,
    ) -> Result<Response<pb::PromoteQueuedTurnResponse>, Status> {
        queue::promote(self, request).await
    }

    async fn reorder_queue(
        &self,
        request: Request<pb::ReorderQueueRequest>,
    ) -> Result<Response<pb::ReorderQueueResponse>, Status> {
        queue::reorder(self, request).await
    }

    async fn resume_queue(
        &self,
        request: Request<pb::ResumeQueueRequest>,
    ) -> Result<Response<pb::ResumeQueueResponse>, Status> {
        queue::resume(self, request).await
    }

    async fn interrupt_turn(
        &self,
        request: Request<pb::InterruptTurnRequest>,
    ) -> Result<Response<pb::InterruptTurnResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        let session_id = parse("session_id", &request.session_id)?;
        let turn_id = match request.turn_id.as_str() {
            "" => None,
            text => Some(parse("turn_id", text)?),
        };
        let reason = check::text("reason", &request.reason, 500)?;
        let (db, bus) = (&self.host.db, &self.host.bus);
        let stamp = stamp(self.host.replica);
        let interrupted = store::turns::interrupt(
            db,
            &caller.tenant,
            session_id,
            turn_id,
            &caller.subject,
            reason,
            &stamp,
        )
        .await?;
        bus.publish(&caller.tenant, session_id, interrupted.events, interrupted.ready);
        if let Some(owner) = interrupted.owner {
            bus.nudge(owner);
        }
        let turn = store::turns::get(db, &caller.tenant, session_id, interrupted.turn_id).await?;
        Ok(Response::new(pb::InterruptTurnResponse { turn: Some(convert::turn(session_id, turn)) }))
    }

    async fn list_actions(
        &self,
        request: Request<pb::ListActionsRequest>,
    ) -> Result<Response<pb::ListActionsResponse>, Status> {
        actions::list(self, request).await
    }

    async fn respond_action(
        &self,
        request: Request<pb::RespondActionRequest>,
    ) -> Result<Response<pb::RespondActionResponse>, Status> {
        actions::respond(self, request).await
    }

    async fn answer_question(
        &self,
        request: Request<pb::AnswerQuestionRequest>,
    ) -> Result<Response<pb::AnswerQuestionResponse>, Status> {
        actions::answer(self, request).await
    }

    async fn reject_question(
        &self,
        request: Request<pb::RejectQuestionRequest>,
    ) -> Result<Response<pb::RejectQuestionResponse>, Status> {
        actions::reject(self, request).await
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
        trigger: request.trigger.as_ref().map(check::trigger).transpose()?,
        client: check::metadata(&request.metadata_json)?,
        ..Metadata::default()
    };
    Ok((metadata, agent))
}
