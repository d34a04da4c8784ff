//! What the scheduler asks about jobs.

use chassis::Tenant;
use proto::event::v1::Event;
use serde::Serialize;
use sqlx::{PgExecutor, types::Json};

use crate::{
    error::{Error, Result},
    ids::{JobId, RunId},
    job::LARGEST_RESULT,
    store::{events, turns::Stamp},
};

/// How many times as many jobs are looked at as are taken, to find those of others.
const AHEAD: i64 = 50;

/// Jobs that have items to start and room for them: of each tenant some, and of all those that
/// waited longest first.
pub async fn due(db: impl PgExecutor<'_>, limit: i64) -> Result<Vec<JobId>> {
    let ids = sqlx::query_scalar!(
        r#"
        select j.id as "id!: JobId" from (
            select j.id, j.started_at, row_number() over (partition by j.tenant_id order by j.started_at) as place
            from (
                select j.id, j.tenant_id, j.started_at from session.job j
                where j.status = 'running' and j.pending > 0 and j.running < j.parallelism
                order by j.started_at limit $1::bigint * $2::bigint
            ) j
        ) j
        order by j.place, j.started_at limit $1
        "#,
        limit,
        AHEAD,
    )
    .fetch_all(db)
    .await?;
    Ok(ids)
}

/// What all items of a job share, and never changes.
#[derive(Debug)]
pub struct Plan {
    pub tenant: Tenant,
    pub subject: String,
    pub instruction: String,
    pub output_schema: String,
}

pub async fn plan(db: impl PgExecutor<'_>, id: JobId) -> Result<Plan> {
    sqlx::query_as!(
        Plan,
        r#"
        select tenant_id as "tenant: _", subject, instruction, output_schema
        from session.job where id = $1
        "#,
        id as _,
    )
    .fetch_optional(db)
    .await?
    .ok_or(Error::JobNotFound(id))
}

/// An item whose turn can be submitted.
#[derive(Debug)]
pub struct Started {
    pub run_id: RunId,
    pub input: String,
}

/// Marks as many items as running as there is room for, with the sessions that they run in.
pub async fn start(
    db: impl PgExecutor<'_>,
    id: JobId,
    room: usize,
    stamp: &Stamp,
) -> Result<(Vec<Started>, Vec<Event>)> {
    let runs: Vec<_> = (0..room).map(|_| RunId::new()).collect();
    let rows = sqlx::query!(
        r#"
        select run_id as "run_id!: RunId", input as "input!", events as "events: Json<Vec<events::Row>>"
        from session.start_items($1, $2, $3)
        "#,
        id as _,
        &runs as _,
        Json(stamp) as _,
    )
    .fetch_all(db)
    .await?;
    let (mut started, mut appended) = (Vec::with_capacity(rows.len()), Vec::new());
    for row in rows {
        if let Some(events) = row.events {
            appended = events::decode(events.0)?;
        }
        started.push(Started { run_id: row.run_id, input: row.input });
    }
    Ok((started, appended))
}

/// Attempts at items under way, after a given one.
pub async fn open(db: impl PgExecutor<'_>, after: Option<RunId>, limit: i64) -> Result<Vec<RunId>> {
    let ids = sqlx::query_scalar!(
        r#"
        select run_id as "id!: RunId" from session.job_item
        where status = 'running' and run_id > coalesce($1, '')
        order by run_id limit $2
        "#,
        after as _,
        limit,
    )
    .fetch_all(db)
    .await?;
    Ok(ids)
}

/// An attempt that needs something.
#[derive(Debug)]
pub struct Run {
    pub job_id: JobId,
    pub id: RunId,
    pub input: String,
    /// How its turn ended; nothing: nobody submitted it, although it is time.
    pub status: Option<String>,
    pub message: String,
    /// What the agent said last.
    pub answer: String,
}

/// Those of these attempts whose turn is over, or was not submitted although it is time.
pub async fn changed(db: impl PgExecutor<'_>, ids: &[RunId]) -> Result<Vec<Run>> {
    let runs = sqlx::query_as!(
        Run,
        r#"
        select i.job_id as "job_id: _", i.run_id as "id!: _", i.input, t.status as "status?",
               coalesce(t.view ->> 'statusReason', '') as "message!", coalesce(a.answer, '') as "answer!"
        from session.job_item i
        left join session.run_state s on s.session_id = session.session_of(i.run_id)
        left join session.turn t on t.session_id = s.session_id and t.id = session.turn_of(i.run_id)
        left join lateral (
            select left(string_agg(p.data_json ->> 'text', '' order by p.index), $2) as answer
            from (
                select m.id from session.chat_messages m
                where m.session_id = t.session_id and m.turn_id = t.id and m.role = 'assistant' and not m.synthetic
                order by m.position desc limit 1
            ) m
            join session.chat_parts p on p.session_id = t.session_id and p.message_id = m.id and p.type = 'text'
            where t.status = 'completed'
        ) a on true
        where i.run_id = any($1) and i.status = 'running'
          and (t.status in ('completed', 'failed', 'cancelled')
               or t.id is null and i.started_at < clock_timestamp() - interval '2 seconds')
        "#,
        ids as _,
        LARGEST_RESULT as i32 + 1,
    )
    .fetch_all(db)
    .await?;
    Ok(runs)
}

/// What became of an attempt at an item.
#[derive(Debug, Serialize)]
pub struct Outcome {
    pub run_id: RunId,
    pub status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
}

/// Takes in what became of items of one job.
pub async fn settle(
    db: impl PgExecutor<'_>,
    id: JobId,
    outcomes: &[Outcome],
    stamp: &Stamp,
) -> Result<Vec<Event>> {
    let row = sqlx::query!(
        r#"select session.settle_items($1, $2, $3) as "events!: Json<Vec<events::Row>>""#,
        id as _,
        Json(outcomes) as _,
        Json(stamp) as _,
    )
    .fetch_one(db)
    .await?;
    events::decode(row.events.0)
}

/// An attempt that is to be stopped, because its job was cancelled.
#[derive(Debug)]
pub struct Stopping {
    pub tenant: Tenant,
    pub run_id: RunId,
    pub reason: String,
}

/// Some of them.
pub async fn stopping(db: impl PgExecutor<'_>, limit: i64) -> Result<Vec<Stopping>> {
    let rows = sqlx::query_as!(
        Stopping,
        r#"
        select j.tenant_id as "tenant: _", i.run_id as "run_id!: _", j.cancel_reason as reason
        from session.job j join session.job_item i on i.job_id = j.id and i.status = 'running'
        where j.status = 'cancelled' and j.running > 0
        limit $1
        "#,
        limit,
    )
    .fetch_all(db)
    .await?;
    Ok(rows)
}
