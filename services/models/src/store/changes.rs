use chassis::Tenant;
use jiff_sqlx::Timestamp as Time;
use sqlx::{PgConnection, PgPool, Postgres, Transaction};

use crate::{error::Result, limit::Change};

/// How many changes are kept of a tenant.
const KEPT: i64 = 50;

/// Begins a change of what governs a tenant. One at a time: ids are in the order in which others see
/// the changes, and nobody who has seen one misses those before it.
pub async fn begin(db: &PgPool, tenant: &Tenant) -> Result<Transaction<'static, Postgres>> {
    let mut transaction = chassis::database::begin(db, "begin").await?;
    sqlx::query!(
        "select pg_advisory_xact_lock(hashtextextended('models.change:' || $1, 0))",
        tenant.as_str(),
    )
    .execute(&mut *transaction)
    .await?;
    Ok(transaction)
}

/// Puts a change on record, if it is one.
pub async fn note(
    db: &mut PgConnection,
    tenant: &Tenant,
    subject: &str,
    (name, scope, key): (&str, &str, &str),
    (before, after): (i64, i64),
) -> Result<()> {
    if before == after {
        return Ok(());
    }
    sqlx::query!(
        r#"
        with noted as (
            insert into models.change (tenant_id, name, scope, key, before, after, subject)
            values ($1, $2, $3, $4, $5, $6, $7)
        )
        delete from models.change
        where tenant_id = $1 and id <= (
            select id from models.change where tenant_id = $1 order by id desc offset $8 limit 1
        )
        "#,
        tenant.as_str(),
        name,
        scope,
        key,
        before,
        after,
        subject,
        KEPT - 1,
    )
    .execute(db)
    .await?;
    Ok(())
}

/// The newest changes, oldest first.
pub async fn all(db: &mut PgConnection, tenant: &Tenant) -> Result<Vec<Change>> {
    let rows = sqlx::query!(
        r#"
        select id, name, scope, key, before, after, subject, changed_at as "changed_at: Time"
        from models.change where tenant_id = $1 order by id
        "#,
        tenant.as_str(),
    )
    .fetch_all(db)
    .await?;
    let changes = rows.into_iter().map(|row| Change {
        id: row.id,
        name: row.name,
        scope: row.scope,
        key: row.key,
        before: row.before,
        after: row.after,
        subject: row.subject,
        changed_at: row.changed_at.to_jiff(),
    });
    Ok(changes.collect())
}
