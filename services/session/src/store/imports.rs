use chassis::Tenant;
use serde_json::Value;
use sqlx::{PgExecutor, types::Json};

use crate::{
    archive::{MessageRow, SessionLine, TurnRow},
    error::{Error, Result},
    ids::{SessionId, WorkspaceId},
    store::turns::Stamp,
};

/// Begins an import: a session that nobody can see until it is finished.
pub async fn begin(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    subject: &str,
    id: SessionId,
    workspace_id: WorkspaceId,
    session: &SessionLine,
) -> Result<()> {
    sqlx::query!(
        r#"
        insert into session.chat_sessions
            (id, tenant_id, subject, request_id, request_digest, title, agent, workspace_id, metadata_json,
             input_tokens, output_tokens, cost_micros, model_calls)
        values ($1, $2, $3, 'import:' || $1, '', $4, $5, $6, $7, $8, $9, $10, $11)
        "#,
        id as _,
        tenant as _,
        subject,
        session.title,
        session.agent,
        workspace_id as _,
        session.metadata,
        session.input_tokens,
        session.output_tokens,
        session.cost_micros,
        session.model_calls,
    )
    .execute(db)
    .await?;
    Ok(())
}

pub async fn add(
    db: impl PgExecutor<'_>,
    id: SessionId,
    messages: &[MessageRow],
    turns: &[TurnRow],
) -> Result<()> {
    sqlx::query!(
        "select session.import_messages($1, $2, $3)",
        id as _,
        Json(messages) as _,
        Json(turns) as _,
    )
    .execute(db)
    .await?;
    Ok(())
}

pub struct Finished<'a> {
    pub tenant: &'a Tenant,
    pub id: SessionId,
    pub request_id: &'a str,
    pub digest: &'a str,
    /// The payloads of `session.created` and `history.reconstructed`.
    pub created: &'a Value,
    pub imported: &'a Value,
}

/// Shows the session, or finds the one that the same request made before.
pub async fn finish(
    db: impl PgExecutor<'_>,
    finished: Finished<'_>,
    stamp: &Stamp,
) -> Result<SessionId> {
    let row = sqlx::query!(
        r#"
        select session_id as "id!: SessionId", reused as "reused!"
        from session.finish_import($1, $2, $3, $4, $5, $6, $7)
        "#,
        finished.tenant as _,
        finished.id as _,
        finished.request_id,
        finished.digest,
        finished.created,
        finished.imported,
        Json(stamp) as _,
    )
    .fetch_one(db)
    .await?;
    match row.reused {
        true => Err(Error::RequestIdReused(finished.request_id.to_owned())),
        false => Ok(row.id),
    }
}

/// Gives an import up; [`crate::purge`] removes what it brought.
pub async fn drop(db: impl PgExecutor<'_>, tenant: &Tenant, id: SessionId) -> Result<()> {
    sqlx::query!(
        "delete from session.chat_sessions where tenant_id = $1 and id = $2 and request_id = 'import:' || $2",
        tenant as _,
        id as _,
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Gives up imports whose server died, except those that somebody finishes at this moment.
pub async fn drop_old(db: impl PgExecutor<'_>) -> Result<()> {
    sqlx::query!(
        r#"
        delete from session.chat_sessions
        where id in (
            select id from session.chat_sessions
            where request_id like 'import:%' and created_at < now() - interval '2 hours'
            limit 10
            for update skip locked
        )
        "#
    )
    .execute(db)
    .await?;
    Ok(())
}
