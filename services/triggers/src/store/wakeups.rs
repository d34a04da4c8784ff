use chassis::Tenant;
use sqlx::{PgConnection, PgExecutor};

use crate::{error::Result, ids::TriggerId};

/// Keeps wake-ups of one session from being counted while others are made, until the transaction
/// ends.
pub async fn lock(db: &mut PgConnection, session_id: &str) -> Result<()> {
    sqlx::query!("select pg_advisory_xact_lock(hashtextextended($1, 7))", session_id)
        .fetch_one(db)
        .await?;
    Ok(())
}

/// How many wake-ups of a session are to come.
pub async fn count(db: &mut PgConnection, tenant: &Tenant, session_id: &str) -> Result<i64> {
    let count = sqlx::query_scalar!(
        r#"
        select count(*) as "count!" from triggers.trigger
        where session_id = $1 and tenant_id = $2 and source = 'self_schedule' and status in ('active', 'paused')
        "#,
        session_id,
        tenant as _,
    )
    .fetch_one(db)
    .await?;
    Ok(count)
}

/// Takes a wake-up back. A session takes back its own.
pub async fn cancel(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    session_id: &str,
    id: TriggerId,
) -> Result<bool> {
    let is_gone = sqlx::query_scalar!(
        r#"
        with due as (
            select d.trigger_id from triggers.due d
            where d.trigger_id = $1
                and exists (select from triggers.trigger t where t.id = d.trigger_id and t.tenant_id = $2)
            for update of d
        ), gone as (
            delete from triggers.trigger t
            where t.id = $1 and t.tenant_id = $2 and t.session_id = $3 and t.source = 'self_schedule'
                and (select count(*) from due) >= 0
            returning t.id
        ), throttle as (
            delete from triggers.throttle where trigger_id in (select id from gone)
        )
        select exists (select from gone) as "is_gone!"
        "#,
        id as _,
        tenant as _,
        session_id,
    )
    .fetch_one(db)
    .await?;
    Ok(is_gone)
}

/// Takes back all wake-ups of a session, and drops what they fired and nobody has delivered yet.
pub async fn cancel_all(db: impl PgExecutor<'_>, tenant: &Tenant, session_id: &str) -> Result<i64> {
    let count = sqlx::query_scalar!(
        r#"
        with ours as materialized (
            select id from triggers.trigger
            where session_id = $1 and tenant_id = $2 and source = 'self_schedule'
        ), due as materialized (
            select d.trigger_id from triggers.due d where d.trigger_id in (select id from ours)
            order by d.trigger_id for update
        ), gone as (
            delete from triggers.trigger t using ours o
            where t.id = o.id and (select count(*) from due) >= 0
            returning t.id, t.status
        ), throttles as materialized (
            -- In the order in which firings take them, so that none waits for the other.
            select h.trigger_id from triggers.throttle h where h.trigger_id in (select id from gone)
            order by h.trigger_id for update
        ), unthrottled as (
            delete from triggers.throttle where trigger_id in (select trigger_id from throttles)
        )
        select count(*) filter (where status in ('active', 'paused')) as "count!" from gone
        "#,
        session_id,
        tenant as _,
    )
    .fetch_one(db)
    .await?;
    Ok(count)
}
