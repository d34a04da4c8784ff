//! What the scheduler asks about tasks.

use chassis::Tenant;
use proto::event::v1::Event;
use serde_json::Value;
use sqlx::{PgExecutor, types::Json};

use crate::{
    error::Result,
    ids::{ReplicaId, RunId, TaskId},
    store::{
        events,
        tasks::{Criterion, Moved},
        turns::{Stamp, TENANTS},
    },
    task::Move,
};

/// Tasks that wait to be started: of each tenant about as many, the oldest first, so that nobody's
/// wait behind another's. Of more tenants than one look meets it comes to all as `turns::ready` does.
pub async fn due(
    db: impl PgExecutor<'_>,
    first: Option<&Tenant>,
    limit: i64,
) -> Result<Vec<(Tenant, TaskId)>> {
    let rows = sqlx::query!(
        r#"
        with recursive behind (id) as (
            (select min(k.tenant_id) from session.task k
             where k.status in ('queued', 'retrying') and k.tenant_id > $3)
            union all
            select (select min(k.tenant_id) from session.task k
                    where k.status in ('queued', 'retrying') and k.tenant_id > b.id)
            from behind b where b.id is not null
        ), before (id) as (
            (select min(k.tenant_id) from session.task k
             where k.status in ('queued', 'retrying') and k.tenant_id <= $3)
            union all
            select (select min(k.tenant_id) from session.task k
                    where k.status in ('queued', 'retrying') and k.tenant_id > b.id and k.tenant_id <= $3)
            from before b where b.id is not null
        ), waiting (id) as (
            select t.id from (select id from behind union all select id from before) t
            where t.id is not null limit $2
        )
        select k.tenant_id as "tenant!: Tenant", k.id as "id!: TaskId"
        from waiting s
        cross join lateral (
            select k.tenant_id, k.id, row_number() over (order by k.id) as place from (
                select k.tenant_id, k.id from session.task k
                where k.status in ('queued', 'retrying') and k.tenant_id = s.id
                order by k.tenant_id, k.id
                limit (select $1 / greatest(count(*), 1) + 1 from waiting)
            ) k
        ) k
        order by k.place, random()
        limit $1
        "#,
        limit,
        TENANTS,
        first.map_or("", Tenant::as_str),
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(|row| (row.tenant, row.id)).collect())
}

/// Begins the attempt of a task that waits, unless something blocks it.
pub async fn start(
    db: impl PgExecutor<'_>,
    id: TaskId,
    replica: ReplicaId,
    stamp: &Stamp,
) -> Result<(Option<RunId>, Vec<Event>)> {
    let row = sqlx::query!(
        r#"
        select run_id as "run_id: RunId", events as "events!: Json<Vec<events::Row>>"
        from session.start_task($1, $2, $3, $4, $5)
        "#,
        id as _,
        Move::Start.table(),
        Move::Block.table(),
        replica as _,
        Json(stamp) as _,
    )
    .fetch_one(db)
    .await?;
    Ok((row.run_id, events::decode(row.events.0)?))
}

/// What an attempt is about.
#[derive(Debug)]
pub struct Errand {
    pub tenant: Tenant,
    pub owner: String,
    pub objective: String,
    pub acceptance: Json<Vec<Criterion>>,
}

pub async fn errand(db: impl PgExecutor<'_>, id: TaskId) -> Result<Errand> {
    let errand = sqlx::query_as!(
        Errand,
        r#"
        select tenant_id as "tenant: _", owner, objective, acceptance as "acceptance: _"
        from session.task where id = $1
        "#,
        id as _,
    )
    .fetch_one(db)
    .await?;
    Ok(errand)
}

/// Attempts under way, after a given one.
pub async fn open(db: impl PgExecutor<'_>, after: Option<RunId>, limit: i64) -> Result<Vec<RunId>> {
    let ids = sqlx::query_scalar!(
        r#"
        select id as "id: RunId" from session.task_run
        where started_at is not null and ended_at is null and id > coalesce($1, '')
        order by id limit $2
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
    pub tenant: Tenant,
    pub task_id: TaskId,
    pub id: RunId,
    /// As its turn is now, and as it was seen before.
    pub status: String,
    pub known: String,
    pub stopping: Option<String>,
    pub late: bool,
    pub submitted: bool,
    pub timeout_seconds: i32,
    /// Of a turn that failed.
    pub reason: String,
    pub message: String,
}

/// Those of these attempts whose turn is not as it was seen before, has to be stopped, or was not
/// submitted although it is time.
pub async fn changed(db: impl PgExecutor<'_>, ids: &[RunId]) -> Result<Vec<Run>> {
    let runs = sqlx::query_as!(
        Run,
        r#"
        select k.tenant_id as "tenant: _", r.task_id as "task_id: _", r.id as "id: _", seen.status as "status!",
               r.status as known, r.stopping, coalesce(r.deadline <= clock_timestamp(), false) as "late!",
               t.id is not null as "submitted!", k.timeout_seconds, coalesce(f.reason, '') as "reason!",
               coalesce(t.view ->> 'statusReason', '') as "message!"
        from session.task_run r
        join session.task k on k.id = r.task_id
        left join session.run_state s on s.session_id = session.session_of(r.task_id)
        left join session.turn t on t.session_id = s.session_id and t.id = session.turn_of(r.id)
        cross join lateral (
            select case
                when t.id is null or t.status in ('queued', 'accepted') then 'preparing'
                when t.status = 'waiting' and s.status = 'waiting_on_approval' then 'waiting_permission'
                when t.status = 'waiting' and s.status = 'waiting_on_user_input' then 'waiting_input'
                when t.status = 'waiting' then 'running'
                else t.status end as status
        ) seen
        left join lateral (
            select e.payload ->> 'reason' as reason from session.event e
            where e.session_id = t.session_id and e.type = 'turn.failed' and e.turn_id = t.id
              and t.status in ('failed', 'cancelled')
            order by e.seq desc limit 1
        ) f on true
        where r.id = any($1) and r.started_at is not null and r.ended_at is null
          and (seen.status <> r.status or r.stopping is not null or r.deadline <= clock_timestamp()
               or t.id is null and r.started_at < clock_timestamp() - interval '2 seconds')
        "#,
        ids as _,
    )
    .fetch_all(db)
    .await?;
    Ok(runs)
}

/// Notes why an attempt is to be stopped, unless somebody did before.
pub async fn stop(db: impl PgExecutor<'_>, id: RunId, why: &str) -> Result<()> {
    sqlx::query!(
        "update session.task_run set stopping = coalesce(stopping, $2) where id = $1 and ended_at is null",
        id as _,
        why,
    )
    .execute(db)
    .await?;
    Ok(())
}

/// The attempts of a task that are to be stopped, and why.
pub async fn stopping(db: impl PgExecutor<'_>, id: TaskId) -> Result<Vec<(RunId, String)>> {
    let rows = sqlx::query!(
        r#"
        select id as "id: RunId", stopping as "why!" from session.task_run
        where task_id = $1 and stopping is not null and started_at is not null and ended_at is null
        "#,
        id as _,
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(|row| (row.id, row.why)).collect())
}

/// What one task wants of another.
#[derive(Debug)]
pub struct Wish {
    pub id: i64,
    pub task_id: TaskId,
    pub wish: String,
    pub origin: String,
    pub subject: String,
    pub reason: String,
}

/// Wishes that wait to be delivered, the oldest first.
pub async fn wishes(db: impl PgExecutor<'_>, limit: i64) -> Result<Vec<Wish>> {
    let wishes = sqlx::query_as!(
        Wish,
        r#"
        select id, task_id as "task_id: _", wish, origin, subject, reason
        from session.task_wish order by id limit $1
        "#,
        limit,
    )
    .fetch_all(db)
    .await?;
    Ok(wishes)
}

/// Delivers the wish to look whether something blocks a task.
pub async fn check(db: impl PgExecutor<'_>, id: TaskId, wish: i64, stamp: &Stamp) -> Result<Moved> {
    let (block, unblock): (Value, Value) = (Move::Block.table(), Move::Unblock.table());
    let row = sqlx::query!(
        r#"
        select outcome as "outcome!", status, stops as "stops!", events as "events!: Json<Vec<events::Row>>"
        from session.check_task($1, $2, $3, $4, $5)
        "#,
        id as _,
        wish,
        block,
        unblock,
        Json(stamp) as _,
    )
    .fetch_one(db)
    .await?;
    Ok(Moved {
        refused: row.outcome == "refused",
        status: row.status.unwrap_or_default(),
        stops: row.stops,
        events: events::decode(row.events.0)?,
    })
}
