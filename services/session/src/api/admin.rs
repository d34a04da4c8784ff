//! Sessions as a whole, and the ways back and aside in them.

use std::time::Duration;

use chassis::Caller;
use proto::{event::v1::Event, session::v1 as pb};
use tokio::time::{Instant, sleep};
use tonic::{Request, Response, Status};

use super::{Api, check, files, stamp, subagents};
use crate::{
    error::{Error, Result, parse},
    ids::SessionId,
    purge,
    store::{self, history::NewFork},
};

/// How many sessions that go with another are looked up at once.
const DEPENDENTS: i64 = 100;

/// How long children that run in the background have to end before their parent is deleted.
const FAREWELL: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(100);

pub async fn update(
    api: &Api,
    request: Request<pb::UpdateSessionRequest>,
) -> Result<Response<pb::UpdateSessionResponse>, Status> {
    let caller = chassis::caller(&request)?;
    let request = request.into_inner();
    let id = parse("session_id", &request.session_id)?;
    let title = request.title.as_deref().map(|title| check::text("title", title, 200));
    let (title, archived) = (title.transpose()?, request.archived);
    let (db, stamp) = (&api.host.db, stamp(api.host.replica));
    let events = store::admin::update(db, &caller.tenant, id, title, archived, &stamp).await?;
    let session = changed(api, &caller, id, events).await?;
    Ok(Response::new(pb::UpdateSessionResponse { session: Some(session) }))
}

/// Deletes a session, and then its children and sidecars, which nobody would find any more. Other
/// forks are sessions of their own and stay.
pub async fn delete(
    api: &Api,
    request: Request<pb::DeleteSessionRequest>,
) -> Result<Response<pb::DeleteSessionResponse>, Status> {
    let caller = chassis::caller(&request)?;
    let id: SessionId = parse("session_id", &request.into_inner().session_id)?;
    let (db, tenant) = (&api.host.db, &caller.tenant);
    close_children(api, &caller, id).await?;
    let mut left = vec![id];
    while let Some(&id) = left.last() {
        store::admin::delete(db, tenant, id).await?;
        // Looked for after the deletion: nobody forks a session that is gone.
        let dependents = store::admin::dependents(db, tenant, id, DEPENDENTS).await?;
        match dependents.is_empty() {
            true => drop(left.pop()),
            false => left.extend(dependents),
        }
    }
    purge::some(db).await?;
    Ok(Response::new(pb::DeleteSessionResponse {}))
}

/// Has the children of a session at rest end that still run in the background.
async fn close_children(api: &Api, caller: &Caller, id: SessionId) -> Result<()> {
    let (db, tenant) = (&api.host.db, &caller.tenant);
    let session = match store::sessions::get(db, tenant, id).await {
        Ok(session) if matches!(session.status.as_str(), "idle" | "error") => session,
        // Whatever else it is, the deletion says so.
        Ok(_) | Err(Error::SessionNotFound(_)) => return Ok(()),
        Err(error) => return Err(error),
    };
    let begun = Instant::now();
    loop {
        let open = store::subagents::open_below(db, tenant, session.id).await?;
        if open.is_empty() {
            return Ok(());
        }
        if begun.elapsed() > FAREWELL {
            let problem = "subagents in the background do not end";
            return Err(Error::NotAtRest { id, turn_id: None, problem });
        }
        for (subagent_id, child_id) in open {
            subagents::close(api, caller, subagent_id, child_id, "its parent is deleted").await?;
        }
        sleep(LOOK).await;
    }
}

pub async fn rewind(
    api: &Api,
    request: Request<pb::RewindSessionRequest>,
) -> Result<Response<pb::RewindSessionResponse>, Status> {
    let caller = chassis::caller(&request)?;
    let request = request.into_inner();
    let id = parse("session_id", &request.session_id)?;
    let message_id = parse("message_id", &request.message_id)?;
    let (db, stamp) = (&api.host.db, stamp(api.host.replica));
    let restored = match request.restore_files {
        true => files::restore(api, &caller, id, message_id).await?,
        false => None,
    };
    let snapshot_id = restored.as_ref().map(|restored| restored.snapshot_id.as_str());
    let rolled =
        store::history::rewind(db, &caller.tenant, id, message_id, snapshot_id, &stamp).await;
    let rolled = match (rolled, restored) {
        // Whoever does not know whether it was stored calls again, and both are put back.
        (Err(error @ Error::Database(_)), _) => return Err(error.into()),
        (Err(error), Some(restored)) => {
            files::take_back(api, &caller, restored).await;
            return Err(error.into());
        }
        (rolled, _) => rolled?,
    };
    Ok(Response::new(pb::RewindSessionResponse {
        session: Some(changed(api, &caller, id, rolled.events).await?),
        hidden_messages: rolled.messages,
    }))
}

pub async fn unrewind(
    api: &Api,
    request: Request<pb::UnrewindSessionRequest>,
) -> Result<Response<pb::UnrewindSessionResponse>, Status> {
    let caller = chassis::caller(&request)?;
    let id = parse("session_id", &request.into_inner().session_id)?;
    let (db, stamp) = (&api.host.db, stamp(api.host.replica));
    let rolled = store::history::unrewind(db, &caller.tenant, id, &stamp).await?;
    Ok(Response::new(pb::UnrewindSessionResponse {
        session: Some(changed(api, &caller, id, rolled.events).await?),
        shown_messages: rolled.messages,
    }))
}

pub async fn fork(
    api: &Api,
    request: Request<pb::ForkSessionRequest>,
) -> Result<Response<pb::ForkSessionResponse>, Status> {
    let caller = chassis::caller(&request)?;
    let request = request.into_inner();
    let new = NewFork {
        id: SessionId::new(),
        tenant: &caller.tenant,
        parent_id: parse("session_id", &request.session_id)?,
        message_id: match request.message_id.as_str() {
            "" => None,
            text => Some(parse("message_id", text)?),
        },
        subject: &caller.subject,
        request_id: check::request_id(&request.request_id)?,
        // Sessions are created in two ways, and the same bytes may ask for either.
        request_digest: &format!("fork:{}", check::digest(&request)),
        ephemeral: request.ephemeral,
    };
    let (db, stamp) = (&api.host.db, stamp(api.host.replica));
    let id = store::history::fork(db, new, &stamp).await?;
    let session = store::sessions::get(db, &caller.tenant, id).await?;
    Ok(Response::new(pb::ForkSessionResponse { session: Some(session.into()) }))
}

/// Tells what was committed, and returns the session it was about.
async fn changed(
    api: &Api,
    caller: &Caller,
    id: SessionId,
    events: Vec<Event>,
) -> Result<pb::Session> {
    api.host.bus.publish(&caller.tenant, id, events, false);
    Ok(store::sessions::get(&api.host.db, &caller.tenant, id).await?.into())
}
