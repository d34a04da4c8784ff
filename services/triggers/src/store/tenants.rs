//! How much a tenant has.

use chassis::Tenant;
use sqlx::PgConnection;

use crate::error::Result;

/// How many triggers a tenant has, of which nobody makes another until the transaction ends.
/// Wake-ups do not count: each session has so many of its own.
pub async fn triggers(db: &mut PgConnection, tenant: &Tenant) -> Result<i64> {
    sqlx::query!("select pg_advisory_xact_lock(hashtextextended($1, 8))", tenant.as_str())
        .fetch_one(&mut *db)
        .await?;
    let count = sqlx::query_scalar!(
        r#"
        select count(*) as "count!" from triggers.trigger
        where tenant_id = $1 and source <> 'self_schedule'
        "#,
        tenant as _,
    )
    .fetch_one(db)
    .await?;
    Ok(count)
}
