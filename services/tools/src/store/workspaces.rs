//! What is known of workspaces beside their files.

use chassis::Tenant;
use jiff_sqlx::Timestamp;
use sqlx::PgExecutor;

use crate::{
    call::{ReplicaId, WorkspaceId},
    error::{Error, Result},
};

#[derive(Debug, Clone)]
pub struct Workspace {
    pub workspace_id: WorkspaceId,
    pub project: String,
    pub quota_bytes: Option<i64>,
    pub replica_id: Option<ReplicaId>,
    pub create_time: Timestamp,
    pub deleting: bool,
}

#[derive(Debug)]
pub struct New<'a> {
    pub tenant: &'a Tenant,
    pub workspace_id: WorkspaceId,
    pub request_id: &'a str,
    pub request_digest: &'a str,
    pub project: &'a str,
    pub quota_bytes: Option<i64>,
    pub replica_id: Option<ReplicaId>,
}

/// Creates a workspace, or finds the one that this request created before.
pub async fn create(db: &sqlx::PgPool, new: New<'_>) -> Result<Workspace> {
    sqlx::query!(
        r#"
        insert into tools.workspace
            (tenant_id, workspace_id, request_id, request_digest, project, quota_bytes, replica_id)
        values ($1, $2, $3, $4, $5, $6, $7)
        on conflict (tenant_id, request_id) do nothing
        "#,
        new.tenant.as_str(),
        new.workspace_id as _,
        new.request_id,
        new.request_digest,
        new.project,
        new.quota_bytes,
        new.replica_id as _,
    )
    .execute(db)
    .await?;
    let found = sqlx::query!(
        r#"
        select workspace_id as "workspace_id: WorkspaceId", request_digest
        from tools.workspace
        where tenant_id = $1 and request_id = $2
        "#,
        new.tenant.as_str(),
        new.request_id,
    )
    .fetch_one(db)
    .await?;
    if found.request_digest.as_deref() != Some(new.request_digest) {
        return Err(Error::RequestIdReused(new.request_id.to_owned()));
    }
    let id = found.workspace_id;
    let workspace = get(db, new.tenant, id).await?.filter(|workspace| !workspace.deleting);
    workspace.ok_or(Error::WorkspaceNotFound(id))
}

pub async fn get(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    id: WorkspaceId,
) -> Result<Option<Workspace>> {
    let found = sqlx::query_as!(
        Workspace,
        r#"
        select
            workspace_id as "workspace_id: WorkspaceId", project, quota_bytes,
            replica_id as "replica_id: ReplicaId", create_time as "create_time: Timestamp", deleting
        from tools.workspace
        where tenant_id = $1 and workspace_id = $2
        "#,
        tenant.as_str(),
        id as _,
    )
    .fetch_optional(db)
    .await?;
    Ok(found)
}

/// Makes a workspace that is used for the first time, and says whose it is: of all who try, the
/// first has it.
pub async fn claim(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    id: WorkspaceId,
    replica: Option<ReplicaId>,
) -> Result<Workspace> {
    let claimed = sqlx::query_as!(
        Workspace,
        r#"
        insert into tools.workspace as workspace (tenant_id, workspace_id, replica_id)
        values ($1, $2, $3)
        on conflict (tenant_id, workspace_id)
            do update set replica_id = coalesce(workspace.replica_id, excluded.replica_id)
        returning
            workspace_id as "workspace_id: WorkspaceId", project, quota_bytes,
            replica_id as "replica_id: ReplicaId", create_time as "create_time: Timestamp", deleting
        "#,
        tenant.as_str(),
        id as _,
        replica as _,
    )
    .fetch_one(db)
    .await?;
    Ok(claimed)
}

/// Claims what lies on a disk since before workspaces had replicas.
pub async fn adopt(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    ids: &[WorkspaceId],
    replica: ReplicaId,
) -> Result<()> {
    sqlx::query!(
        r#"
        insert into tools.workspace as workspace (tenant_id, workspace_id, replica_id)
        select $1, id, $3 from unnest($2::text[]) as id
        on conflict (tenant_id, workspace_id)
            do update set replica_id = excluded.replica_id where workspace.replica_id is null
        "#,
        tenant.as_str(),
        ids as _,
        replica as _,
    )
    .execute(db)
    .await?;
    Ok(())
}

/// The newest first, and of those only what is older than `before`. Ids begin with their time.
pub async fn list(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    before: Option<WorkspaceId>,
    limit: i64,
) -> Result<Vec<Workspace>> {
    let found = sqlx::query_as!(
        Workspace,
        r#"
        select
            workspace_id as "workspace_id: WorkspaceId", project, quota_bytes,
            replica_id as "replica_id: ReplicaId", create_time as "create_time: Timestamp", deleting
        from tools.workspace
        where tenant_id = $1 and ($2::text is null or workspace_id < $2) and not deleting
        order by workspace_id desc
        limit $3
        "#,
        tenant.as_str(),
        before as _,
        limit,
    )
    .fetch_all(db)
    .await?;
    Ok(found)
}

/// From now on it is gone, whatever happens to us.
pub async fn mark_deleting(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    id: WorkspaceId,
) -> Result<()> {
    sqlx::query!(
        "update tools.workspace set deleting = true where tenant_id = $1 and workspace_id = $2",
        tenant.as_str(),
        id as _,
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Forgets a workspace whose files are gone, and its snapshots.
pub async fn forget(db: impl PgExecutor<'_>, tenant: &Tenant, id: WorkspaceId) -> Result<()> {
    sqlx::query!(
        "delete from tools.workspace where tenant_id = $1 and workspace_id = $2 and deleting",
        tenant.as_str(),
        id as _,
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Some workspaces on this disk that somebody began to delete.
pub async fn unfinished(
    db: impl PgExecutor<'_>,
    replica: Option<ReplicaId>,
    limit: i64,
) -> Result<Vec<(Tenant, WorkspaceId)>> {
    let found = sqlx::query!(
        r#"
        select tenant_id, workspace_id as "workspace_id: WorkspaceId"
        from tools.workspace
        where deleting and replica_id is not distinct from $1
        limit $2
        "#,
        replica as _,
        limit,
    )
    .fetch_all(db)
    .await?;
    // Every tenant that is stored was one when it came.
    let known = found.into_iter();
    Ok(known.filter_map(|row| Some((row.tenant_id.parse().ok()?, row.workspace_id))).collect())
}
