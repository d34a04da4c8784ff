use chassis::Tenant;
use jiff::Timestamp;
use jiff_sqlx::Timestamp as Time;
use serde_json::Value;
use sqlx::{PgExecutor, types::Json};

use crate::{
    error::{Error, Result},
    ids::{SessionId, TurnId, WorkspaceId},
    store::turns::Stamp,
};

/// A session with where it stands.
#[derive(Debug)]
pub struct Session {
    pub id: SessionId,
    pub title: String,
    pub agent: String,
    pub subject: String,
    pub workspace_id: WorkspaceId,
    pub parent_id: Option<String>,
    pub parent_message_id: Option<String>,
    pub metadata: Json<Value>,
    pub ephemeral: bool,
    pub archived: bool,
    pub created_at: Time,
    pub updated_at: Time,
    pub input_tokens: i64,
    pub output_tokens: i64,
    pub cost_micros: i64,
    pub model_calls: i64,
    pub status: String,
    pub status_message: String,
    pub active_turn: Option<TurnId>,
    pub queued: i32,
    pub last_sequence: i64,
}

#[derive(Debug)]
pub struct NewSession<'a> {
    pub id: SessionId,
    pub tenant: &'a Tenant,
    pub subject: &'a str,
    pub request_id: &'a str,
    pub request_digest: &'a str,
    pub title: &'a str,
    pub agent: &'a str,
    pub workspace_id: WorkspaceId,
    pub metadata: &'a Value,
    /// The payload of `session.created`.
    pub created: &'a Value,
}

/// Creates a session, or finds the one this request created before.
pub async fn create(
    db: impl PgExecutor<'_>,
    new: NewSession<'_>,
    stamp: &Stamp,
) -> Result<SessionId> {
    let row = sqlx::query!(
        r#"
        select session_id as "id!: SessionId", reused as "reused!"
        from session.create_session($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
        "#,
        new.tenant as _,
        new.id as _,
        new.subject,
        new.request_id,
        new.request_digest,
        new.title,
        new.agent,
        new.workspace_id as _,
        new.metadata,
        new.created,
        Json(stamp) as _,
    )
    .fetch_one(db)
    .await?;
    match row.reused {
        true => Err(Error::RequestIdReused(new.request_id.to_owned())),
        false => Ok(row.id),
    }
}

pub async fn get(db: impl PgExecutor<'_>, tenant: &Tenant, id: SessionId) -> Result<Session> {
    sqlx::query_as!(
        Session,
        r#"
        select s.id as "id: _", s.title, s.agent, s.subject, s.workspace_id as "workspace_id: _",
               s.parent_id, s.parent_message_id, s.metadata_json as "metadata: _", s.ephemeral,
               s.archived_at is not null as "archived!", s.created_at as "created_at: _",
               s.updated_at as "updated_at: _", s.input_tokens, s.output_tokens, s.cost_micros, s.model_calls,
               r.status, r.status_message, r.active_turn as "active_turn: _", r.queued,
               r.next_seq - 1 as "last_sequence!"
        from session.chat_sessions s
        join session.run_state r on r.session_id = s.id
        where s.tenant_id = $1 and s.id = $2
        "#,
        tenant as _,
        id as _,
    )
    .fetch_optional(db)
    .await?
    .ok_or(Error::SessionNotFound(id))
}

/// The place after which the next page of a list begins.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cursor {
    pub updated_at: Timestamp,
    pub id: SessionId,
}

/// What a list shows beyond ordinary sessions, and whose children alone.
#[derive(Debug, Clone, Copy, Default)]
pub struct Filter {
    pub ephemeral: bool,
    pub archived: bool,
    pub parent_id: Option<SessionId>,
}

/// Sessions, the most recently used first.
pub async fn list(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    filter: Filter,
    after: Option<Cursor>,
    limit: i64,
) -> Result<Vec<Session>> {
    let (time, id) = match after {
        Some(cursor) => (Some(Time::from(cursor.updated_at)), Some(cursor.id)),
        None => (None, None),
    };
    let sessions = sqlx::query_as!(
        Session,
        r#"
        select s.id as "id!: _", s.title as "title!", s.agent as "agent!", s.subject as "subject!",
               s.workspace_id as "workspace_id!: _", s.parent_id, s.parent_message_id,
               s.metadata_json as "metadata!: _", s.ephemeral as "ephemeral!",
               s.archived_at is not null as "archived!", s.created_at as "created_at!: _",
               s.updated_at as "updated_at!: _", s.input_tokens as "input_tokens!",
               s.output_tokens as "output_tokens!", s.cost_micros as "cost_micros!", s.model_calls as "model_calls!",
               r.status as "status!", r.status_message as "status_message!", r.active_turn as "active_turn: _",
               r.queued as "queued!", r.next_seq - 1 as "last_sequence!"
        from (
            -- Each kind has an index of its own, and so a branch.
            (select * from session.chat_sessions
             where $5::text is null and tenant_id = $1 and not ephemeral and archived_at is null
               and (updated_at, id) < (coalesce($2, 'infinity'::timestamptz), coalesce($3, ''))
             order by updated_at desc, id desc limit $4)
            union all
            (select * from session.chat_sessions
             where $5::text is null and $6 and tenant_id = $1 and ephemeral and archived_at is null
               and (updated_at, id) < (coalesce($2, 'infinity'::timestamptz), coalesce($3, ''))
             order by updated_at desc, id desc limit $4)
            union all
            (select * from session.chat_sessions
             where $5::text is null and $7 and tenant_id = $1 and not ephemeral and archived_at is not null
               and (updated_at, id) < (coalesce($2, 'infinity'::timestamptz), coalesce($3, ''))
             order by updated_at desc, id desc limit $4)
            union all
            (select * from session.chat_sessions
             where $5::text is null and $6 and $7 and tenant_id = $1 and ephemeral and archived_at is not null
               and (updated_at, id) < (coalesce($2, 'infinity'::timestamptz), coalesce($3, ''))
             order by updated_at desc, id desc limit $4)
            union all
            (select * from session.chat_sessions
             where tenant_id = $1 and parent_id = $5 and ($6 or not ephemeral) and ($7 or archived_at is null)
               and (updated_at, id) < (coalesce($2, 'infinity'::timestamptz), coalesce($3, ''))
             order by updated_at desc, id desc limit $4)
        ) s,
        -- Looked up row by row: a page is small, however the planner guesses.
        lateral (select * from session.run_state r where r.session_id = s.id limit 1) r
        order by s.updated_at desc, s.id desc
        limit $4
        "#,
        tenant as _,
        time as _,
        id as _,
        limit,
        filter.parent_id as _,
        filter.ephemeral,
        filter.archived,
    )
    .fetch_all(db)
    .await?;
    Ok(sessions)
}

/// The sequence each of these sessions has reached, for readers that may have missed a wake-up.
pub async fn last_sequences(
    db: impl PgExecutor<'_>,
    ids: &[SessionId],
) -> Result<Vec<(SessionId, i64)>> {
    let rows = sqlx::query!(
        r#"
        select session_id as "id: SessionId", next_seq - 1 as "last!"
        from session.run_state
        where session_id = any($1)
        "#,
        ids as _,
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(|row| (row.id, row.last)).collect())
}
