//! What people do to turns that wait.

use chassis::Tenant;
use jiff_sqlx::Timestamp as Time;
use proto::event::v1::Event;
use serde::Serialize;
use serde_json::Value;
use sqlx::{PgExecutor, types::Json};

use crate::{
    error::{Error, Result},
    ids::{PartId, SessionId, TurnId},
    message::Part,
    store::{
        events,
        turns::{Stamp, Turn},
    },
};

/// The events that a function of the database wrote.
pub type Events = Json<Vec<events::Row>>;

/// Replaces what a queued turn says. Returns what is to be published.
pub async fn edit(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    session_id: SessionId,
    turn_id: TurnId,
    parts: &[Part],
    stamp: &Stamp,
) -> Result<Vec<Event>> {
    let row = sqlx::query!(
        r#"
        select outcome as "outcome!", status, events as "events: Events"
        from session.edit_queued($1, $2, $3, $4, $5)
        "#,
        tenant as _,
        session_id as _,
        turn_id as _,
        Json(new_parts(parts)) as _,
        Json(stamp) as _,
    )
    .fetch_one(db)
    .await?;
    if row.outcome == "empty" {
        let problem = "a message needs at least one part, or an agent or model to switch to";
        return Err(Error::Invalid { field: "parts", problem: problem.to_owned() });
    }
    changed(&row.outcome, session_id, turn_id, row.status, row.events)
}

/// Takes a turn out of the queue, unless it was let go.
pub async fn cancel(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    session_id: SessionId,
    turn_id: TurnId,
    subject: &str,
    stamp: &Stamp,
) -> Result<Vec<Event>> {
    let row = sqlx::query!(
        r#"
        select outcome as "outcome!", status, events as "events: Events"
        from session.cancel_queued($1, $2, $3, $4, $5)
        "#,
        tenant as _,
        session_id as _,
        turn_id as _,
        subject,
        Json(stamp) as _,
    )
    .fetch_one(db)
    .await?;
    changed(&row.outcome, session_id, turn_id, row.status, row.events)
}

/// Puts a turn at the head of the queue.
pub async fn promote(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    session_id: SessionId,
    turn_id: TurnId,
    stamp: &Stamp,
) -> Result<Vec<Event>> {
    let row = sqlx::query!(
        r#"
        select outcome as "outcome!", status, events as "events: Events"
        from session.promote_queued($1, $2, $3, $4)
        "#,
        tenant as _,
        session_id as _,
        turn_id as _,
        Json(stamp) as _,
    )
    .fetch_one(db)
    .await?;
    changed(&row.outcome, session_id, turn_id, row.status, row.events)
}

/// Puts the queue in this order, which names every turn in it once.
pub async fn reorder(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    session_id: SessionId,
    turn_ids: &[TurnId],
    stamp: &Stamp,
) -> Result<Vec<Event>> {
    let row = sqlx::query!(
        r#"
        select outcome as "outcome!", turn_id as "turn_id: TurnId", status, events as "events: Events"
        from session.reorder_queue($1, $2, $3, $4)
        "#,
        tenant as _,
        session_id as _,
        turn_ids as _,
        Json(stamp) as _,
    )
    .fetch_one(db)
    .await?;
    match (row.outcome.as_str(), row.turn_id) {
        ("missing", Some(turn_id)) => Err(Error::Invalid {
            field: "turn_ids",
            problem: format!("must name every queued turn, and does not name {turn_id}"),
        }),
        (outcome, Some(turn_id)) => changed(outcome, session_id, turn_id, row.status, row.events),
        ("not_found", None) => Err(Error::SessionNotFound(session_id)),
        (_, None) => published(row.events),
    }
}

/// Lets a queue go on that a hard error stopped.
pub async fn resume(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    session_id: SessionId,
    stamp: &Stamp,
) -> Result<Vec<Event>> {
    let row = sqlx::query!(
        r#"
        select outcome as "outcome!", events as "events: Events"
        from session.resume_queue($1, $2, $3)
        "#,
        tenant as _,
        session_id as _,
        Json(stamp) as _,
    )
    .fetch_one(db)
    .await?;
    match row.outcome.as_str() {
        "not_found" => Err(Error::SessionNotFound(session_id)),
        _ => published(row.events),
    }
}

/// The turns that wait, in the order in which they will run.
pub async fn list(db: impl PgExecutor<'_>, session_id: SessionId) -> Result<Vec<Turn>> {
    let turns = sqlx::query_as!(
        Turn,
        r#"
        select t.id as "id: _", t.message_id as "message_id: _", t.status, t.submitted_at as "submitted_at: Time",
               row_number() over (order by m.queue_rank) as queue_position
        from session.chat_messages m
        join session.turn t on t.session_id = m.session_id and t.id = m.turn_id
        where m.session_id = $1 and m.queue_rank is not null
        order by m.queue_rank
        limit 1000
        "#,
        session_id as _,
    )
    .fetch_all(db)
    .await?;
    Ok(turns)
}

/// What a function of the queue said, in our words.
fn changed(
    outcome: &str,
    session_id: SessionId,
    turn_id: TurnId,
    status: Option<String>,
    events: Option<Events>,
) -> Result<Vec<Event>> {
    match outcome {
        "not_found" => Err(Error::SessionNotFound(session_id)),
        "no_turn" => Err(Error::TurnNotFound { session_id, turn_id }),
        "not_queued" => {
            let status = status.unwrap_or_default();
            Err(Error::TurnNotQueued { session_id, turn_id, status })
        }
        _ => published(events),
    }
}

/// The events that a function wrote, as readers get them.
pub fn published(events: Option<Events>) -> Result<Vec<Event>> {
    events::decode(events.map(|events| events.0).unwrap_or_default())
}

#[derive(Serialize)]
struct NewPart {
    index: usize,
    id: PartId,
    r#type: String,
    data: Value,
}

fn new_parts(parts: &[Part]) -> Vec<NewPart> {
    let part = |(index, part): (usize, &Part)| NewPart {
        index,
        id: PartId::new(),
        r#type: part.kind(),
        data: part.data(),
    };
    parts.iter().enumerate().map(part).collect()
}
