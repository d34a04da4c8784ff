use std::collections::BTreeMap;

use chassis::Tenant;
use sqlx::{PgExecutor, PgPool, types::Json};

use crate::{
    call::WorkspaceId,
    error::Result,
    mcp::{Address, Server},
};

/// How many servers one project may have, and so may all projects together.
pub const MOST: i64 = 50;

/// Stores a server, in place of one of the same id. Not when there are as many as there may be.
pub async fn put(db: &PgPool, tenant: &Tenant, project: &str, server: &Server) -> Result<bool> {
    let mut transaction = chassis::database::begin(db, "begin").await?;
    // Whoever counts must be the only one who adds.
    sqlx::query!(
        "select pg_advisory_xact_lock(hashtextextended('mcp_server ' || $1 || ' ' || $2, 0))",
        tenant.as_str(),
        project,
    )
    .fetch_one(&mut *transaction)
    .await?;
    let (command, url) = match &server.address {
        Address::Command(command) => (Some(command), None),
        Address::Url(url) => (None, Some(url)),
    };
    let stored = sqlx::query!(
        r#"
        insert into tools.mcp_server
            (tenant_id, project, mcp_server_id, command, url, secret_refs, trusted)
        select $1, $2, $3, $4, $5, $6, $7
        where exists (select from tools.mcp_server
                      where tenant_id = $1 and project = $2 and mcp_server_id = $3)
           or (select count(*) from tools.mcp_server
               where tenant_id = $1 and project = $2) < $8
        on conflict (tenant_id, project, mcp_server_id) do update
        set command = excluded.command, url = excluded.url,
            secret_refs = excluded.secret_refs, trusted = excluded.trusted
        "#,
        tenant.as_str(),
        project,
        server.id,
        command,
        url,
        Json(&server.secret_refs) as _,
        server.trusted,
        MOST,
    )
    .execute(&mut *transaction)
    .await?;
    transaction.commit().await?;
    Ok(stored.rows_affected() > 0)
}

/// The servers of a project whose ids come after `after`.
pub async fn list(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    project: &str,
    after: &str,
    limit: i64,
) -> Result<Vec<Server>> {
    let rows = sqlx::query_as!(
        Row,
        r#"
        select mcp_server_id, command, url, trusted,
               secret_refs as "secret_refs: Json<BTreeMap<String, String>>"
        from tools.mcp_server
        where tenant_id = $1 and project = $2 and mcp_server_id > $3
        order by mcp_server_id
        limit $4
        "#,
        tenant.as_str(),
        project,
        after,
        limit,
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(Into::into).collect())
}

/// One server of exactly this project.
pub async fn get(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    project: &str,
    id: &str,
) -> Result<Option<Server>> {
    let row = sqlx::query_as!(
        Row,
        r#"
        select mcp_server_id, command, url, trusted,
               secret_refs as "secret_refs: Json<BTreeMap<String, String>>"
        from tools.mcp_server
        where tenant_id = $1 and project = $2 and mcp_server_id = $3
        "#,
        tenant.as_str(),
        project,
        id,
    )
    .fetch_optional(db)
    .await?;
    Ok(row.map(Into::into))
}

/// The servers that a workspace has: those of its project, and those of all projects that the
/// project does not have its own in place of.
pub async fn of_workspace(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    workspace_id: WorkspaceId,
) -> Result<Vec<Server>> {
    let rows = sqlx::query_as!(
        Row,
        r#"
        select distinct on (mcp_server_id) mcp_server_id, command, url, trusted,
               secret_refs as "secret_refs: Json<BTreeMap<String, String>>"
        from tools.mcp_server
        where tenant_id = $1 and project in ('', coalesce(
            (select nullif(project, '') from tools.workspace
             where tenant_id = $1 and workspace_id = $2), $2))
        order by mcp_server_id, project desc
        limit $3
        "#,
        tenant.as_str(),
        workspace_id.to_string(),
        2 * MOST,
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(Into::into).collect())
}

/// Whether a tenant has any.
pub async fn any(db: impl PgExecutor<'_>, tenant: &Tenant) -> Result<bool> {
    let any = sqlx::query_scalar!(
        r#"select exists (select from tools.mcp_server where tenant_id = $1) as "any!""#,
        tenant.as_str(),
    )
    .fetch_one(db)
    .await?;
    Ok(any)
}

/// Whether there was one to delete.
pub async fn delete(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    project: &str,
    id: &str,
) -> Result<bool> {
    let deleted = sqlx::query!(
        "delete from tools.mcp_server
         where tenant_id = $1 and project = $2 and mcp_server_id = $3",
        tenant.as_str(),
        project,
        id,
    )
    .execute(db)
    .await?;
    Ok(deleted.rows_affected() > 0)
}

/// A server as it is stored.
struct Row {
    mcp_server_id: String,
    command: Option<String>,
    url: Option<String>,
    trusted: bool,
    secret_refs: Json<BTreeMap<String, String>>,
}

impl From<Row> for Server {
    fn from(row: Row) -> Server {
        // A constraint of the table keeps one of them there.
        let address = match (row.command, row.url) {
            (Some(command), _) => Address::Command(command),
            (None, url) => Address::Url(url.unwrap_or_default()),
        };
        let (secret_refs, trusted) = (row.secret_refs.0, row.trusted);
        Server { id: row.mcp_server_id, address, secret_refs, trusted }
    }
}
