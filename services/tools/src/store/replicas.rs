//! Who there is to hold workspaces.

use sqlx::PgExecutor;

use crate::{call::ReplicaId, error::Result};

/// Says that a replica is there, and where.
pub async fn beat(db: impl PgExecutor<'_>, id: ReplicaId, address: &str) -> Result<()> {
    sqlx::query!(
        r#"
        insert into tools.replica (replica_id, address)
        values ($1, $2)
        on conflict (replica_id)
            do update set address = excluded.address, heartbeat_at = now()
        "#,
        id as _,
        address,
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Where a replica is reached, and how many seconds ago it was heard of.
pub async fn find(db: impl PgExecutor<'_>, id: ReplicaId) -> Result<Option<(String, f64)>> {
    let found = sqlx::query!(
        r#"
        select address, extract(epoch from now() - heartbeat_at)::float8 as "silence!"
        from tools.replica
        where replica_id = $1
        "#,
        id as _,
    )
    .fetch_optional(db)
    .await?;
    Ok(found.map(|row| (row.address, row.silence)))
}
