pub mod mcp_servers;
pub mod outputs;
pub mod policies;
pub mod replicas;
pub mod snapshots;
pub mod workspaces;

use chassis::Tenant;
use sqlx::{PgExecutor, migrate::Migrator};

use crate::{
    call::{Call, SessionId},
    error::{Error, Result},
};

/// The schema `tools`.
pub static MIGRATIONS: Migrator = sqlx::migrate!();

/// Lets a call start, once: remembers it and the epoch it came with, or refuses it.
///
/// One statement, so that the epoch it is judged by cannot rise before the call is on record.
pub async fn admit(db: impl PgExecutor<'_>, call: &Call) -> Result<()> {
    let found = sqlx::query!(
        r#"
        with fence as (
            insert into tools.fence as fence (tenant_id, session_id, epoch)
            values ($1, $2, $3)
            on conflict (tenant_id, session_id)
                do update set epoch = greatest(fence.epoch, excluded.epoch)
            returning epoch
        ), admitted as (
            insert into tools.call (tenant_id, session_id, tool_call_id, epoch)
            select $1, $2, $4, epoch from fence where epoch = $3
            on conflict do nothing
            returning true
        )
        select epoch as "epoch!", exists (select from admitted) as "admitted!" from fence
        "#,
        call.tenant.as_str(),
        call.session_id as _,
        call.epoch,
        call.tool_call_id as _,
    )
    .fetch_one(db)
    .await?;
    if found.epoch > call.epoch {
        let (session_id, epoch) = (call.session_id, call.epoch);
        return Err(Error::EpochStale { session_id, epoch, current_epoch: found.epoch });
    }
    match found.admitted {
        true => Ok(()),
        false => Err(Error::CallRepeated(call.tool_call_id)),
    }
}

/// The epoch in force after raising it to at least `epoch`.
pub async fn raise_epoch(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    session_id: SessionId,
    epoch: i64,
) -> Result<i64> {
    let epoch = sqlx::query_scalar!(
        r#"
        insert into tools.fence as fence (tenant_id, session_id, epoch)
        values ($1, $2, $3)
        on conflict (tenant_id, session_id)
            do update set epoch = greatest(fence.epoch, excluded.epoch)
        returning epoch
        "#,
        tenant.as_str(),
        session_id as _,
        epoch,
    )
    .fetch_one(db)
    .await?;
    Ok(epoch)
}

/// The epoch in force, zero for a session that nobody has called for.
pub async fn epoch(db: impl PgExecutor<'_>, tenant: &Tenant, session_id: SessionId) -> Result<i64> {
    let epoch = sqlx::query_scalar!(
        "select epoch from tools.fence where tenant_id = $1 and session_id = $2",
        tenant.as_str(),
        session_id as _,
    )
    .fetch_optional(db)
    .await?;
    Ok(epoch.unwrap_or_default())
}
