//! What fired, for people who want to know.

use std::collections::BTreeMap;

use chassis::Tenant;
use jiff::Timestamp;
use jiff_sqlx::{Timestamp as Time, ToSqlx as _};
use sqlx::{PgExecutor, PgPool};

use crate::{
    error::{Error, Result},
    firing::Status,
    ids::{FiringId, TriggerId},
};

/// A firing as it is on record.
#[derive(Debug, Clone)]
pub struct Recorded {
    pub id: FiringId,
    pub trigger_id: TriggerId,
    pub status: Status,
    pub drop_reason: String,
    pub due_at: Time,
    pub fired_at: Time,
    pub delivery_id: String,
    pub missed: i32,
    pub session_id: Option<String>,
    pub turn_id: Option<String>,
}

/// A tenant's firings, newest first.
pub async fn list(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    trigger_id: Option<TriggerId>,
    before: Option<FiringId>,
    limit: i64,
) -> Result<Vec<Recorded>> {
    let firings = match trigger_id {
        Some(trigger_id) => {
            sqlx::query_as!(
                Recorded,
                r#"
                select id as "id: _", trigger_id as "trigger_id: _", status as "status: _", drop_reason,
                    due_at as "due_at: _", fired_at as "fired_at: _", delivery_id, missed, session_id, turn_id
                from triggers.firing
                where trigger_id = $1 and tenant_id = $2 and ($3::text is null or id < $3)
                order by id desc limit $4
                "#,
                trigger_id as _,
                tenant as _,
                before as _,
                limit,
            )
            .fetch_all(db)
            .await?
        }
        None => {
            sqlx::query_as!(
                Recorded,
                r#"
                select id as "id: _", trigger_id as "trigger_id: _", status as "status: _", drop_reason,
                    due_at as "due_at: _", fired_at as "fired_at: _", delivery_id, missed, session_id, turn_id
                from triggers.firing
                where tenant_id = $1 and ($2::text is null or id < $2)
                order by id desc limit $3
                "#,
                tenant as _,
                before as _,
                limit,
            )
            .fetch_all(db)
            .await?
        }
    };
    Ok(firings)
}

/// One firing of a tenant, what its template saw, and what was submitted.
pub async fn get(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    id: FiringId,
) -> Result<(Recorded, String, Option<Vec<u8>>)> {
    let row = sqlx::query!(
        r#"
        select id as "id: FiringId", trigger_id as "trigger_id: TriggerId", status as "status: Status", drop_reason,
            due_at as "due_at: Time", fired_at as "fired_at: Time", delivery_id, missed, session_id, turn_id, payload, envelope
        from triggers.firing where id = $1 and tenant_id = $2
        "#,
        id as _,
        tenant as _,
    )
    .fetch_optional(db)
    .await?
    .ok_or_else(|| Error::FiringNotFound(id.to_string()))?;
    let recorded = Recorded {
        id: row.id,
        trigger_id: row.trigger_id,
        status: row.status,
        drop_reason: row.drop_reason,
        due_at: row.due_at,
        fired_at: row.fired_at,
        delivery_id: row.delivery_id,
        missed: row.missed,
        session_id: row.session_id,
        turn_id: row.turn_id,
    };
    Ok((recorded, row.payload, row.envelope))
}

/// The firing that a delivery became, if it was not dropped.
pub async fn find(
    db: impl PgExecutor<'_>,
    trigger_id: TriggerId,
    delivery_id: &str,
) -> Result<Option<FiringId>> {
    let id = sqlx::query_scalar!(
        r#"
        select id as "id: FiringId" from triggers.firing
        where trigger_id = $1 and delivery_id = $2 and status <> 'dropped'
        "#,
        trigger_id as _,
        delivery_id,
    )
    .fetch_optional(db)
    .await?;
    Ok(id)
}

/// How the latest firings went.
#[derive(Debug, Default, PartialEq)]
pub struct Stats {
    pub fired: i64,
    pub pending: i64,
    pub dropped: BTreeMap<String, i64>,
    pub lateness_p50_ms: i32,
    pub lateness_p99_ms: i32,
}

/// Of so many firings statistics are made.
pub const MOST_COUNTED: i64 = 10_000;

/// Sums the latest firings of a trigger, or of all.
pub async fn stats(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    trigger_id: Option<TriggerId>,
) -> Result<Stats> {
    let rows = sqlx::query!(
        r#"
        with of_one as (
            select id, status, drop_reason, due_at, submitted_at from triggers.firing
            where trigger_id = $2 and tenant_id = $1 order by id desc limit $3
        ), of_all as (
            select id, status, drop_reason, due_at, submitted_at from triggers.firing
            where $2::text is null and tenant_id = $1 order by id desc limit $3
        ), latest as (
            select * from of_one union all select * from of_all
        )
        select status as "status!: Status", drop_reason as "drop_reason!", count(*) as "count!",
            percentile_disc(array[0.5, 0.99]) within group (
                order by (extract(epoch from submitted_at - due_at) * 1000)::bigint) as lateness
        from latest group by status, drop_reason
        "#,
        tenant as _,
        trigger_id as _,
        MOST_COUNTED,
    )
    .fetch_all(db)
    .await?;
    let mut stats = Stats::default();
    for row in rows {
        match row.status {
            Status::Pending => stats.pending = row.count,
            Status::Dropped => drop(stats.dropped.insert(row.drop_reason, row.count)),
            Status::Submitted => {
                stats.fired = row.count;
                let lateness = row.lateness.unwrap_or_default();
                let millis = |index: usize| {
                    let late = lateness.get(index).copied().unwrap_or_default().max(0);
                    i32::try_from(late).unwrap_or(i32::MAX)
                };
                (stats.lateness_p50_ms, stats.lateness_p99_ms) = (millis(0), millis(1));
            }
        }
    }
    Ok(stats)
}

/// How much is forgotten in one statement.
const AT_ONCE: i64 = 1_000;

/// Forgets some of what fired before `before`, and wake-ups that were over by then. `true`: there
/// may be more.
pub async fn forget(db: &PgPool, before: Timestamp) -> Result<bool> {
    let firings = sqlx::query!(
        r#"
        delete from triggers.firing where id in (
            select id from triggers.firing where id < $1 and status <> 'pending' order by id limit $2)
        "#,
        FiringId::first_at(before) as _,
        AT_ONCE,
    )
    .execute(db)
    .await?;
    let wakeups = sqlx::query_scalar!(
        r#"
        with gone as (
            delete from triggers.trigger where id in (
                select id from triggers.trigger
                where source = 'self_schedule' and status in ('expired', 'finished') and updated_at < $1
                order by updated_at limit $2)
            returning id
        ), throttle as (
            delete from triggers.throttle where trigger_id in (select id from gone)
        )
        select count(*) as "count!" from gone
        "#,
        before.to_sqlx() as _,
        AT_ONCE,
    )
    .fetch_one(db)
    .await?;
    Ok(firings.rows_affected() + wakeups.unsigned_abs() >= AT_ONCE.unsigned_abs())
}

/// Forgets some of the minutes before `before`, and with them those of triggers that are gone. `true`:
/// there may be more.
pub async fn forget_minutes(db: &PgPool, before: Timestamp) -> Result<bool> {
    // One that somebody counts in is not over, and waiting for it would be the wrong way round for
    // firings, which take theirs in an order.
    let minutes = sqlx::query!(
        r#"
        delete from triggers.throttle where trigger_id in (
            select trigger_id from triggers.throttle where minute < $1 limit $2 for update skip locked)
        "#,
        before.to_sqlx() as _,
        AT_ONCE,
    )
    .execute(db)
    .await?;
    Ok(minutes.rows_affected() >= AT_ONCE.unsigned_abs())
}
