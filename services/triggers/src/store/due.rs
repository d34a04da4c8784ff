//! What is due, for one replica at a time.

use std::collections::HashMap;

use chassis::Tenant;
use jiff::Timestamp;
use jiff_sqlx::{Timestamp as Time, ToSqlx as _};
use sqlx::{PgConnection, PgExecutor, types::Json};

use crate::{
    error::Result,
    ids::TriggerId,
    trigger::{Definition, Source, Status, Trigger},
};

/// A schedule that is due.
#[derive(Debug, Clone)]
pub struct DueTrigger {
    pub trigger: Trigger,
    pub fire_at: Timestamp,
}

/// Locks what is due, the longest overdue first, until the transaction ends. Others pass over it.
pub async fn claim(db: &mut PgConnection, now: Timestamp, limit: i64) -> Result<Vec<DueTrigger>> {
    let due = sqlx::query!(
        r#"
        select trigger_id, fire_at as "fire_at: Time" from triggers.due
        where fire_at <= $1 order by fire_at, trigger_id limit $2 for update skip locked
        "#,
        now.to_sqlx() as _,
        limit,
    )
    .fetch_all(&mut *db)
    .await?;
    if due.is_empty() {
        return Ok(vec![]);
    }
    // Lock first, read second: from here on nobody changes what they are.
    let ids: Vec<String> = due.iter().map(|due| due.trigger_id.clone()).collect();
    let rows = sqlx::query!(
        r#"
        select id as "id: TriggerId", tenant_id as "tenant: Tenant", subject, source as "source: Source",
            definition as "definition: Json<Definition>", created_at as "created_at: Time",
            expires_at as "expires_at: Time"
        from triggers.trigger where id = any($1)
        "#,
        &ids,
    )
    .fetch_all(db)
    .await?;
    let triggers = rows.into_iter().map(|row| Trigger {
        id: row.id,
        tenant: row.tenant,
        subject: row.subject,
        source: row.source,
        definition: row.definition.0,
        status: Status::Active,
        created_at: row.created_at.to_jiff(),
        expires_at: row.expires_at.map(Time::to_jiff),
    });
    let mut triggers: HashMap<String, Trigger> =
        triggers.map(|trigger| (trigger.id.to_string(), trigger)).collect();
    let due = due.into_iter().filter_map(|due| {
        let trigger = triggers.remove(&due.trigger_id)?;
        Some(DueTrigger { trigger, fire_at: due.fire_at.to_jiff() })
    });
    Ok(due.collect())
}

/// When each of some schedules that were claimed is due again, or what has become of those that
/// are not: `expired` or `finished`.
pub async fn advance(
    db: impl PgExecutor<'_>,
    next: &[(TriggerId, Result<Timestamp, Status>)],
    now: Timestamp,
) -> Result<()> {
    let ids: Vec<String> = next.iter().map(|(id, _)| id.to_string()).collect();
    let times: Vec<Option<Time>> =
        next.iter().map(|(_, next)| next.as_ref().ok().map(|time| time.to_sqlx())).collect();
    let ends: Vec<Option<String>> =
        next.iter().map(|(_, next)| next.as_ref().err().map(Status::to_string)).collect();
    sqlx::query!(
        r#"
        with next as materialized (
            select * from unnest($1::text[], $2::timestamptz[], $3::text[]) as n(id, fire_at, status)
        ), moved as (
            update triggers.due d set fire_at = n.fire_at
            from next n where d.trigger_id = n.id and n.fire_at is not null
        ), over as (
            delete from triggers.due d using next n where d.trigger_id = n.id and n.fire_at is null
        )
        update triggers.trigger t set status = n.status, updated_at = $4
        from next n where t.id = n.id and n.fire_at is null
        "#,
        &ids,
        &times as _,
        &ends as _,
        now.to_sqlx() as _,
    )
    .execute(db)
    .await?;
    Ok(())
}

/// When the next schedule is due.
pub async fn next(db: impl PgExecutor<'_>) -> Result<Option<Timestamp>> {
    let next = sqlx::query_scalar!(
        r#"select fire_at as "fire_at: Time" from triggers.due order by fire_at, trigger_id limit 1"#
    )
    .fetch_optional(db)
    .await?;
    Ok(next.map(Time::to_jiff))
}

/// When the next schedule of a tenant is due.
pub async fn next_of(db: impl PgExecutor<'_>, tenant: &Tenant) -> Result<Option<Timestamp>> {
    let next = sqlx::query_scalar!(
        r#"
        select min(d.fire_at) as "fire_at: Time"
        from triggers.due d join triggers.trigger t on t.id = d.trigger_id
        where t.tenant_id = $1
        "#,
        tenant as _,
    )
    .fetch_one(db)
    .await?;
    Ok(next.map(Time::to_jiff))
}
