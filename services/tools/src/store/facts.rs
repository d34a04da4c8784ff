use std::time::Duration;

use chassis::Tenant;
use prost::Message as _;
use proto::{event::v1::Event, tools::v1::Fact};
use sqlx::{PgExecutor, postgres::types::PgInterval};

use crate::{call::SessionId, error::Result};

/// How facts travel to the functions of the database.
pub fn encode(events: &[Event]) -> Vec<Vec<u8>> {
    events.iter().map(Event::encode_to_vec).collect()
}

/// Takes the oldest facts that nobody has, for as long as `lease`.
pub async fn take(db: impl PgExecutor<'_>, limit: i32, lease: Duration) -> Result<Vec<Fact>> {
    let microseconds = i64::try_from(lease.as_micros()).unwrap_or(i64::MAX);
    let lease = PgInterval { months: 0, days: 0, microseconds };
    let rows = sqlx::query!(
        r#"select tenant_id as "tenant_id!", number as "number!", event as "event!" from tools.take_facts($1, $2)"#,
        limit,
        lease,
    )
    .fetch_all(db)
    .await?;
    let facts = rows.into_iter().map(|row| {
        let event = Event::decode(row.event.as_slice()).map_err(|error| {
            sqlx::Error::ColumnDecode { index: "event".into(), source: error.into() }
        })?;
        Ok(Fact { tenant_id: row.tenant_id, number: row.number, event: Some(event) })
    });
    facts.collect()
}

/// Forgets a session's facts up to a number.
pub async fn forget(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    session_id: SessionId,
    through: i64,
) -> Result<()> {
    sqlx::query!(
        "delete from tools.fact where tenant_id = $1 and session_id = $2 and number <= $3",
        tenant.as_str(),
        session_id as _,
        through,
    )
    .execute(db)
    .await?;
    Ok(())
}
