use chassis::{Tenant, telemetry};
use jiff_sqlx::Timestamp as Time;
use proto::{
    event::v1::{ActionResolved, Event, RareIds},
    session::v1::TurnView,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqlx::{PgExecutor, PgPool, types::Json};

use crate::{
    error::{Error, Result},
    ids::{MessageId, PartId, ReplicaId, SessionId, ToolCallId, TurnId, WorkspaceId},
    memory,
    message::Part,
    store::{events, queue},
    subagent::{Origin, Outcome},
};

/// Of how many tenants one look finds what waits, so that its time has a bound.
pub const TENANTS: i64 = 1000;

/// Who writes an event and on whose behalf.
#[derive(Debug, Clone, Serialize)]
pub struct Stamp {
    pub runtime_id: ReplicaId,
    #[serde(flatten)]
    pub trace: Trace,
    pub ids: RareIds,
}

impl Stamp {
    /// Of what a replica does by itself, on nobody's behalf.
    pub fn of(runtime_id: ReplicaId) -> Stamp {
        Stamp { runtime_id, trace: Trace::default(), ids: RareIds::default() }
    }
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
pub struct NewTurn {
    pub tenant: Tenant,
    pub session_id: SessionId,
    pub message_id: MessageId,
    pub request_id: String,
    pub request_digest: String,
    pub parts: Vec<Part>,
    pub metadata: Value,
    /// The payload of `turn.submitted`; its status is decided under the lock.
    pub submitted: Value,
    pub subject: String,
    pub trace_parent: Option<String>,
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
    /// What can run now, if it was claimed at once.
    pub claimed: Option<(Claim, Context)>,
}

/// Stores a message and the turn it asks for, once per request id. A `claimant` is a replica
/// that has room, and gets the session if it is ready then.
pub async fn submit(
    db: impl PgExecutor<'_>,
    new: &NewTurn,
    claimant: Option<ReplicaId>,
    stamp: &Stamp,
) -> Result<Submitted> {
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
               queue_position, sequence, submitted_at as "submitted_at: Time", events as "events: Json<Vec<events::Row>>",
               claim as "claim: Json<ClaimRow>"
        from session.submit_and_claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
        "#,
        claimant as _,
        &new.tenant as _,
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
        "reused" => return Err(Error::RequestIdReused(new.request_id.clone())),
        "busy" => return Err(Error::SessionBusy { id, turn_id: row.turn_id }),
        "finished" => return Err(Error::ChildFinished(id)),
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
        events: events::decode(events)?,
        claimed: row.claim.map(|Json(row)| (row.claim, row.context)),
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

/// A turn with everything that is kept of it.
#[derive(Debug)]
pub struct Recorded {
    pub id: TurnId,
    pub message_id: MessageId,
    pub status: String,
    pub subject: String,
    pub submitted_at: Time,
    pub view: Json<TurnView>,
}

pub async fn of(
    db: impl PgExecutor<'_>,
    session_id: SessionId,
    ids: &[TurnId],
) -> Result<Vec<Recorded>> {
    let turns = sqlx::query_as!(
        Recorded,
        r#"
        select id as "id: _", message_id as "message_id: _", status, subject, submitted_at as "submitted_at: _",
               view as "view: _"
        from session.turn
        where session_id = $1 and id = any($2)
          and exists (select from session.run_state r where r.session_id = $1)
        "#,
        session_id as _,
        ids as _,
    )
    .fetch_all(db)
    .await?;
    Ok(turns)
}

/// A session this replica owns, for one turn.
#[derive(Debug, Clone, Deserialize)]
pub struct Claim {
    pub session_id: SessionId,
    #[serde(rename = "tenant_id")]
    pub tenant: Tenant,
    pub turn_id: TurnId,
    pub epoch: i64,
    pub flush_no: i64,
    pub attempts: i32,
}

/// A row of `session.claim`.
#[derive(Debug, Deserialize)]
struct ClaimRow {
    #[serde(flatten)]
    claim: Claim,
    context: Context,
}

/// What a worker must know about a turn beside the messages.
#[derive(Debug, Clone, Deserialize)]
pub struct Context {
    pub agent: String,
    pub workspace_id: WorkspaceId,
    pub subject: String,
    pub trace_parent: Option<String>,
    pub view: TurnView,
    /// Whether it waited for people or children and goes on.
    pub resumes: bool,
    /// Of the session.
    pub title: String,
    /// Whose child the session is.
    pub child: Option<Origin>,
    /// Whether there are children in the background of whose end the conversation does not say yet.
    pub background: bool,
    /// How the children ended that its calls wait for.
    pub ended: Vec<Returned>,
    /// Who stopped it before anybody ran it.
    pub interrupt: Option<Interrupt>,
    /// What its calls asked people.
    pub actions: Vec<Decided>,
    /// What people decided for more than one call.
    pub rules: Vec<Rule>,
    /// The index of what is remembered for its person and its project.
    pub memories: Vec<memory::Line>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Interrupt {
    pub turn_id: TurnId,
    pub subject: String,
    pub reason: String,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Decided {
    pub tool_call_id: ToolCallId,
    pub status: String,
    pub resolution: Option<ActionResolved>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Returned {
    pub tool_call_id: ToolCallId,
    #[serde(flatten)]
    pub outcome: Outcome,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Rule {
    pub scope: String,
    pub permission: String,
    pub pattern: String,
    pub action: String,
}

/// Claims those of `sessions` that are ready and that nobody else claims.
pub async fn claim(
    db: impl PgExecutor<'_>,
    replica: ReplicaId,
    sessions: &[SessionId],
) -> Result<Vec<(Claim, Context)>> {
    let claims = sqlx::query!(
        r#"
        select session_id as "session_id!: SessionId", tenant_id as "tenant!: Tenant", turn_id as "turn_id!: TurnId",
               epoch as "epoch!", flush_no as "flush_no!", attempts as "attempts!",
               context as "context!: Json<Context>"
        from session.claim($1, $2)
        "#,
        replica as _,
        sessions as _,
    )
    .fetch_all(db)
    .await?;
    let claim = claims.into_iter().map(|row| {
        let claim = Claim {
            session_id: row.session_id,
            tenant: row.tenant,
            turn_id: row.turn_id,
            epoch: row.epoch,
            flush_no: row.flush_no,
            attempts: row.attempts,
        };
        (claim, row.context.0)
    });
    Ok(claim.collect())
}

/// Sessions that wait for a worker, whoever should have been told: of each tenant that is not
/// `full` about as many, so that nobody's wait behind another's. Where more tenants wait than one
/// look meets, it meets those behind `first`, and then the others: begun with whoever it found the
/// last time, it comes to all of them.
pub async fn ready(
    db: impl PgExecutor<'_>,
    first: Option<&Tenant>,
    full: &[Tenant],
    limit: i64,
) -> Result<Vec<(Tenant, SessionId)>> {
    let rows = sqlx::query!(
        r#"
        with recursive behind (id) as (
            (select min(r.tenant_id) from session.run_state r where r.status = 'ready' and r.tenant_id > $4)
            union all
            select (select min(r.tenant_id) from session.run_state r where r.status = 'ready' and r.tenant_id > b.id)
            from behind b where b.id is not null
        ), before (id) as (
            (select min(r.tenant_id) from session.run_state r where r.status = 'ready' and r.tenant_id <= $4)
            union all
            select (select min(r.tenant_id) from session.run_state r
                    where r.status = 'ready' and r.tenant_id > b.id and r.tenant_id <= $4)
            from before b where b.id is not null
        ), waiting (id) as (
            select t.id from (select id from behind union all select id from before) t
            where t.id is not null and t.id <> all ($1) limit $3
        )
        select r.tenant_id as "tenant!: Tenant", r.session_id as "id!: SessionId"
        from waiting s
        cross join lateral (
            select r.tenant_id, r.session_id from session.run_state r
            where r.status = 'ready' and r.tenant_id = s.id
            order by r.tenant_id, r.session_id
            limit (select $2 / greatest(count(*), 1) + 1 from waiting)
        ) r
        order by random()
        limit $2
        "#,
        full as _,
        limit,
        TENANTS,
        first.map_or("", Tenant::as_str),
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(|row| (row.tenant, row.id)).collect())
}

/// Whether any session of these tenants waits for a worker.
pub async fn wait(db: impl PgExecutor<'_>, tenants: &[Tenant]) -> Result<bool> {
    let waits = sqlx::query_scalar!(
        r#"
        select exists (
            select from session.run_state where status = 'ready' and tenant_id = any($1)
        ) as "waits!"
        "#,
        tenants as _,
    )
    .fetch_one(db)
    .await?;
    Ok(waits)
}

/// What became of a wish to stop a turn.
#[derive(Debug)]
pub struct Interrupted {
    pub turn_id: TurnId,
    /// Whoever runs it, and has to be told.
    pub owner: Option<ReplicaId>,
    /// Nobody runs it: whoever claims it ends it.
    pub ready: bool,
    pub events: Vec<Event>,
}

/// Marks a turn as one to be stopped; without an id, the one that is active. One that
/// waits in the queue is taken out of it.
pub async fn interrupt(
    db: &PgPool,
    tenant: &Tenant,
    session_id: SessionId,
    turn_id: Option<TurnId>,
    subject: &str,
    reason: &str,
    stamp: &Stamp,
) -> Result<Interrupted> {
    let row = sqlx::query!(
        r#"
        select outcome as "outcome!", turn_id as "turn_id: TurnId", status, owner as "owner: ReplicaId", ready as "ready!",
               events as "events!: Json<Vec<events::Row>>"
        from session.interrupt($1, $2, $3, $4, $5, $6)
        "#,
        tenant as _,
        session_id as _,
        turn_id as _,
        subject,
        reason,
        Json(stamp) as _,
    )
    .fetch_one(db)
    .await?;
    match (row.outcome.as_str(), row.turn_id) {
        ("stopping", Some(turn_id)) => Ok(Interrupted {
            turn_id,
            owner: row.owner,
            ready: row.ready,
            events: events::decode(row.events.0)?,
        }),
        ("queued", Some(id)) => match queue::cancel(db, tenant, session_id, id, subject, stamp)
            .await
        {
            Ok(events) => Ok(Interrupted { turn_id: id, owner: None, ready: false, events }),
            // It was let go in between, and is stopped where it is now.
            Err(Error::TurnNotQueued { .. }) => {
                Box::pin(interrupt(db, tenant, session_id, turn_id, subject, reason, stamp)).await
            }
            Err(error) => Err(error),
        },
        ("over", Some(turn_id)) => {
            Err(Error::TurnOver { turn_id, status: row.status.unwrap_or_default() })
        }
        ("no_turn", Some(turn_id)) => Err(Error::TurnNotFound { session_id, turn_id }),
        ("idle", _) => Err(Error::NothingRuns(session_id)),
        _ => Err(Error::SessionNotFound(session_id)),
    }
}

/// The turns of this replica's that somebody wants stopped.
pub async fn interrupts(
    db: impl PgExecutor<'_>,
    owner: ReplicaId,
) -> Result<Vec<(SessionId, Interrupt)>> {
    let rows = sqlx::query!(
        r#"
        select session_id as "session_id: SessionId", interrupt_turn as "turn_id!: TurnId",
               coalesce(interrupt_by, '') as "subject!", coalesce(interrupt_reason, '') as "reason!"
        from session.run_state
        where owner = $1 and interrupt_turn is not null
        "#,
        owner as _,
    )
    .fetch_all(db)
    .await?;
    let interrupt = rows.into_iter().map(|row| {
        let (turn_id, subject, reason) = (row.turn_id, row.subject, row.reason);
        (row.session_id, Interrupt { turn_id, subject, reason })
    });
    Ok(interrupt.collect())
}
