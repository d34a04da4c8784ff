use chassis::Tenant;
use sqlx::{PgConnection, PgExecutor};

use crate::{
    error::{Error, Result},
    limit::{Limit, Purse, Rules, Terms},
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
    .fetch_all(db)
    .await?;
    Ok(Rules { limits, budgets })
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

/// Sets a limit. `false`: there are as many as there may be.
pub async fn put(db: impl PgExecutor<'_>, tenant: &Tenant, limit: &Limit) -> Result<bool> {
    let put = sqlx::query!(
        r#"
        insert into models.rule (tenant_id, name, scope, key, value, queue_ms)
        select $1, $2, $3, $4, $5, $6
        where (select count(*) from models.rule where tenant_id = $1) < $7
            or exists (select from models.rule where tenant_id = $1 and name = $2 and scope = $3 and key = $4)
        on conflict (tenant_id, name, scope, key)
            do update set value = excluded.value, queue_ms = excluded.queue_ms, updated_at = now()
        "#,
        tenant.as_str(),
        limit.name.as_str(),
        limit.scope.as_str(),
        limit.key,
        limit.terms.value,
        limit.terms.queue_ms,
        MAX_LIMITS,
    )
    .execute(db)
    .await?;
    Ok(put.rows_affected() > 0)
}

pub async fn remove(db: impl PgExecutor<'_>, tenant: &Tenant, limit: &Limit) -> Result<()> {
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
