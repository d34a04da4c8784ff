//! Children, as their parents know them, and the mail between sessions.

use chassis::Tenant;
use jiff_sqlx::Timestamp as Time;
use proto::{event::v1::Event, tools::v1::Permissions};
use serde::Serialize;
use serde_json::json;
use sqlx::{PgExecutor, types::Json};

use crate::{
    error::{Error, Result},
    ids::{ReplicaId, SessionId, SubagentId, ToolCallId},
    message::Metadata,
    store::{events, turns::Stamp},
    subagent::{About, End, Outcome},
    turn::Told,
};

/// A child with where it stands.
#[derive(Debug)]
pub struct Subagent {
    pub id: SubagentId,
    pub agent: String,
    pub child_id: SessionId,
    pub parent_id: SessionId,
    pub parent_message_id: String,
    pub tool_call_id: ToolCallId,
    pub status: String,
    pub background: bool,
    pub depth: i32,
    pub created_at: Time,
    pub ended_at: Option<Time>,
    pub permissions: Json<Permissions>,
    pub outcome: Option<Json<Outcome>>,
}

pub async fn get(db: impl PgExecutor<'_>, tenant: &Tenant, id: SubagentId) -> Result<Subagent> {
    sqlx::query_as!(
        Subagent,
        r#"
        select id as "id: _", agent, child_id as "child_id: _", parent_id as "parent_id: _", parent_message_id,
               tool_call_id as "tool_call_id: _", status, background, depth, created_at as "created_at: _",
               ended_at as "ended_at: _", permissions as "permissions: _", outcome as "outcome: _"
        from session.subagent
        where tenant_id = $1 and id = $2
        "#,
        tenant as _,
        id as _,
    )
    .fetch_optional(db)
    .await?
    .ok_or(Error::SubagentNotFound(id))
}

/// The children of a session, or with `recursive` all below it, oldest first.
pub async fn list(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    session_id: SessionId,
    recursive: bool,
    after: Option<SubagentId>,
    limit: i64,
) -> Result<Vec<Subagent>> {
    let subagents = sqlx::query_as!(
        Subagent,
        r#"
        with recursive below as (
            select a.* from session.subagent a where a.tenant_id = $1 and a.parent_id = $2
            union all
            select a.* from session.subagent a join below b on a.parent_id = b.child_id where $3
        )
        select id as "id!: _", agent as "agent!", child_id as "child_id!: _", parent_id as "parent_id!: _",
               parent_message_id as "parent_message_id!", tool_call_id as "tool_call_id!: _", status as "status!",
               background as "background!", depth as "depth!", created_at as "created_at!: _",
               ended_at as "ended_at: _", permissions as "permissions!: _", outcome as "outcome: _"
        from below
        where $4::text is null or id > $4
        order by id
        limit $5
        "#,
        tenant as _,
        session_id as _,
        recursive,
        after as _,
        limit,
    )
    .fetch_all(db)
    .await?;
    Ok(subagents)
}

/// The children below a session that have not ended, as far as their parents know.
pub async fn open_below(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    session_id: SessionId,
) -> Result<Vec<(SubagentId, SessionId)>> {
    let rows = sqlx::query!(
        r#"
        with recursive below as (
            select a.id, a.child_id, a.outcome is null as open from session.subagent a
            where a.tenant_id = $1 and a.parent_id = $2
            union all
            select a.id, a.child_id, a.outcome is null from session.subagent a
            join below b on a.parent_id = b.child_id
        )
        select id as "id!: SubagentId", child_id as "child_id!: SessionId" from below where open
        "#,
        tenant as _,
        session_id as _,
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(|row| (row.id, row.child_id)).collect())
}

/// How many children of a session have not ended.
pub async fn running(db: impl PgExecutor<'_>, session_id: SessionId) -> Result<i64> {
    let running = sqlx::query_scalar!(
        r#"select count(*) as "count!" from session.subagent where parent_id = $1 and outcome is null"#,
        session_id as _,
    )
    .fetch_one(db)
    .await?;
    Ok(running)
}

/// The children that ended in the background of which the conversation does not say so, oldest
/// first.
pub async fn untold(db: impl PgExecutor<'_>, session_id: SessionId) -> Result<Vec<Told>> {
    let rows = sqlx::query!(
        r#"
        select tool_call_id as "tool_call_id: ToolCallId", outcome as "outcome!: Json<Outcome>"
        from session.subagent
        where parent_id = $1 and background and outcome is not null and not told
        order by ended_at, id
        "#,
        session_id as _,
    )
    .fetch_all(db)
    .await?;
    let told = rows.into_iter().filter_map(|row| {
        let Outcome { note, ended, .. } = row.outcome.0;
        let (tool_call_id, metadata) = (row.tool_call_id, Metadata::default());
        Some(Told { note: note?, ended, tool_call_id, metadata })
    });
    Ok(told.collect())
}

/// Asks a child to end. Asking again changes nothing.
pub async fn close(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    id: SubagentId,
    child_id: SessionId,
    subject: &str,
    reason: &str,
) -> Result<()> {
    sqlx::query_scalar!(
        "select session.post($1, $2, 'close:' || $3, 'close', $3, $4)",
        tenant as _,
        child_id as _,
        id as _,
        json!({ "subject": subject, "reason": reason }),
    )
    .fetch_one(db)
    .await?;
    Ok(())
}

/// Sessions that have mail.
pub async fn addressees(db: impl PgExecutor<'_>, limit: i64) -> Result<Vec<SessionId>> {
    let ids = sqlx::query_scalar!(
        r#"select distinct session_id as "id: SessionId" from session.outbox limit $1"#,
        limit,
    )
    .fetch_all(db)
    .await?;
    Ok(ids)
}

/// A piece of mail.
#[derive(Debug)]
pub struct Mail {
    pub id: i64,
    /// Of an end: which child has ended and how.
    pub end: Option<(About, End)>,
    /// Whether somebody deleted that child: what it said is no longer anybody's.
    pub gone: bool,
}

/// The mail of a session, in order.
pub async fn mail(db: impl PgExecutor<'_>, session_id: SessionId, limit: i64) -> Result<Vec<Mail>> {
    let rows = sqlx::query!(
        r#"
        select o.id, o.kind, o.subagent_id as "subagent_id: SubagentId", o.body as "body: Json<serde_json::Value>",
               a.child_id as "child_id?: SessionId", a.agent as "agent?", a.background as "background?",
               a.inspectable as "inspectable?",
               (extract(epoch from o.created_at - a.created_at) * 1000)::bigint as duration_ms,
               not exists (select from session.run_state r where r.session_id = a.child_id) as "gone!"
        from session.outbox o
        left join session.subagent a on a.id = o.subagent_id
        where o.session_id = $1
        order by o.id
        limit $2
        "#,
        session_id as _,
        limit,
    )
    .fetch_all(db)
    .await?;
    let mail = rows.into_iter().map(|row| {
        let about = row.child_id.filter(|_| row.kind == "end").map(|child_id| About {
            subagent_id: row.subagent_id,
            session_id: child_id,
            agent: row.agent.unwrap_or_default(),
            background: row.background.unwrap_or_default(),
            inspectable: row.inspectable.unwrap_or_default(),
            duration_ms: row.duration_ms.and_then(|ms| ms.try_into().ok()).unwrap_or(i32::MAX),
        });
        let end = match about {
            Some(about) => Some((about, serde_json::from_value(row.body.0)?)),
            None => None,
        };
        Ok(Mail { id: row.id, end, gone: row.gone })
    });
    mail.collect()
}

/// A piece of mail with what its addressee is to remember of it.
#[derive(Debug, Serialize)]
pub struct Delivery {
    pub id: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
}

/// What came of it.
#[derive(Debug)]
pub struct Delivered {
    /// Whose the session is; nobody's if everything was delivered before.
    pub tenant: Option<Tenant>,
    pub events: Vec<Event>,
    /// Whether there is something to claim now.
    pub ready: bool,
    /// Whoever runs the session and has to hear that it is to stop.
    pub owner: Option<ReplicaId>,
}

/// Delivers mail to a session, each piece once, whoever else tries.
pub async fn deliver(
    db: impl PgExecutor<'_>,
    session_id: SessionId,
    mail: &[Delivery],
    stamp: &Stamp,
) -> Result<Delivered> {
    let row = sqlx::query!(
        r#"
        select tenant_id as "tenant: Tenant", events as "events!: Json<Vec<events::Row>>", ready as "ready!",
               owner as "owner: ReplicaId"
        from session.deliver($1, $2, $3)
        "#,
        session_id as _,
        Json(mail) as _,
        Json(stamp) as _,
    )
    .fetch_one(db)
    .await?;
    let (tenant, ready, owner) = (row.tenant, row.ready, row.owner);
    Ok(Delivered { tenant, events: events::decode(row.events.0)?, ready, owner })
}
