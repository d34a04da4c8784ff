use jiff_sqlx::Timestamp as Time;
use sqlx::PgExecutor;

use crate::{
    error::Result,
    ids::SessionId,
    memory::{self, Memory, Note, Shelf},
};

/// The owner of a session, to prove that it still is when it writes in a turn's name.
#[derive(Debug, Clone, Copy)]
pub struct Fence {
    pub session_id: SessionId,
    pub epoch: i64,
}

/// Writes a memory, in place of one of the same name. Nothing when the shelf is full, or
/// when the session has another owner by now.
pub async fn write(
    db: impl PgExecutor<'_>,
    shelf: &Shelf,
    note: &Note,
    fence: Option<Fence>,
) -> Result<Option<Time>> {
    let written = sqlx::query_scalar!(
        r#"
        insert into session.memory as old (tenant_id, scope, owner, name, description, type, body)
        select $1, $2, $3, $4, $5, $6, $7
        where (
            exists (select from session.memory m
                    where m.tenant_id = $1 and m.scope = $2 and m.owner = $3 and m.name = $4)
            or (select count(*) from session.memory m
                where m.tenant_id = $1 and m.scope = $2 and m.owner = $3) < $8
        ) and (
            $9::text is null
            or exists (select from session.run_state r where r.session_id = $9 and r.epoch = $10)
        )
        on conflict (tenant_id, scope, owner, name) do update
        set description = excluded.description, type = excluded.type, body = excluded.body,
            updated_at = clock_timestamp()
        returning updated_at as "updated_at: Time"
        "#,
        &shelf.tenant as _,
        shelf.scope.as_str(),
        shelf.owner,
        note.name,
        note.description,
        note.r#type,
        note.body,
        memory::MOST,
        fence.map(|fence| fence.session_id) as _,
        fence.map(|fence| fence.epoch),
    )
    .fetch_optional(db)
    .await?;
    Ok(written)
}

pub async fn read(db: impl PgExecutor<'_>, shelf: &Shelf, name: &str) -> Result<Option<Memory>> {
    let memory = sqlx::query_as!(
        Memory,
        r#"
        select name, description, type, body, updated_at as "updated_at: _"
        from session.memory
        where tenant_id = $1 and scope = $2 and owner = $3 and name = $4
        "#,
        &shelf.tenant as _,
        shelf.scope.as_str(),
        shelf.owner,
        name,
    )
    .fetch_optional(db)
    .await?;
    Ok(memory)
}

/// The memories after a name, in its order, without their bodies.
pub async fn list(
    db: impl PgExecutor<'_>,
    shelf: &Shelf,
    after: &str,
    limit: i64,
) -> Result<Vec<Memory>> {
    let memories = sqlx::query_as!(
        Memory,
        r#"
        select name, description, type, '' as "body!", updated_at as "updated_at: _"
        from session.memory
        where tenant_id = $1 and scope = $2 and owner = $3 and name > $4
        order by name
        limit $5
        "#,
        &shelf.tenant as _,
        shelf.scope.as_str(),
        shelf.owner,
        after,
        limit,
    )
    .fetch_all(db)
    .await?;
    Ok(memories)
}

/// Deletes a memory and says whether there was one.
pub async fn delete(
    db: impl PgExecutor<'_>,
    shelf: &Shelf,
    name: &str,
    fence: Option<Fence>,
) -> Result<bool> {
    let deleted = sqlx::query!(
        r#"
        delete from session.memory
        where tenant_id = $1 and scope = $2 and owner = $3 and name = $4
          and ($5::text is null
               or exists (select from session.run_state r where r.session_id = $5 and r.epoch = $6))
        "#,
        &shelf.tenant as _,
        shelf.scope.as_str(),
        shelf.owner,
        name,
        fence.map(|fence| fence.session_id) as _,
        fence.map(|fence| fence.epoch),
    )
    .execute(db)
    .await?;
    Ok(deleted.rows_affected() > 0)
}
