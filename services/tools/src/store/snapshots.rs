//! Which snapshots there are.

use std::fmt;

use chassis::Tenant;
use jiff_sqlx::Timestamp;
use sqlx::PgExecutor;

use crate::{
    call::{SnapshotId, WorkspaceId},
    error::Result,
};

#[derive(Debug, Clone)]
pub struct Snapshot {
    pub snapshot_id: SnapshotId,
    pub stored: bool,
    pub create_time: Timestamp,
}

/// Which snapshot is meant.
#[derive(Debug, Clone)]
pub enum Which {
    Id(SnapshotId),
    /// The one that was taken with this request.
    Request(String),
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Which::Id(id) => id.fmt(f),
            Which::Request(request) => write!(f, "of request {request}"),
        }
    }
}

/// Puts a snapshot on record that is about to be taken, or finds the one that this request
/// began before.
pub async fn begin(
    db: &sqlx::PgPool,
    tenant: &Tenant,
    workspace_id: WorkspaceId,
    new: SnapshotId,
    request_id: &str,
) -> Result<Option<Snapshot>> {
    sqlx::query!(
        r#"
        insert into tools.snapshot (tenant_id, workspace_id, snapshot_id, request_id)
        select $1, $2, $3, $4
        where exists (
            select from tools.workspace
            where tenant_id = $1 and workspace_id = $2 and not deleting
        )
        on conflict (tenant_id, workspace_id, request_id) do nothing
        "#,
        tenant.as_str(),
        workspace_id as _,
        new as _,
        request_id,
    )
    .execute(db)
    .await?;
    find(db, tenant, workspace_id, &Which::Request(request_id.to_owned())).await
}

pub async fn find(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    workspace_id: WorkspaceId,
    which: &Which,
) -> Result<Option<Snapshot>> {
    let (id, request) = match which {
        Which::Id(id) => (Some(*id), None),
        Which::Request(request) => (None, Some(request.as_str())),
    };
    let found = sqlx::query_as!(
        Snapshot,
        r#"
        select
            snapshot_id as "snapshot_id: SnapshotId", stored,
            create_time as "create_time: Timestamp"
        from tools.snapshot
        where tenant_id = $1 and workspace_id = $2 and (snapshot_id = $3 or request_id = $4)
        "#,
        tenant.as_str(),
        workspace_id as _,
        id as _,
        request,
    )
    .fetch_optional(db)
    .await?;
    Ok(found)
}

/// All of it is on disk. Whether it is still on record.
pub async fn stored(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    workspace_id: WorkspaceId,
    id: SnapshotId,
) -> Result<bool> {
    let updated = sqlx::query!(
        r#"
        update tools.snapshot set stored = true
        where tenant_id = $1 and workspace_id = $2 and snapshot_id = $3
        "#,
        tenant.as_str(),
        workspace_id as _,
        id as _,
    )
    .execute(db)
    .await?;
    Ok(updated.rows_affected() > 0)
}

/// What is older than the `keep` latest snapshots, and what was begun and never came to its end.
pub async fn surplus(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    workspace_id: WorkspaceId,
    keep: i64,
) -> Result<Vec<SnapshotId>> {
    let ids = sqlx::query_scalar!(
        r#"
        select snapshot_id as "snapshot_id: SnapshotId"
        from tools.snapshot
        where tenant_id = $1 and workspace_id = $2 and (
            (create_time, snapshot_id) < (
                select create_time, snapshot_id
                from tools.snapshot
                where tenant_id = $1 and workspace_id = $2 and stored
                order by create_time desc, snapshot_id desc
                offset greatest($3::bigint - 1, 0)
                limit 1
            )
            or (not stored and create_time < now() - interval '1 day')
        )
        limit 1000
        "#,
        tenant.as_str(),
        workspace_id as _,
        keep,
    )
    .fetch_all(db)
    .await?;
    Ok(ids)
}

pub async fn forget(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    workspace_id: WorkspaceId,
    id: SnapshotId,
) -> Result<()> {
    sqlx::query!(
        r#"
        delete from tools.snapshot
        where tenant_id = $1 and workspace_id = $2 and snapshot_id = $3
        "#,
        tenant.as_str(),
        workspace_id as _,
        id as _,
    )
    .execute(db)
    .await?;
    Ok(())
}
