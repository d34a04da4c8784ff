//! What packs are made of, and what is put on record of them.

use chassis::Tenant;
use proto::event::v1::Event;
use serde_json::Value;
use sqlx::{PgExecutor, types::Json};

use crate::{
    error::{Error, Result},
    ids::{SessionId, TurnId, WorkspaceId},
    store::{
        events::{self, Row},
        turns::{Recorded, Stamp},
    },
};

/// What of a session's log a pack is about.
#[derive(Debug, Clone)]
pub struct Selection {
    pub session_id: SessionId,
    /// All of it.
    pub whole: bool,
    /// Otherwise the events of these turns, and of this task.
    pub turns: Vec<TurnId>,
    pub task_id: String,
}

/// The session in which a turn ran. One that was imported is found where it ran, if it is there too.
pub async fn session_of(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    id: TurnId,
) -> Result<Option<SessionId>> {
    let found = sqlx::query_scalar!(
        r#"
        select t.session_id as "id: SessionId"
        from session.turn t
        join session.chat_sessions s on s.id = t.session_id
        join session.run_state r on r.session_id = s.id
        left join session.chat_messages m on m.session_id = t.session_id and m.id = t.message_id
        where t.id = $1 and s.tenant_id = $2
        order by m.position > 0 desc nulls first, s.created_at
        limit 1
        "#,
        id as _,
        tenant as _,
    )
    .fetch_optional(db)
    .await?;
    Ok(found)
}

/// Where a task left events, and the turns that ran for it: those that its events name. Nothing,
/// where nobody knows the task.
pub async fn of_task(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    id: &str,
    limit: i64,
) -> Result<Vec<Selection>> {
    let rows = sqlx::query!(
        r#"
        select e.session_id as "session_id!: SessionId",
               coalesce(array_agg(distinct e.turn_id) filter (where e.turn_id is not null), '{}') as "turns!: Vec<TurnId>"
        from session.event e
        join session.chat_sessions s on s.id = e.session_id
        where e.task_id = $1 and s.tenant_id = $2
        group by e.session_id
        order by e.session_id
        limit $3
        "#,
        id,
        tenant as _,
        limit,
    )
    .fetch_all(db)
    .await?;
    let selection = rows.into_iter().map(|row| Selection {
        session_id: row.session_id,
        whole: false,
        turns: row.turns,
        task_id: id.to_owned(),
    });
    Ok(selection.collect())
}

/// Where what is selected begins and ends, if any of it is there.
pub async fn extent(db: impl PgExecutor<'_>, selection: &Selection) -> Result<Option<(i64, i64)>> {
    let row = sqlx::query!(
        r#"
        select min(coalesce((refs ->> 'firstSequence')::bigint, seq)) as first, max(seq) as last
        from session.event
        where session_id = $1 and ($2 or turn_id = any($3) or task_id = $4)
        "#,
        selection.session_id as _,
        selection.whole,
        &selection.turns as _,
        selection.task_id,
    )
    .fetch_one(db)
    .await?;
    Ok(row.first.zip(row.last))
}

/// Where the conversation has the first message of these turns: their events begin no later.
pub async fn place(db: impl PgExecutor<'_>, selection: &Selection) -> Result<Option<i64>> {
    let place = sqlx::query_scalar!(
        r#"
        select min(position) from session.chat_messages
        where session_id = $1 and turn_id = any($2) and position > 0
        "#,
        selection.session_id as _,
        &selection.turns as _,
    )
    .fetch_one(db)
    .await?;
    Ok(place)
}

/// Those of the selected events after `after` and up to `through` that have one of these names,
/// in which `%` stands for anything; no names are all. Oldest first, and about `bytes` at a time.
pub async fn rows(
    db: impl PgExecutor<'_>,
    selection: &Selection,
    after: i64,
    through: i64,
    names: &[&str],
    limit: i64,
    bytes: i64,
) -> Result<Vec<Row>> {
    let rows = sqlx::query!(
        r#"
        select to_json(e) as "row!: Json<Row>"
        from (
            select e.*, sum(octet_length(e.payload::text) + 300)
                       over (order by e.seq rows between unbounded preceding and 1 preceding) as before
            from (
                select * from session.event
                where session_id = $1 and seq > $2 and seq <= $3
                  and ($4 or turn_id = any($5) or task_id = $6)
                  and (cardinality($7::text[]) = 0 or type like any($7))
                order by seq
                limit $8
            ) e
        ) e
        where e.before is null or e.before < $9
        order by e.seq
        "#,
        selection.session_id as _,
        after,
        through,
        selection.whole,
        &selection.turns as _,
        selection.task_id,
        names as _,
        limit,
        bytes,
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(|row| row.row.0).collect())
}

/// The selected turns after one, by id, which is the order of their submission.
pub async fn turns(
    db: impl PgExecutor<'_>,
    selection: &Selection,
    after: &str,
    limit: i64,
) -> Result<Vec<Recorded>> {
    let turns = sqlx::query_as!(
        Recorded,
        r#"
        select id as "id: _", message_id as "message_id: _", status, subject, submitted_at as "submitted_at: _",
               view as "view: _"
        from session.turn
        where session_id = $1 and id > $2 and ($3 or id = any($4))
        order by id
        limit $5
        "#,
        selection.session_id as _,
        after,
        selection.whole,
        &selection.turns as _,
        limit,
    )
    .fetch_all(db)
    .await?;
    Ok(turns)
}

/// A prompt by its digest.
pub async fn prompt(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    digest: &str,
) -> Result<Option<String>> {
    let body = sqlx::query_scalar!(
        "select body from session.prompt where tenant_id = $1 and digest = $2",
        tenant as _,
        digest,
    )
    .fetch_optional(db)
    .await?;
    Ok(body)
}

/// Puts on record that evidence was made; returns what is to be published.
pub async fn note(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    session_id: SessionId,
    turn_id: Option<TurnId>,
    payload: &Value,
    stamp: &Stamp,
) -> Result<Vec<Event>> {
    let rows = sqlx::query_scalar!(
        r#"select session.note_evidence($1, $2, $3, $4, $5) as "events!: Json<Vec<Row>>""#,
        tenant as _,
        session_id as _,
        turn_id as _,
        payload,
        Json(stamp) as _,
    )
    .fetch_one(db)
    .await?;
    events::decode(rows.0)
}

#[derive(Debug)]
pub struct NewReplay<'a> {
    pub id: SessionId,
    pub tenant: &'a Tenant,
    pub parent_id: SessionId,
    pub turn_id: TurnId,
    pub workspace_id: WorkspaceId,
    pub subject: &'a str,
    pub request_id: &'a str,
    pub request_digest: &'a str,
}

/// Creates a session that begins with what came before a turn, or finds the one this request
/// created before.
pub async fn begin_replay(
    db: impl PgExecutor<'_>,
    new: NewReplay<'_>,
    stamp: &Stamp,
) -> Result<SessionId> {
    let row = sqlx::query!(
        r#"
        select outcome as "outcome!", session_id as "session_id: SessionId"
        from session.begin_replay($1, $2, $3, $4, $5, $6, $7, $8, $9)
        "#,
        new.tenant as _,
        new.parent_id as _,
        new.turn_id as _,
        new.id as _,
        new.workspace_id as _,
        new.subject,
        new.request_id,
        new.request_digest,
        Json(stamp) as _,
    )
    .fetch_one(db)
    .await?;
    match (row.outcome.as_str(), row.session_id) {
        ("begun", Some(id)) => Ok(id),
        ("reused", _) => Err(Error::RequestIdReused(new.request_id.to_owned())),
        _ => Err(Error::SessionNotFound(new.parent_id)),
    }
}
