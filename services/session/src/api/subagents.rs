//! The children that agents spawn, for clients that watch over them.

use std::time::Duration;

use chassis::{Caller, telemetry};
use proto::{
    event::v1::{Payload, TurnSubmitted},
    session::v1::{self as pb, subagent_service_server::SubagentService},
};
use tokio::time::{Instant, sleep};
use tonic::{Request, Response, Status};

use super::{Api, check, convert, sessions::payload, stamp};
use crate::{
    courier,
    error::{Error, Result, parse},
    ids::{MessageId, SessionId, SubagentId},
    message::{Metadata, Part},
    store::{self, subagents::Subagent, turns::NewTurn},
    submit::submit,
};

/// The most that one input may hold.
const MOST_INPUT: usize = 1024 * 1024;

/// How long a call waits for a child to end, and how often it looks.
const LONGEST: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(200);

/// What is left of a caller's patience for the answer.
const MARGIN: Duration = Duration::from_millis(250);

#[tonic::async_trait]
impl SubagentService for Api {
    async fn list_subagents(
        &self,
        request: Request<pb::ListSubagentsRequest>,
    ) -> Result<Response<pb::ListSubagentsResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        let id: SessionId = parse("session_id", &request.session_id)?;
        let limit = check::count("page_size", request.page_size, 50, 500)?;
        let after = match request.page_token.as_str() {
            "" => None,
            token => Some(token.parse().map_err(|_| Error::InvalidCursor("page_token"))?),
        };
        let (db, tenant) = (&self.host.db, &caller.tenant);
        store::sessions::get(db, tenant, id).await?;
        let mut subagents =
            store::subagents::list(db, tenant, id, request.recursive, after, limit + 1).await?;
        let more = subagents.len() as i64 > limit;
        subagents.truncate(limit as usize);
        let next_page_token = match subagents.last() {
            Some(last) if more => last.id.to_string(),
            _ => String::new(),
        };
        let subagents = subagents.into_iter().map(encode).collect::<Result<_>>()?;
        Ok(Response::new(pb::ListSubagentsResponse { subagents, next_page_token }))
    }

    async fn send_subagent_input(
        &self,
        request: Request<pb::SendSubagentInputRequest>,
    ) -> Result<Response<pb::SendSubagentInputResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        let id: SubagentId = parse("subagent_id", &request.subagent_id)?;
        let request_id = check::request_id(&request.request_id)?.to_owned();
        if request.text.is_empty() || request.text.len() > MOST_INPUT {
            return Err(check::invalid("text", "expected 1 byte to 1 MiB").into());
        }
        if request.text.contains('\0') {
            return Err(check::invalid("text", "must not contain NUL").into());
        }
        let subagent = store::subagents::get(&self.host.db, &caller.tenant, id).await?;

        let message_id = MessageId::new();
        let submitted = Payload::TurnSubmitted(TurnSubmitted {
            status: String::new(),
            message_id: message_id.to_string(),
            subject: caller.subject.clone(),
            source: "user".to_owned(),
        });
        let new = NewTurn {
            tenant: caller.tenant.clone(),
            session_id: subagent.child_id,
            message_id,
            request_id,
            request_digest: check::digest(&request),
            parts: vec![Part::text(request.text)],
            metadata: serde_json::to_value(Metadata::default()).map_err(Error::Json)?,
            submitted: payload(&submitted)?,
            subject: caller.subject.clone(),
            trace_parent: telemetry::traceparent(),
            reject: false,
            queue_limit: self.host.config.max_queue,
        };
        match submit(&self.host, new, stamp(self.host.replica)).await {
            Ok(_) => courier::deliver(&self.host, subagent.parent_id).await?,
            // Its session may have been deleted after it had ended.
            Err(Error::ChildFinished(_) | Error::SessionNotFound(_)) => {
                return Err(Error::SubagentFinished(id).into());
            }
            Err(error) => return Err(error.into()),
        }
        let subagent = Some(self.subagent(&caller, id).await?);
        Ok(Response::new(pb::SendSubagentInputResponse { subagent }))
    }

    async fn wait_subagent(
        &self,
        request: Request<pb::WaitSubagentRequest>,
    ) -> Result<Response<pb::WaitSubagentResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let patience = chassis::time_left(&request).map(|left| left.saturating_sub(MARGIN));
        let until = Instant::now() + patience.unwrap_or(LONGEST).min(LONGEST);
        let id = parse("subagent_id", &request.into_inner().subagent_id)?;
        loop {
            let subagent = self.subagent(&caller, id).await?;
            let over = !matches!(subagent.status.as_str(), "running" | "waiting");
            if over || Instant::now() >= until {
                return Ok(Response::new(pb::WaitSubagentResponse { subagent: Some(subagent) }));
            }
            if self.stop.run_until_cancelled(sleep(LOOK)).await.is_none() {
                return Err(Error::Stopping.into());
            }
        }
    }

    async fn close_subagent(
        &self,
        request: Request<pb::CloseSubagentRequest>,
    ) -> Result<Response<pb::CloseSubagentResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        let id = parse("subagent_id", &request.subagent_id)?;
        let reason = match check::text("reason", &request.reason, 500)? {
            "" => "somebody closed it",
            reason => reason,
        };
        let (db, tenant) = (&self.host.db, &caller.tenant);
        let subagent = store::subagents::get(db, tenant, id).await?;
        let below = store::subagents::open_below(db, tenant, subagent.child_id).await?;
        if subagent.outcome.is_none() {
            close(self, &caller, id, subagent.child_id, reason).await?;
        }
        for (below, child_id) in below {
            close(self, &caller, below, child_id, crate::subagent::ABORTED).await?;
        }
        let subagent = Some(self.subagent(&caller, id).await?);
        Ok(Response::new(pb::CloseSubagentResponse { subagent }))
    }
}

impl Api {
    async fn subagent(&self, caller: &Caller, id: SubagentId) -> Result<pb::Subagent> {
        encode(store::subagents::get(&self.host.db, &caller.tenant, id).await?)
    }
}

/// Asks one child to end, and sees to it that it hears of it now.
pub async fn close(
    api: &Api,
    caller: &Caller,
    id: SubagentId,
    child_id: SessionId,
    reason: &str,
) -> Result<()> {
    let Caller { tenant, subject, .. } = caller;
    store::subagents::close(&api.host.db, tenant, id, child_id, subject, reason).await?;
    courier::deliver(&api.host, child_id).await
}

fn encode(subagent: Subagent) -> Result<pb::Subagent> {
    let ended = subagent.outcome.map(|outcome| outcome.0.ended).unwrap_or_default();
    Ok(pb::Subagent {
        subagent_id: subagent.id.to_string(),
        agent: subagent.agent,
        session_id: subagent.child_id.to_string(),
        parent_session_id: subagent.parent_id.to_string(),
        parent_message_id: subagent.parent_message_id,
        tool_call_id: subagent.tool_call_id.to_string(),
        status: subagent.status,
        background: subagent.background,
        depth: subagent.depth,
        create_time: convert::timestamp(subagent.created_at),
        end_time: subagent.ended_at.and_then(convert::timestamp),
        output: ended.output,
        effective_permissions_json: serde_json::to_string(&subagent.permissions.0)?,
        reason: ended.reason,
    })
}
