use sqlx::PgExecutor;

use crate::{error::Result, ids::TriggerId};

/// The session that a trigger has for a key.
pub async fn get(
    db: impl PgExecutor<'_>,
    trigger_id: TriggerId,
    key: &str,
) -> Result<Option<String>> {
    let found = sqlx::query_scalar!(
        "select session_id from triggers.session_key where trigger_id = $1 and key = $2",
        trigger_id as _,
        key,
    )
    .fetch_optional(db)
    .await?;
    Ok(found)
}

/// Keeps the session of a key. The first one stays.
pub async fn put(
    db: impl PgExecutor<'_>,
    trigger_id: TriggerId,
    key: &str,
    session_id: &str,
) -> Result<()> {
    sqlx::query!(
        r#"
        insert into triggers.session_key (trigger_id, key, session_id) values ($1, $2, $3)
        on conflict (trigger_id, key) do nothing
        "#,
        trigger_id as _,
        key,
        session_id,
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Forgets a session that is gone.
pub async fn forget(
    db: impl PgExecutor<'_>,
    trigger_id: TriggerId,
    key: &str,
    session_id: &str,
) -> Result<()> {
    sqlx::query!(
        "delete from triggers.session_key where trigger_id = $1 and key = $2 and session_id = $3",
        trigger_id as _,
        key,
        session_id,
    )
    .execute(db)
    .await?;
    Ok(())
}
