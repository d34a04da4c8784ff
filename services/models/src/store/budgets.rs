use chassis::Tenant;
use sqlx::{PgExecutor, PgPool};

use crate::{
    error::Result,
    limit::{BUDGET, BudgetId},
    store::changes,
};

#[derive(Debug, PartialEq)]
pub struct Budget {
    pub id: BudgetId,
    pub name: String,
    pub amount_micros: i64,
    pub spent_micros: i64,
    pub reserved_micros: i64,
}

/// Creates a budget, or finds the one that this request made before; `None`: the name is taken.
/// The second says whether this call made it.
pub async fn create(
    db: &PgPool,
    tenant: &Tenant,
    subject: &str,
    request_id: &str,
    name: &str,
    amount_micros: i64,
) -> Result<Option<(BudgetId, bool)>> {
    let mut transaction = changes::begin(db, tenant).await?;
    let found = sqlx::query!(
        r#"
        with made as (
            insert into models.budget (id, tenant_id, request_id, name, amount_micros)
            values ($1, $2, $3, $4, $5)
            on conflict do nothing
            returning id
        )
        select id as "id!: BudgetId", true as "made!" from made
        union all
        select id, false from models.budget where tenant_id = $2 and request_id = $3
        "#,
        BudgetId::new() as _,
        tenant.as_str(),
        request_id,
        name,
        amount_micros,
    )
    .fetch_optional(&mut *transaction)
    .await?;
    if let Some(made) = found.as_ref().filter(|found| found.made) {
        let place = (BUDGET, &*made.id.to_string(), "");
        changes::note(&mut transaction, tenant, subject, place, (0, amount_micros)).await?;
    }
    transaction.commit().await?;
    Ok(found.map(|found| (found.id, found.made)))
}

/// `false`: there is no such budget.
pub async fn set_amount(
    db: &PgPool,
    tenant: &Tenant,
    subject: &str,
    id: BudgetId,
    amount_micros: i64,
) -> Result<bool> {
    let mut transaction = changes::begin(db, tenant).await?;
    let before = sqlx::query_scalar!(
        "select amount_micros from models.budget where tenant_id = $1 and id = $2",
        tenant.as_str(),
        id as _,
    )
    .fetch_optional(&mut *transaction)
    .await?;
    let Some(before) = before else { return Ok(false) };
    sqlx::query!(
        "update models.budget set amount_micros = $3 where tenant_id = $1 and id = $2",
        tenant.as_str(),
        id as _,
        amount_micros,
    )
    .execute(&mut *transaction)
    .await?;
    let place = (BUDGET, &*id.to_string(), "");
    changes::note(&mut transaction, tenant, subject, place, (before, amount_micros)).await?;
    transaction.commit().await?;
    Ok(true)
}

pub async fn get(db: impl PgExecutor<'_>, tenant: &Tenant, id: BudgetId) -> Result<Option<Budget>> {
    let budget = sqlx::query_as!(
        Budget,
        r#"
        select id as "id: _", name, amount_micros, spent_micros,
            (select coalesce(sum(reserved_micros), 0)::bigint from models.request
             where request.tenant_id = $1 and status = 'running' and budget_id = $2) as "reserved_micros!"
        from models.budget
        where tenant_id = $1 and id = $2
        "#,
        tenant.as_str(),
        id as _,
    )
    .fetch_optional(db)
    .await?;
    Ok(budget)
}
