use chassis::telemetry;
use proto::{
    event::v1::{Payload, TurnSubmitted},
    session::v1 as pb,
};
use tonic::{Request, Response, Status};

use super::{Api, check, sessions::payload, stamp};
use crate::{
    error::{Error, Result, parse},
    ids::{MessageId, SessionId},
    message::Metadata,
    store::turns::NewTurn,
    submit::submit,
};

/// Stores a turn whose only purpose is a summary. It never waits: what would be summarized
/// behind other turns is not what the caller sees now.
pub async fn compact(
    api: &Api,
    request: Request<pb::CompactSessionRequest>,
) -> Result<Response<pb::CompactSessionResponse>, Status> {
    let caller = chassis::caller(&request)?;
    let request = request.into_inner();
    let id: SessionId = parse("session_id", &request.session_id)?;
    let request_id = check::request_id(&request.request_id)?;
    let (message_id, trace_parent) = (MessageId::new(), telemetry::traceparent());
    let metadata = Metadata { compact: true, ..Metadata::default() };
    let submitted = Payload::TurnSubmitted(TurnSubmitted {
        status: String::new(),
        message_id: message_id.to_string(),
        subject: caller.subject.clone(),
        source: "user".to_owned(),
    });
    let new = NewTurn {
        tenant: caller.tenant,
        session_id: id,
        message_id,
        request_id: request_id.to_owned(),
        request_digest: check::digest(&request),
        parts: vec![],
        metadata: serde_json::to_value(&metadata).map_err(Error::Json)?,
        submitted: payload(&submitted)?,
        subject: caller.subject,
        trace_parent,
        reject: true,
        queue_limit: api.host.config.max_queue,
    };
    let turn = submit(&api.host, new, stamp(api.host.replica)).await?;
    Ok(Response::new(pb::CompactSessionResponse { turn_id: turn.turn_id.to_string() }))
}
