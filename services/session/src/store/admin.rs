//! What people do to sessions as a whole.

use chassis::Tenant;
use proto::event::v1::Event;
use sqlx::{PgExecutor, types::Json};

use crate::{
    error::{Error, Result},
    ids::{SessionId, TurnId},
    store::{
        queue::{Events, published},
        turns::Stamp,
    },
};

/// Changes what is given. Returns what is to be published.
pub async fn update(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    id: SessionId,
    title: Option<&str>,
    archived: Option<bool>,
    stamp: &Stamp,
) -> Result<Vec<Event>> {
    let row = sqlx::query!(
        r#"
        select outcome as "outcome!", events as "events: Events"
        from session.update_session($1, $2, $3, $4, $5)
        "#,
        tenant as _,
        id as _,
        title,
        archived,
        Json(stamp) as _,
    )
    .fetch_one(db)
    .await?;
    match row.outcome.as_str() {
        "not_found" => Err(Error::SessionNotFound(id)),
        _ => published(row.events),
    }
}

/// Names a session that still has no title. Returns what is to be published.
pub async fn name(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    id: SessionId,
    title: &str,
    stamp: &Stamp,
) -> Result<Vec<Event>> {
    let named = sqlx::query_scalar!(
        r#"select session.name_session($1, $2, $3, $4) as "events: Events""#,
        tenant as _,
        id as _,
        title,
        Json(stamp) as _,
    )
    .fetch_one(db)
    .await?;
    published(named)
}

/// Deletes a session at rest. Nobody sees any of it from here on, and [`purge`] removes what it said
/// and its log. One that is not there is deleted.
pub async fn delete(db: impl PgExecutor<'_>, tenant: &Tenant, id: SessionId) -> Result<()> {
    let row = sqlx::query!(
        r#"
        select outcome as "outcome!", turn_id as "turn_id: TurnId"
        from session.delete_session($1, $2)
        "#,
        tenant as _,
        id as _,
    )
    .fetch_one(db)
    .await?;
    let turn_id = row.turn_id;
    match row.outcome.as_str() {
        "busy" => Err(Error::NotAtRest { id, turn_id, problem: "a turn runs or waits" }),
        "queued" => Err(Error::NotAtRest { id, turn_id, problem: "turns wait in its queue" }),
        _ => Ok(()),
    }
}

/// Some ephemeral forks and children of a session, also of one that is gone.
pub async fn dependents(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    id: SessionId,
    limit: i64,
) -> Result<Vec<SessionId>> {
    let ids = sqlx::query_scalar!(
        r#"
        select id as "id: SessionId"
        from session.chat_sessions
        where tenant_id = $1 and parent_id = $2 and (ephemeral or child is not null)
        order by updated_at desc, id desc
        limit $3
        "#,
        tenant as _,
        id as _,
        limit,
    )
    .fetch_all(db)
    .await?;
    Ok(ids)
}

/// Removes some of what is left of a session that is gone. Returns whether there may be more to remove.
pub async fn purge(db: impl PgExecutor<'_>, limit: i32) -> Result<bool> {
    let purged = sqlx::query_scalar!("select session.purge($1)", limit).fetch_one(db).await?;
    Ok(purged.is_some())
}
