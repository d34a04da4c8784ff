use chassis::{Tenant, database};
use jiff_sqlx::Timestamp as Time;
use proto::{event::v1::Usage, session::v1 as pb};
use sqlx::{PgConnection, PgPool, Postgres, Transaction};

use super::convert;
use crate::{
    error::Result,
    ids::SessionId,
    store::{
        self,
        actions::Action,
        messages::{Stored, Window},
        sessions::Session,
    },
};

/// How much a page of messages holds, and what waits beside it: together below what
/// clients take in one answer unless told otherwise, 4 MiB.
pub const MESSAGE_BYTES: i64 = 2 * 1024 * 1024;
const QUEUE_BYTES: i64 = 512 * 1024;

/// As many as a queue can be configured to hold.
pub const MOST_QUEUED: i64 = 1000;

/// What the read model says of a turn that nobody drives.
const STALE: &str = "the replica that ran the turn is gone, another one takes over";

/// A transaction in which every read sees the same state.
pub async fn one_state(db: &PgPool) -> Result<Transaction<'static, Postgres>> {
    Ok(database::begin(db, "begin isolation level repeatable read, read only").await?)
}

/// The read model of a session, and the session it was made from.
pub async fn load(
    db: &mut PgConnection,
    tenant: &Tenant,
    id: SessionId,
    turns: i64,
) -> Result<(pb::Snapshot, Session)> {
    let session = store::sessions::get(&mut *db, tenant, id).await?;
    let views = store::snapshot::turns(db, id, turns).await?;
    let queued = match session.queued {
        0 => vec![],
        _ => store::snapshot::queue(db, id).await?,
    };
    let pending_requests = match session.status.as_str() {
        "idle" | "error" => vec![],
        _ => store::actions::open(&mut *db, id).await?.into_iter().map(pending).collect(),
    };
    // Nobody drives a turn whose owner is dead, until somebody takes it over.
    let stale = matches!(session.status.as_str(), "busy" | "retrying")
        && store::replicas::owner_is_dead(&mut *db, id).await?;
    let incidents = views.iter().filter(|view| view.status == "failed").map(incident).collect();
    let thread = pb::Thread {
        thread_id: id.thread().to_string(),
        status: if stale { "stale" } else { thread_status(&session.status) }.to_owned(),
        status_reason: match stale {
            true => STALE.to_owned(),
            false => session.status_message.clone(),
        },
        native_status: match session.status.as_str() {
            "ready" => "busy".to_owned(),
            status => status.to_owned(),
        },
        active_turn_id: session.active_turn.map(|id| id.to_string()).unwrap_or_default(),
        turns: views,
        queued_turns: queued,
        pending_requests,
        cost_state: Some(pb::CostState {
            usage: Some(Usage {
                input: clamp(session.input_tokens),
                output: clamp(session.output_tokens),
                ..Usage::default()
            }),
            cost_micros: session.cost_micros,
            currency: String::new(),
            model_calls: clamp(session.model_calls),
        }),
        incidents,
    };
    let snapshot = pb::Snapshot {
        schema_version: "1".to_owned(),
        session_id: id.to_string(),
        workspace_id: session.workspace_id.to_string(),
        updated_at: convert::timestamp(Time::from(session.updated_at.to_jiff())),
        as_of_sequence: session.last_sequence,
        threads: vec![thread],
    };
    Ok((snapshot, session))
}

/// The latest messages of a session, with what waits in its queue behind them.
pub async fn messages(
    db: &mut PgConnection,
    id: SessionId,
    limit: i64,
) -> Result<Vec<pb::Message>> {
    let window = Window::Before(i64::MAX, limit);
    let (mut stored, _) = store::messages::page(db, id, window, false, MESSAGE_BYTES).await?;
    stored.extend(queued(db, id).await?);
    stored.iter().map(|message| convert::message(id, message)).collect()
}

/// What waits in the queue, as much of it as fits.
pub async fn queued(db: &mut PgConnection, id: SessionId) -> Result<Vec<Stored>> {
    let window = Window::Queued(i64::MIN, MOST_QUEUED);
    let (stored, _) = store::messages::page(db, id, window, false, QUEUE_BYTES).await?;
    Ok(stored)
}

/// Our status in the words of the published schema.
fn thread_status(status: &str) -> &'static str {
    match status {
        "idle" => "idle",
        "ready" => "queued",
        "busy" | "retrying" => "running",
        "waiting_on_approval" | "waiting_on_user_input" | "waiting_on_child" => "blocked",
        "error" => "failed",
        _ => "unknown",
    }
}

fn pending(action: Action) -> pb::PendingRequest {
    pb::PendingRequest {
        action_id: action.id.to_string(),
        turn_id: action.turn_id.to_string(),
        requested_at: convert::timestamp(action.created_at),
        request: Some(action.request.0),
    }
}

fn incident(view: &pb::TurnView) -> pb::Incident {
    pb::Incident {
        turn_id: view.turn_id.clone(),
        code: "turn_failed".to_owned(),
        message: view.status_reason.clone(),
        occurred_at: view.completed_at,
    }
}

fn clamp(count: i64) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}
