//! Who is connected to the MCP server of which trigger.

use std::time::Duration;

use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use sqlx::PgExecutor;

use crate::{error::Result, ids::TriggerId};

/// Renews what `owner` has and takes up to `most` that nobody has. Returns all that it has then, with
/// the epoch in which it does.
pub async fn hold(
    db: impl PgExecutor<'_>,
    owner: &str,
    now: Timestamp,
    lease: Duration,
    most: i64,
) -> Result<Vec<(TriggerId, i64)>> {
    // By the time at which the statement began, so that a row is either renewed or taken.
    let rows = sqlx::query!(
        r#"
        with active as (
            select t.id, w.trigger_id is null or w.lease_until < now() as free, w.owner
            from triggers.trigger t left join triggers.mcp_watch w on w.trigger_id = t.id
            where t.source = 'mcp_event' and t.status = 'active'
                and (t.expires_at is null or t.expires_at > $3)
        ), taken as (
            insert into triggers.mcp_watch as w (trigger_id, owner, epoch, lease_until)
            select id, $1, 1, now() + make_interval(secs => $2) from active
            where free order by id limit $4
            on conflict (trigger_id) do update
            set owner = excluded.owner, epoch = w.epoch + 1, lease_until = excluded.lease_until
            where w.lease_until < now()
            returning w.trigger_id, w.epoch
        ), renewed as (
            update triggers.mcp_watch w set lease_until = now() + make_interval(secs => $2)
            from active a
            where w.trigger_id = a.id and w.owner = $1 and w.lease_until >= now()
            returning w.trigger_id, w.epoch
        )
        select trigger_id as "trigger_id!: TriggerId", epoch as "epoch!" from taken
        union all
        select trigger_id, epoch from renewed
        "#,
        owner,
        lease.as_secs_f64(),
        now.to_sqlx() as _,
        most,
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(|row| (row.trigger_id, row.epoch)).collect())
}

/// Whether somebody still has what they had, and for at least so long.
pub async fn holds(
    db: impl PgExecutor<'_>,
    id: TriggerId,
    owner: &str,
    epoch: i64,
    for_at_least: Duration,
) -> Result<bool> {
    let holds = sqlx::query_scalar!(
        r#"
        select exists (
            select from triggers.mcp_watch
            where trigger_id = $1 and owner = $2 and epoch = $3
                and lease_until > clock_timestamp() + make_interval(secs => $4)
        ) as "holds!"
        "#,
        id as _,
        owner,
        epoch,
        for_at_least.as_secs_f64(),
    )
    .fetch_one(db)
    .await?;
    Ok(holds)
}

/// Lets others take everything at once.
pub async fn let_go(db: impl PgExecutor<'_>, owner: &str) -> Result<()> {
    sqlx::query!(
        "update triggers.mcp_watch set lease_until = '-infinity' where owner = $1",
        owner,
    )
    .execute(db)
    .await?;
    Ok(())
}
