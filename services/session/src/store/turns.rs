use chassis::{Tenant, telemetry};
use jiff_sqlx::Timestamp as Time;
use proto::{
    event::v1::{Event, RareIds},
    session::v1::TurnView,
};
use serde::Serialize;
use serde_json::Value;
use sqlx::{PgExecutor, types::Json};

use crate::{
    error::{Error, Result},
    ids::{MessageId, PartId, ReplicaId, SessionId, TurnId, WorkspaceId},
    message::Part,
    store::events,
};

/// Who writes an event and on whose behalf.
#[derive(Debug, Clone, Serialize)]
pub struct Stamp {
    pub runtime_id: ReplicaId,
    #[serde(flatten)]
    pub trace: Trace,
    pub ids: RareIds,
}

/// The trace and the span under which something is written.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Trace {
    pub trace_id: Option<String>,
    pub span_id: Option<String>,
}

impl Trace {
    pub fn current() -> Trace {
        let parent = telemetry::traceparent();
        let mut fields = parent.as_deref().into_iter().flat_map(|parent| parent.split('-').skip(1));
        let mut field = || fields.next().map(str::to_owned);
        Trace { trace_id: field(), span_id: field() }
    }
}

#[derive(Debug)]
pub struct NewTurn<'a> {
    pub tenant: &'a Tenant,
    pub session_id: SessionId,
    pub message_id: MessageId,
    pub request_id: &'a str,
    pub request_digest: &'a str,
    pub parts: &'a [Part],
    pub metadata: &'a Value,
    /// The payload of `turn.submitted`; its status is decided under the lock.
    pub submitted: &'a Value,
    pub subject: &'a str,
    pub trace_parent: Option<&'a str>,
    /// Refuse rather than queue.
    pub reject: bool,
    pub queue_limit: i32,
}

/// A turn as it was stored, now or by an earlier call with the same request id.
#[derive(Debug)]
pub struct Submitted {
    pub turn_id: TurnId,
    pub message_id: MessageId,
    pub status: String,
    pub queue_position: Option<i32>,
    pub sequence: i64,
    pub submitted_at: Time,
    /// What is to be published. Empty for a repeated call.
    pub events: Vec<Event>,
}

/// Stores a message and the turn it asks for, once per request id.
pub async fn submit(db: impl PgExecutor<'_>, new: NewTurn<'_>, stamp: &Stamp) -> Result<Submitted> {
    #[derive(Serialize)]
    struct NewPart {
        index: usize,
        id: PartId,
        r#type: String,
        data: Value,
    }
    let parts: Vec<NewPart> = new
        .parts
        .iter()
        .enumerate()
        .map(|(index, part)| NewPart {
            index,
            id: PartId::new(),
            r#type: part.kind(),
            data: part.data(),
        })
        .collect();
    let row = sqlx::query!(
        r#"
        select outcome as "outcome!", turn_id as "turn_id: TurnId", message_id as "message_id: MessageId", status,
               queue_position, sequence, submitted_at as "submitted_at: Time", events as "events: Json<Vec<events::Row>>"
        from session.submit($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
        "#,
        new.tenant as _,
        new.session_id as _,
        new.message_id as _,
        new.message_id.turn() as _,
        new.request_id,
        new.request_digest,
        Json(parts) as _,
        new.metadata,
        new.submitted,
        new.subject,
        new.trace_parent,
        new.reject,
        new.queue_limit,
        Json(stamp) as _,
    )
    .fetch_one(db)
    .await?;
    let id = new.session_id;
    match row.outcome.as_str() {
        "not_found" => return Err(Error::SessionNotFound(id)),
        "reused" => return Err(Error::RequestIdReused(new.request_id.to_owned())),
        "busy" => return Err(Error::SessionBusy { id, turn_id: row.turn_id }),
        "full" => return Err(Error::QueueFull { id, limit: new.queue_limit }),
        _ => {}
    }
    let missing = || Error::Corrupt("session.submit left out a column");
    let events = row.events.map(|events| events.0).unwrap_or_default();
    Ok(Submitted {
        turn_id: row.turn_id.ok_or_else(missing)?,
        message_id: row.message_id.ok_or_else(missing)?,
        status: row.status.ok_or_else(missing)?,
        queue_position: row.queue_position,
        sequence: row.sequence.ok_or_else(missing)?,
        submitted_at: row.submitted_at.ok_or_else(missing)?,
        events: events.into_iter().map(events::Row::into_event).collect::<Result<_>>()?,
    })
}

/// A turn as it stands.
#[derive(Debug)]
pub struct Turn {
    pub id: TurnId,
    pub message_id: MessageId,
    pub status: String,
    pub submitted_at: Time,
    pub queue_position: Option<i64>,
}

pub async fn get(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    session_id: SessionId,
    id: TurnId,
) -> Result<Turn> {
    sqlx::query_as!(
        Turn,
        r#"
        select t.id as "id: _", t.message_id as "message_id: _", t.status, t.submitted_at as "submitted_at: _",
               (select count(*) from session.chat_messages q
                where q.session_id = t.session_id and q.queue_rank <= m.queue_rank
                  and m.queue_rank is not null) as queue_position
        from session.turn t
        join session.chat_sessions s on s.id = t.session_id
        join session.chat_messages m on m.session_id = t.session_id and m.id = t.message_id
        where s.tenant_id = $1 and t.session_id = $2 and t.id = $3
        "#,
        tenant as _,
        session_id as _,
        id as _,
    )
    .fetch_optional(db)
    .await?
    .ok_or(Error::TurnNotFound { session_id, turn_id: id })
}

/// A session this replica owns, for one turn.
#[derive(Debug, Clone)]
pub struct Claim {
    pub session_id: SessionId,
    pub tenant: Tenant,
    pub turn_id: TurnId,
    pub epoch: i64,
    pub flush_no: i64,
    pub attempts: i32,
}

/// Claims those of `sessions` that are ready and that nobody else claims.
pub async fn claim(
    db: impl PgExecutor<'_>,
    replica: ReplicaId,
    sessions: &[SessionId],
) -> Result<Vec<Claim>> {
    let claims = sqlx::query_as!(
        Claim,
        r#"
        select session_id as "session_id!: _", tenant_id as "tenant!: _", turn_id as "turn_id!: _",
               epoch as "epoch!", flush_no as "flush_no!", attempts as "attempts!"
        from session.claim($1, $2)
        "#,
        replica as _,
        sessions as _,
    )
    .fetch_all(db)
    .await?;
    Ok(claims)
}

/// Sessions that wait for a worker, whoever should have been told.
pub async fn ready(db: impl PgExecutor<'_>, limit: i64) -> Result<Vec<SessionId>> {
    let ids = sqlx::query_scalar!(
        r#"
        select session_id as "id: SessionId"
        from session.run_state
        where status = 'ready'
        limit $1
        "#,
        limit,
    )
    .fetch_all(db)
    .await?;
    Ok(ids)
}

/// What a worker must know about a turn beside the messages.
#[derive(Debug)]
pub struct Context {
    pub agent: String,
    pub workspace_id: WorkspaceId,
    pub subject: String,
    pub trace_parent: Option<String>,
    pub view: Json<TurnView>,
}

pub async fn context(
    db: impl PgExecutor<'_>,
    session_id: SessionId,
    turn_id: TurnId,
) -> Result<Context> {
    let context = sqlx::query_as!(
        Context,
        r#"
        select s.agent, s.workspace_id as "workspace_id: _", t.subject, t.trace_parent, t.view as "view: _"
        from session.chat_sessions s
        join session.turn t on t.session_id = s.id
        where s.id = $1 and t.id = $2
        "#,
        session_id as _,
        turn_id as _,
    )
    .fetch_one(db)
    .await?;
    Ok(context)
}
