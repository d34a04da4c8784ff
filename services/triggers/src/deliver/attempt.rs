//! One attempt to make a turn of a firing.

use std::time::Duration;

use chassis::Caller;
use prost::Message as _;
use proto::{
    error::v1::Reason,
    session::v1::{CreateSessionRequest, SubmitTurnRequest},
};
use rand::Rng as _;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use sqlx::PgPool;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;
use tracing::{debug, warn};

use crate::{
    error::Error,
    firing::{Drop, Pending, Status as FiringStatus},
    schedule::Overlap,
    sessions::{self, Sessions},
    store::{self, firings::Outcome},
    trigger::TargetSession,
};

/// How long a firing rests after it could not be delivered, at most.
const LONGEST_REST: Duration = Duration::from_secs(60);

/// About a day of rests: whoever has not answered by then is not going to.
const MOST_ATTEMPTS: i32 = 1_500;

/// How long one waits for the firing before it, which is being delivered.
const BEHIND: Duration = Duration::from_millis(500);

/// Why an attempt came to nothing.
enum Failure {
    Call(Status),
    Store(Error),
}

/// Tries to deliver a firing. Nothing: it cannot be said what became of it, and the lease decides.
pub async fn deliver(db: &PgPool, sessions: &Sessions, pending: Pending) -> Option<Outcome> {
    match try_deliver(db, sessions, &pending).await {
        Ok(outcome) => Some(outcome),
        Err(Failure::Call(status)) => Some(verdict(&pending, &status)),
        Err(Failure::Store(error)) => {
            warn!(%error, firing.id = %pending.id, "cannot deliver firing {}, trying again after its lease", pending.id);
            None
        }
    }
}

async fn try_deliver(
    db: &PgPool,
    sessions: &Sessions,
    pending: &Pending,
) -> Result<Outcome, Failure> {
    let caller = sessions::creator(&pending.tenant, &pending.subject);
    if let Some(outcome) = overlap(db, sessions, &caller, pending).await? {
        return Ok(outcome);
    }
    let Ok(mut request) = SubmitTurnRequest::decode(pending.envelope.as_slice()) else {
        return Ok(Outcome::Dropped { reason: Drop::Undeliverable, session_id: None });
    };
    request.session_id = session(db, sessions, &caller, pending).await?;
    let session_id = request.session_id.clone();
    match sessions.submit(&caller, request).await {
        Ok(turn_id) => Ok(Outcome::Submitted { session_id, turn_id }),
        // The session of a key may be deleted. The next attempt makes another one.
        Err(status) if is(&status, Reason::SessionNotFound) => match &pending.route.session {
            TargetSession::Key(key) => {
                store::session_keys::forget(db, pending.trigger_id, key, &session_id).await?;
                Ok(Outcome::Again { rest: Duration::ZERO, failed: true })
            }
            TargetSession::Id(_) | TargetSession::New => {
                Ok(Outcome::Dropped { reason: Drop::NotFound, session_id: Some(session_id) })
            }
        },
        Err(status) if is(&status, Reason::QueueFull) => {
            Ok(Outcome::Dropped { reason: Drop::QueueFull, session_id: Some(session_id) })
        }
        Err(status) => Err(Failure::Call(status)),
    }
}

/// What the turn of the firing before means for this one. Nothing: it goes on.
async fn overlap(
    db: &PgPool,
    sessions: &Sessions,
    caller: &Caller,
    pending: &Pending,
) -> Result<Option<Outcome>, Failure> {
    let policy = pending.route.overlap;
    if policy == Overlap::Queue {
        return Ok(None);
    }
    let previous = store::firings::previous(db, pending.trigger_id, pending.id).await?;
    let Some((status, session_id, turn_id)) = previous else { return Ok(None) };
    if status == FiringStatus::Pending {
        return Ok(Some(Outcome::Again { rest: BEHIND, failed: false }));
    }
    if !sessions.is_open(caller, &session_id, &turn_id).await? {
        return Ok(None);
    }
    match policy {
        Overlap::Queue => Ok(None),
        Overlap::Skip => Ok(Some(Outcome::Dropped { reason: Drop::Overlap, session_id: None })),
        Overlap::CancelPrevious => {
            sessions.interrupt(caller, &session_id, &turn_id).await?;
            Ok(None)
        }
    }
}

/// The session that the turn goes to. One that has to be made is made under an id that follows
/// from the firing or from the key, so that it is made once.
async fn session(
    db: &PgPool,
    sessions: &Sessions,
    caller: &Caller,
    pending: &Pending,
) -> Result<String, Failure> {
    let route = &pending.route;
    let request_id = match &route.session {
        TargetSession::Id(id) => return Ok(id.clone()),
        TargetSession::New => pending.id.to_string(),
        TargetSession::Key(key) => {
            if let Some(id) = store::session_keys::get(db, pending.trigger_id, key).await? {
                return Ok(id);
            }
            let parts = [
                &pending.trigger_id.to_string(),
                key,
                &route.agent,
                &route.workspace_id,
                &route.title,
            ];
            let digest = Sha256::digest(json!(parts).to_string());
            format!("key_{digest:x}")
        }
    };
    let metadata = json!({ "trigger_id": pending.trigger_id });
    let request = CreateSessionRequest {
        request_id,
        title: route.title.clone(),
        agent: route.agent.clone(),
        workspace_id: route.workspace_id.clone(),
        metadata_json: metadata.to_string(),
    };
    let id = sessions.create(caller, request).await?;
    if let TargetSession::Key(key) = &route.session {
        store::session_keys::put(db, pending.trigger_id, key, &id).await?;
    }
    Ok(id)
}

/// What an error of the session service means for a firing.
fn verdict(pending: &Pending, status: &Status) -> Outcome {
    let dropped = |reason| Outcome::Dropped { reason, session_id: None };
    match status.code() {
        // An agent or a workspace that is gone.
        Code::NotFound => dropped(Drop::NotFound),
        Code::PermissionDenied => dropped(Drop::Forbidden),
        Code::InvalidArgument
        | Code::AlreadyExists
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented => {
            warn!(%status, firing.id = %pending.id, "firing {} is refused", pending.id);
            dropped(Drop::Undeliverable)
        }
        _ if pending.attempts >= MOST_ATTEMPTS => dropped(Drop::Undeliverable),
        _ => {
            debug!(%status, firing.id = %pending.id, "firing {} could not be delivered, trying again", pending.id);
            Outcome::Again { rest: rest(pending.attempts), failed: true }
        }
    }
}

/// Longer each time, and not the same for all.
fn rest(attempts: i32) -> Duration {
    let doubled = Duration::from_millis(250) * 2u32.pow(attempts.clamp(0, 10).unsigned_abs());
    doubled.min(LONGEST_REST).mul_f64(rand::rng().random_range(0.5..1.0))
}

fn is(status: &Status, reason: Reason) -> bool {
    status.get_details_error_info().is_some_and(|info| info.reason == reason.as_str_name())
}

impl From<Status> for Failure {
    fn from(status: Status) -> Failure {
        Failure::Call(status)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Store(error)
    }
}
