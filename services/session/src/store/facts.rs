use std::time::Duration;

use chassis::Tenant;
use proto::event::v1::{Event, RareIds};
use serde::Serialize;
use serde_json::value::RawValue;
use sqlx::{PgExecutor, types::Json};

use crate::{
    error::Result,
    ids::{ReplicaId, SessionId},
    store::events,
};

/// A fact of the tools service on its way into the log.
#[derive(Debug, Serialize)]
pub struct Fact {
    pub number: i64,
    pub r#type: String,
    pub ids: RareIds,
    pub payload: Box<RawValue>,
}

/// Appends those of a session's facts that are not in its log yet, and returns what is to be
/// published. Facts of a session that is gone are dropped.
pub async fn append(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    session_id: SessionId,
    facts: &[Fact],
    replica: ReplicaId,
) -> Result<Vec<Event>> {
    let row = sqlx::query!(
        r#"select session.append_facts($1, $2, $3, $4) as "events: Json<Vec<events::Row>>""#,
        tenant as _,
        session_id as _,
        Json(facts) as _,
        replica as _,
    )
    .fetch_one(db)
    .await?;
    events::decode(row.events.map(|events| events.0).unwrap_or_default())
}

/// Some sessions that are gone and of which the tools service is to be told, for a while ours.
pub async fn ended(
    db: impl PgExecutor<'_>,
    limit: i64,
    lease: Duration,
) -> Result<Vec<(Tenant, SessionId)>> {
    let rows = sqlx::query!(
        r#"
        update session.ended e set leased_until = now() + make_interval(secs => $2)
        where e.session_id in (
            select session_id from session.ended
            where leased_until <= now() order by ended_at limit $1 for update skip locked)
        returning tenant_id as "tenant: Tenant", session_id as "session_id: SessionId"
        "#,
        limit,
        lease.as_secs_f64(),
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(|row| (row.tenant, row.session_id)).collect())
}

/// The tools service has heard that a session is gone.
pub async fn told(db: impl PgExecutor<'_>, session_id: SessionId) -> Result<()> {
    sqlx::query!("delete from session.ended where session_id = $1", session_id as _)
        .execute(db)
        .await?;
    Ok(())
}
