use chassis::Tenant;
use jiff::Timestamp;
use jiff_sqlx::Timestamp as Time;
use sqlx::{PgConnection, PgExecutor, PgPool, types::Json};

use crate::{
    counters::MINUTE,
    error::Result,
    facts::ModelRequestId,
    limit::{Governance, Rules, Subject, Window},
    moment::Moment,
    request::{Past, Row, Spent, Sum},
};

/// Writes rows and pays for those that ended. The first end of a request stands, so writing a row
/// again changes nothing, and nothing is paid twice.
pub async fn write(db: impl PgExecutor<'_>, rows: &[Row]) -> Result<(), sqlx::Error> {
    sqlx::query!(
        r#"
        with written as (
            insert into models.request as request
            select * from jsonb_populate_recordset(null::models.request, $1)
            on conflict (id) do update
                set status = excluded.status, error_kind = excluded.error_kind, basis = excluded.basis,
                    input = excluded.input, output = excluded.output, reasoning = excluded.reasoning,
                    cache_read = excluded.cache_read, cache_write = excluded.cache_write,
                    cost_micros = excluded.cost_micros, first_token_ms = excluded.first_token_ms,
                    duration_ms = excluded.duration_ms
                where request.status = 'running' and excluded.status <> 'running'
            returning budget_id, status, cost_micros
        ), spent as (
            select budget_id, sum(cost_micros)::bigint as micros
            from written where status <> 'running' and budget_id is not null group by budget_id
        )
        update models.budget set spent_micros = spent_micros + spent.micros
        from spent where budget.id = spent.budget_id
        "#,
        Json(rows) as _,
    )
    .execute(db)
    .await?;
    Ok(())
}

/// One row as it stands.
pub async fn get(db: impl PgExecutor<'_>, id: ModelRequestId) -> Result<Row, sqlx::Error> {
    let Json(row) = sqlx::query_scalar!(
        r#"select to_jsonb(request) as "row!: Json<Row>" from models.request where id = $1"#,
        id as _,
    )
    .fetch_one(db)
    .await?;
    Ok(row)
}

/// The rules of a tenant and everything they count, as of one instant.
pub async fn past(db: &PgPool, tenant: &Tenant, now: &Moment) -> Result<(Rules, Past)> {
    let mut transaction =
        chassis::database::begin(db, "begin isolation level repeatable read read only").await?;
    let rules = super::rules::all(&mut transaction, tenant).await?;
    let governance = Governance::from(&rules);
    let mut past = Past::default();
    if governance.has(Window::Minute) {
        let since = Timestamp::from_second(now.second() - MINUTE).unwrap_or(now.at);
        past.minute = sums(&mut transaction, tenant, since, true).await?;
    }
    if governance.has(Window::Day) {
        past.day = sums(&mut transaction, tenant, now.day_began(), false).await?;
    }
    if governance.has(Window::Month) {
        past.month = sums(&mut transaction, tenant, now.month_began(), false).await?;
    }
    past.running = sqlx::query_scalar!(
        r#"
        select to_jsonb(request) as "row!: Json<Row>"
        from models.request where tenant_id = $1 and status = 'running'
        "#,
        tenant.as_str(),
    )
    .fetch_all(&mut *transaction)
    .await?
    .into_iter()
    .map(|Json(row)| row)
    .collect();
    past.budgets = sqlx::query_as!(
        Spent,
        r#"select id as "id: _", spent_micros from models.budget where tenant_id = $1"#,
        tenant.as_str(),
    )
    .fetch_all(&mut *transaction)
    .await?;
    transaction.commit().await?;
    Ok((rules, past))
}

/// What is over of what began since then.
async fn sums(
    db: &mut PgConnection,
    tenant: &Tenant,
    since: Timestamp,
    by_second: bool,
) -> Result<Vec<Sum>> {
    let rows = sqlx::query!(
        r#"
        select subject, root_session_id, provider, model,
            case when $3 then floor(extract(epoch from started_at))::bigint else 0 end as "second!",
            count(*) as "calls!",
            sum(input::bigint + output + cache_read + cache_write)::bigint as "tokens!",
            sum(cost_micros)::bigint as "micros!"
        from models.request
        where tenant_id = $1 and started_at >= $2 and status <> 'running'
        group by 1, 2, 3, 4, 5
        "#,
        tenant.as_str(),
        Time::from(since) as _,
        by_second,
    )
    .fetch_all(db)
    .await?;
    let sums = rows.into_iter().map(|row| Sum {
        subject: Subject {
            model: format!("{}/{}", row.provider, row.model),
            subject: row.subject,
            root_session_id: row.root_session_id,
            provider: row.provider,
        },
        second: row.second,
        calls: row.calls,
        tokens: row.tokens,
        micros: row.micros,
    });
    Ok(sums.collect())
}

/// When the last call of a session began before this one.
pub async fn last(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    session_id: &str,
    before: ModelRequestId,
) -> Result<Option<Timestamp>> {
    let last = sqlx::query_scalar!(
        r#"
        select started_at as "started_at: Time" from models.request
        where tenant_id = $1 and session_id = $2 and id < $3
        order by id desc limit 1
        "#,
        tenant.as_str(),
        session_id,
        before.to_string(),
    )
    .fetch_optional(db)
    .await?;
    Ok(last.map(|last| last.to_jiff()))
}

/// The log before `before`, newest first.
pub async fn list(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    session_id: &str,
    turn_id: &str,
    before: Option<ModelRequestId>,
    limit: i64,
) -> Result<Vec<Row>> {
    // Three questions, because one that leaves out what was not asked for has no index.
    macro_rules! page {
        ($filter:tt, $($argument:expr),*) => {
            sqlx::query_scalar!(
                r#"select to_jsonb(request) as "row!: Json<Row>" from models.request
                where tenant_id = $1 and id < coalesce($2, 'n') and "# + $filter + r#"
                order by id desc limit $3"#,
                tenant.as_str(),
                before.map(|id| id.to_string()),
                limit,
                $($argument),*
            )
            .fetch_all(db)
            .await?
        };
    }
    let rows = match (session_id, turn_id) {
        ("", "") => page!("true",),
        (session_id, "") => page!("session_id = $4", session_id),
        ("", turn_id) => page!("turn_id = $4", turn_id),
        (session_id, turn_id) => page!("turn_id = $4 and session_id = $5", turn_id, session_id),
    };
    Ok(rows.into_iter().map(|Json(row)| row).collect())
}
