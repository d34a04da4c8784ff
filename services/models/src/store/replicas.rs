use sqlx::PgExecutor;

use crate::{error::Result, request::ReplicaId};

/// A process as its last beat left it.
#[derive(Debug, Clone, PartialEq)]
pub struct Replica {
    pub id: ReplicaId,
    pub beat: i64,
    pub dead: bool,
}

/// Again, where the answer was lost.
pub async fn register(db: impl PgExecutor<'_>, id: ReplicaId) -> Result<()> {
    let insert = sqlx::query!(
        "insert into models.replica (id) values ($1) on conflict (id) do nothing",
        id as _,
    );
    insert.execute(db).await?;
    Ok(())
}

/// Counts on. `false`: others gave this process up.
pub async fn beat(db: impl PgExecutor<'_>, id: ReplicaId) -> Result<bool> {
    let counted = sqlx::query!(
        "update models.replica set beat = beat + 1 where id = $1 and not dead",
        id as _,
    )
    .execute(db)
    .await?;
    Ok(counted.rows_affected() > 0)
}

pub async fn all(db: impl PgExecutor<'_>) -> Result<Vec<Replica>> {
    let replicas = sqlx::query_as!(
        Replica,
        r#"select id as "id: _", beat, dead from models.replica order by id limit 1000"#,
    )
    .fetch_all(db)
    .await?;
    Ok(replicas)
}

/// Gives a process up that has not counted since `beat`. `false`: it has.
pub async fn give_up(db: impl PgExecutor<'_>, id: ReplicaId, beat: i64) -> Result<bool> {
    let given_up = sqlx::query!(
        "update models.replica set dead = true where id = $1 and beat = $2",
        id as _,
        beat,
    )
    .execute(db)
    .await?;
    Ok(given_up.rows_affected() > 0)
}

/// Ends the requests of a process that was given up, with the worst case, and returns whose each was.
pub async fn close(db: impl PgExecutor<'_>, id: ReplicaId) -> Result<Vec<String>> {
    let tenants = sqlx::query_scalar!(
        r#"
        with closed as (
            update models.request
            set status = 'cancelled', basis = 'worst_case', input = reserved_input,
                output = reserved_output, cost_micros = reserved_micros
            where replica_id = $1 and status = 'running'
            returning tenant_id, budget_id, cost_micros
        ), paid as (
            update models.budget
            set spent_micros = spent_micros + spent.micros
            from (
                select budget_id, sum(cost_micros)::bigint as micros
                from closed where budget_id is not null group by budget_id
            ) as spent
            where budget.id = spent.budget_id
        )
        select tenant_id from closed
        "#,
        id as _,
    )
    .fetch_all(db)
    .await?;
    Ok(tenants)
}

pub async fn remove(db: impl PgExecutor<'_>, id: ReplicaId) -> Result<()> {
    sqlx::query!("delete from models.replica where id = $1", id as _).execute(db).await?;
    Ok(())
}

/// Whose calls anything governs.
pub async fn governed(db: impl PgExecutor<'_>) -> Result<Vec<String>> {
    let tenants = sqlx::query_scalar!(
        r#"
        select tenant_id as "tenant_id!" from models.rule
        union select tenant_id from models.budget
        "#,
    )
    .fetch_all(db)
    .await?;
    Ok(tenants)
}
