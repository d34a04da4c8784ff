use chassis::Tenant;
use jiff_sqlx::Timestamp as Time;
use proto::session::v1::Manifest;
use sqlx::{PgExecutor, PgPool, types::Json};

use crate::{
    agent::Agent,
    error::{Error, Result},
};

/// An agent of a tenant's, and when this version of it was stored.
#[derive(Debug)]
pub struct Stored {
    pub agent: Agent,
    pub created_at: Time,
}

/// Stores a manifest as the next version, unless it is the same as the latest.
pub async fn put(
    db: &PgPool,
    tenant: &Tenant,
    id: &str,
    manifest: &Manifest,
    digest: &str,
) -> Result<Stored> {
    // Of several that store the same version at once one wins; the others look again.
    loop {
        match put_once(db, tenant, id, manifest, digest).await {
            Err(Error::Database(sqlx::Error::Database(error))) if error.is_unique_violation() => {}
            result => return result,
        }
    }
}

async fn put_once(
    db: &PgPool,
    tenant: &Tenant,
    id: &str,
    manifest: &Manifest,
    digest: &str,
) -> Result<Stored> {
    let row = sqlx::query!(
        r#"
        with latest as (
            select version, digest, manifest, created_at, deleted_at from session.agent
            where tenant_id = $1 and id = $2
            order by version desc
            limit 1
        ), added as (
            insert into session.agent (tenant_id, id, version, manifest, digest)
            select $1, $2, coalesce((select version from latest), 0) + 1, $3, $4
            where not exists (select from latest where digest = $4 and deleted_at is null)
            returning version, manifest, created_at
        )
        select version as "version!", manifest as "manifest!: Json<Manifest>", created_at as "created_at!: Time"
        from added
        union all
        select version, manifest, created_at from latest where not exists (select from added)
        "#,
        tenant as _,
        id,
        Json(manifest) as _,
        digest,
    )
    .fetch_one(db)
    .await?;
    let agent = Agent { id: id.to_owned(), version: row.version, manifest: row.manifest.0 };
    Ok(Stored { agent, created_at: row.created_at })
}

/// An agent in a given version, or in its latest if that is zero.
pub async fn get(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    id: &str,
    version: i32,
) -> Result<Option<Stored>> {
    let row = sqlx::query!(
        r#"
        select version, manifest as "manifest: Json<Manifest>", created_at as "created_at: Time",
               deleted_at is not null as "deleted!"
        from session.agent
        where tenant_id = $1 and id = $2 and ($3 = 0 or version = $3)
        order by version desc
        limit 1
        "#,
        tenant as _,
        id,
        version,
    )
    .fetch_optional(db)
    .await?;
    // A version is found by its number for ever; a deleted agent is not found by its name.
    Ok(row.filter(|row| version != 0 || !row.deleted).map(|row| Stored {
        agent: Agent { id: id.to_owned(), version: row.version, manifest: row.manifest.0 },
        created_at: row.created_at,
    }))
}

/// Agents in their latest versions by id, those after `after`.
pub async fn list(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    after: &str,
    limit: i64,
) -> Result<Vec<Stored>> {
    let rows = sqlx::query!(
        r#"
        select id, version, manifest as "manifest: Json<Manifest>", created_at as "created_at: Time"
        from (
            select distinct on (id) * from session.agent
            where tenant_id = $1 and id > $2
            order by id, version desc
        ) latest
        where deleted_at is null
        order by id
        limit $3
        "#,
        tenant as _,
        after,
        limit,
    )
    .fetch_all(db)
    .await?;
    let stored = rows.into_iter().map(|row| Stored {
        agent: Agent { id: row.id, version: row.version, manifest: row.manifest.0 },
        created_at: row.created_at,
    });
    Ok(stored.collect())
}

/// Takes an agent out of use. Returns whether the tenant ever had one of this name.
pub async fn delete(db: impl PgExecutor<'_>, tenant: &Tenant, id: &str) -> Result<bool> {
    let existed = sqlx::query_scalar!(
        r#"
        with latest as (
            select version from session.agent
            where tenant_id = $1 and id = $2
            order by version desc
            limit 1
        ), deleted as (
            update session.agent a set deleted_at = now()
            from latest
            where a.tenant_id = $1 and a.id = $2 and a.version = latest.version and a.deleted_at is null
        )
        select exists (select from latest) as "existed!"
        "#,
        tenant as _,
        id,
    )
    .fetch_one(db)
    .await?;
    Ok(existed)
}
