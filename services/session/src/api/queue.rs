//! The queue, as people change it.

use std::collections::HashSet;

use chassis::Caller;
use proto::{event::v1::Event, session::v1 as pb};
use tonic::{Request, Response, Status};

use super::{Api, check, convert, snapshot, stamp};
use crate::{
    error::{Result, parse},
    ids::{SessionId, TurnId},
    store, submit,
};

const MOST: usize = snapshot::MOST_QUEUED as usize;

pub async fn list(
    api: &Api,
    request: Request<pb::ListQueueRequest>,
) -> Result<Response<pb::ListQueueResponse>, Status> {
    let caller = chassis::caller(&request)?;
    let id = parse("session_id", &request.into_inner().session_id)?;
    let mut db = snapshot::one_state(&api.host.db).await?;
    let session = store::sessions::get(&mut *db, &caller.tenant, id).await?;
    let turns = store::queue::list(&mut *db, id).await?;
    let messages = snapshot::queued(&mut db, id).await?;
    let paused_by = match session.status.as_str() {
        _ if turns.is_empty() => "",
        "error" => "error",
        "waiting_on_approval" | "waiting_on_user_input" => "waiting",
        _ => "",
    };
    let messages = messages.iter().map(|message| convert::message(id, message));
    Ok(Response::new(pb::ListQueueResponse {
        turns: turns.into_iter().map(|turn| convert::turn(id, turn)).collect(),
        messages: messages.collect::<Result<_>>()?,
        paused_by: paused_by.to_owned(),
    }))
}

pub async fn edit(
    api: &Api,
    request: Request<pb::EditQueuedTurnRequest>,
) -> Result<Response<pb::EditQueuedTurnResponse>, Status> {
    let caller = chassis::caller(&request)?;
    let request = request.into_inner();
    let (id, turn_id) = ids(&request.session_id, &request.turn_id)?;
    let parts = check::parts(request.parts)?;
    let (db, stamp) = (&api.host.db, stamp(api.host.replica));
    let events = store::queue::edit(db, &caller.tenant, id, turn_id, &parts, &stamp).await?;
    let turn = changed(api, &caller, id, turn_id, events).await?;
    Ok(Response::new(pb::EditQueuedTurnResponse { turn: Some(turn) }))
}

pub async fn cancel(
    api: &Api,
    request: Request<pb::CancelQueuedTurnRequest>,
) -> Result<Response<pb::CancelQueuedTurnResponse>, Status> {
    let caller = chassis::caller(&request)?;
    let request = request.into_inner();
    let (id, turn_id) = ids(&request.session_id, &request.turn_id)?;
    let (db, stamp, subject) = (&api.host.db, stamp(api.host.replica), &caller.subject);
    let events = store::queue::cancel(db, &caller.tenant, id, turn_id, subject, &stamp).await?;
    let turn = changed(api, &caller, id, turn_id, events).await?;
    Ok(Response::new(pb::CancelQueuedTurnResponse { turn: Some(turn) }))
}

pub async fn promote(
    api: &Api,
    request: Request<pb::PromoteQueuedTurnRequest>,
) -> Result<Response<pb::PromoteQueuedTurnResponse>, Status> {
    let caller = chassis::caller(&request)?;
    let request = request.into_inner();
    let (id, turn_id) = ids(&request.session_id, &request.turn_id)?;
    let (db, stamp) = (&api.host.db, stamp(api.host.replica));
    let events = store::queue::promote(db, &caller.tenant, id, turn_id, &stamp).await?;
    let turn = changed(api, &caller, id, turn_id, events).await?;
    Ok(Response::new(pb::PromoteQueuedTurnResponse { turn: Some(turn) }))
}

pub async fn reorder(
    api: &Api,
    request: Request<pb::ReorderQueueRequest>,
) -> Result<Response<pb::ReorderQueueResponse>, Status> {
    const FIELD: &str = "turn_ids";
    let caller = chassis::caller(&request)?;
    let request = request.into_inner();
    let id = parse("session_id", &request.session_id)?;
    if request.turn_ids.len() > MOST {
        return Err(check::invalid(FIELD, format!("at most {MOST} turns")).into());
    }
    let turn_ids = request.turn_ids.iter().map(|turn_id| parse(FIELD, turn_id));
    let turn_ids: Vec<TurnId> = turn_ids.collect::<Result<_>>()?;
    let mut named = HashSet::new();
    if let Some(turn_id) = turn_ids.iter().find(|turn_id| !named.insert(**turn_id)) {
        return Err(check::invalid(FIELD, format!("names {turn_id} twice")).into());
    }
    let (db, stamp) = (&api.host.db, stamp(api.host.replica));
    let events = store::queue::reorder(db, &caller.tenant, id, &turn_ids, &stamp).await?;
    api.host.bus.publish(&caller.tenant, id, events, false);
    let turns = store::queue::list(db, id).await?;
    let turns = turns.into_iter().map(|turn| convert::turn(id, turn)).collect();
    Ok(Response::new(pb::ReorderQueueResponse { turns }))
}

pub async fn resume(
    api: &Api,
    request: Request<pb::ResumeQueueRequest>,
) -> Result<Response<pb::ResumeQueueResponse>, Status> {
    let caller = chassis::caller(&request)?;
    let id = parse("session_id", &request.into_inner().session_id)?;
    let (db, stamp) = (&api.host.db, stamp(api.host.replica));
    let events = store::queue::resume(db, &caller.tenant, id, &stamp).await?;
    let ready = events.iter().any(submit::makes_ready);
    api.host.bus.publish(&caller.tenant, id, events, ready);
    let session = store::sessions::get(db, &caller.tenant, id).await?;
    Ok(Response::new(pb::ResumeQueueResponse { session: Some(session.into()) }))
}

/// Tells what was committed, and returns the turn it was about.
async fn changed(
    api: &Api,
    caller: &Caller,
    id: SessionId,
    turn_id: TurnId,
    events: Vec<Event>,
) -> Result<pb::Turn> {
    api.host.bus.publish(&caller.tenant, id, events, false);
    let turn = store::turns::get(&api.host.db, &caller.tenant, id, turn_id).await?;
    Ok(convert::turn(id, turn))
}

fn ids(session_id: &str, turn_id: &str) -> Result<(SessionId, TurnId)> {
    Ok((parse("session_id", session_id)?, parse("turn_id", turn_id)?))
}
