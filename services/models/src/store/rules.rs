use chassis::Tenant;
use sqlx::{PgConnection, PgExecutor, PgPool};

use crate::{
    error::{Error, Result},
    limit::{Limit, Purse, Rules, Terms},
    store::changes,
};

/// How many limits a tenant may set.
pub const MAX_LIMITS: i64 = 500;

/// Everything a tenant has set.
pub async fn all(db: &mut PgConnection, tenant: &Tenant) -> Result<Rules> {
    let limits = list(&mut *db, tenant, None, MAX_LIMITS).await?;
    let budgets = sqlx::query_as!(
        Purse,
        r#"select id as "id: _", name, amount_micros from models.budget where tenant_id = $1"#,
        tenant.as_str(),
    )
    .fetch_all(&mut *db)
    .await?;
    Ok(Rules { limits, budgets, changes: changes::all(db, tenant).await? })
}

/// The limits behind `after`, in the order of their names.
pub async fn list(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    after: Option<&(String, String, String)>,
    limit: i64,
) -> Result<Vec<Limit>> {
    let name = after.map(|(name, _, _)| name.as_str());
    let scope = after.map(|(_, scope, _)| scope.as_str());
    let key = after.map(|(_, _, key)| key.as_str());
    let rows = sqlx::query!(
        r#"
        select name, scope, key, value, queue_ms
        from models.rule
        where tenant_id = $1 and ($2::text is null or (name, scope, key) > ($2, $3, $4))
        order by name, scope, key
        limit $5
        "#,
        tenant.as_str(),
        name,
        scope,
        key,
        limit,
    )
    .fetch_all(db)
    .await?;
    let known = |problem: &'static str| Error::Corrupt(problem);
    rows.into_iter()
        .map(|row| {
            Ok(Limit {
                name: row.name.parse().map_err(known)?,
                scope: row.scope.parse().map_err(known)?,
                key: row.key,
                terms: Terms { value: row.value, queue_ms: row.queue_ms },
            })
        })
        .collect()
}

/// Sets a limit, or removes it with a value of zero. `false`: there are as many as there may be.
pub async fn set(db: &PgPool, tenant: &Tenant, subject: &str, limit: &Limit) -> Result<bool> {
    let mut transaction = changes::begin(db, tenant).await?;
    let before = sqlx::query_scalar!(
        "select value from models.rule where tenant_id = $1 and name = $2 and scope = $3 and key = $4",
        tenant.as_str(),
        limit.name.as_str(),
        limit.scope.as_str(),
        limit.key,
    )
    .fetch_optional(&mut *transaction)
    .await?;
    match limit.terms.value {
        0 => remove(&mut *transaction, tenant, limit).await?,
        _ if before.is_none() && is_full(&mut *transaction, tenant).await? => return Ok(false),
        _ => put(&mut *transaction, tenant, limit).await?,
    }
    let place = (limit.name.as_str(), limit.scope.as_str(), limit.key.as_str());
    let values = (before.unwrap_or_default(), limit.terms.value);
    changes::note(&mut transaction, tenant, subject, place, values).await?;
    transaction.commit().await?;
    Ok(true)
}

async fn is_full(db: impl PgExecutor<'_>, tenant: &Tenant) -> Result<bool> {
    let count = sqlx::query_scalar!(
        r#"select count(*) as "count!" from models.rule where tenant_id = $1"#,
        tenant.as_str(),
    )
    .fetch_one(db)
    .await?;
    Ok(count >= MAX_LIMITS)
}

async fn put(db: impl PgExecutor<'_>, tenant: &Tenant, limit: &Limit) -> Result<()> {
    sqlx::query!(
        r#"
        insert into models.rule (tenant_id, name, scope, key, value, queue_ms)
        values ($1, $2, $3, $4, $5, $6)
        on conflict (tenant_id, name, scope, key)
            do update set value = excluded.value, queue_ms = excluded.queue_ms, updated_at = now()
        "#,
        tenant.as_str(),
        limit.name.as_str(),
        limit.scope.as_str(),
        limit.key,
        limit.terms.value,
        limit.terms.queue_ms,
    )
    .execute(db)
    .await?;
    Ok(())
}

async fn remove(db: impl PgExecutor<'_>, tenant: &Tenant, limit: &Limit) -> Result<()> {
    sqlx::query!(
        "delete from models.rule where tenant_id = $1 and name = $2 and scope = $3 and key = $4",
        tenant.as_str(),
        limit.name.as_str(),
        limit.scope.as_str(),
        limit.key,
    )
    .execute(db)
    .await?;
    Ok(())
}
