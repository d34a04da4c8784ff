use chassis::Tenant;
use jiff::Timestamp;
use jiff_sqlx::Timestamp as Time;
use proto::event::v1::{ActionRequired, ActionResolved, Event, RareIds};
use sqlx::{PgExecutor, types::Json};

use crate::{
    error::{Error, Result},
    ids::{ActionId, ReplicaId, SessionId, ToolCallId, TurnId},
    store::{
        events,
        turns::{Claim, Stamp, Trace},
    },
};

/// What a person is asked, and what became of it.
#[derive(Debug)]
pub struct Action {
    pub id: ActionId,
    pub session_id: SessionId,
    pub turn_id: TurnId,
    pub tool_call_id: ToolCallId,
    pub status: String,
    pub request: Json<ActionRequired>,
    pub resolution: Option<Json<ActionResolved>>,
    pub created_at: Time,
}

pub async fn get(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    session_id: SessionId,
    id: ActionId,
) -> Result<Action> {
    sqlx::query_as!(
        Action,
        r#"
        select id as "id: _", session_id as "session_id: _", turn_id as "turn_id: _", tool_call_id as "tool_call_id: _",
               status, request as "request: _", resolution as "resolution: _", created_at as "created_at: _"
        from session.action
        where tenant_id = $1 and session_id = $2 and id = $3
        "#,
        tenant as _,
        session_id as _,
        id as _,
    )
    .fetch_optional(db)
    .await?
    .ok_or(Error::ActionNotFound { session_id, action_id: id })
}

/// The place after which the next page of a list begins.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cursor {
    pub created_at: Timestamp,
    pub id: ActionId,
}

/// Actions of a tenant or of one of its sessions, the oldest first.
pub async fn list(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    session_id: Option<SessionId>,
    include_resolved: bool,
    after: Option<Cursor>,
    limit: i64,
) -> Result<Vec<Action>> {
    let (time, id) = match after {
        Some(cursor) => (Some(Time::from(cursor.created_at)), Some(cursor.id)),
        None => (None, None),
    };
    let actions = sqlx::query_as!(
        Action,
        r#"
        select id as "id!: _", session_id as "session_id!: _", turn_id as "turn_id!: _",
               tool_call_id as "tool_call_id!: _", status as "status!", request as "request!: _",
               resolution as "resolution: _", created_at as "created_at!: _"
        from (
            -- Each has its own index, and so a branch of its own.
            (select * from session.action
             where $3 and tenant_id = $1 and ($2::text is null or session_id = $2)
               and (created_at, id) > (coalesce($4, '-infinity'::timestamptz), coalesce($5, ''))
             order by created_at, id limit $6)
            union all
            (select * from session.action
             where not $3 and tenant_id = $1 and status = 'open' and ($2::text is null or session_id = $2)
               and (created_at, id) > (coalesce($4, '-infinity'::timestamptz), coalesce($5, ''))
             order by created_at, id limit $6)
        ) a
        order by created_at, id
        "#,
        tenant as _,
        session_id as _,
        include_resolved,
        time as _,
        id as _,
        limit,
    )
    .fetch_all(db)
    .await?;
    Ok(actions)
}

/// What a session waits for, the oldest first.
pub async fn open(db: impl PgExecutor<'_>, session_id: SessionId) -> Result<Vec<Action>> {
    let actions = sqlx::query_as!(
        Action,
        r#"
        select id as "id: _", session_id as "session_id: _", turn_id as "turn_id: _", tool_call_id as "tool_call_id: _",
               status, request as "request: _", resolution as "resolution: _", created_at as "created_at: _"
        from session.action
        where session_id = $1 and status = 'open'
        order by created_at, id
        limit 1000
        "#,
        session_id as _,
    )
    .fetch_all(db)
    .await?;
    Ok(actions)
}

/// What somebody decided.
#[derive(Debug)]
pub struct Answer<'a> {
    pub tenant: &'a Tenant,
    pub session_id: SessionId,
    pub action_id: ActionId,
    /// What it answers: `approval` or `question`.
    pub kind: &'static str,
    pub resolution: &'a ActionResolved,
    /// How far it reaches beyond this call: `session` or `project`.
    pub rule: Option<&'static str>,
}

/// What is to be published after an answer was stored.
#[derive(Debug)]
pub struct Resolved {
    pub events: Vec<Event>,
    /// The turn goes on.
    pub ready: bool,
}

/// How many rules people may make for one session or project: each goes along with every call.
const MAX_RULES: i32 = 200;

/// Stores an answer, if it is the first one.
pub async fn resolve(
    db: impl PgExecutor<'_>,
    answer: Answer<'_>,
    stamp: &Stamp,
) -> Result<Resolved> {
    let (session_id, action_id) = (answer.session_id, answer.action_id);
    let row = sqlx::query!(
        r#"
        select outcome as "outcome!", ready as "ready!", events as "events!: Json<Vec<events::Row>>"
        from session.resolve($1, $2, $3, $4, $5, $6, $7, $8)
        "#,
        answer.tenant as _,
        session_id as _,
        action_id as _,
        answer.kind,
        Json(answer.resolution) as _,
        answer.rule,
        MAX_RULES,
        Json(stamp) as _,
    )
    .fetch_one(db)
    .await?;
    match row.outcome.as_str() {
        "stored" => Ok(Resolved { events: events::decode(row.events.0)?, ready: row.ready }),
        "resolved" => Err(Error::ActionResolved { action_id, status: "resolved".to_owned() }),
        "wrong_kind" => Err(Error::ActionWrongAnswer {
            action_id,
            allowed: if answer.kind == "approval" { "answers" } else { "decision" },
            problem: match answer.kind {
                "approval" => "it is a question; answer or reject it as one".to_owned(),
                _ => "it is an approval; respond to it with a decision".to_owned(),
            },
        }),
        "no_rule" => Err(Error::ActionWrongAnswer {
            action_id,
            allowed: "once, reject",
            problem: "its input is too long for a rule, or there are as many rules as there may be"
                .to_owned(),
        }),
        _ => Err(Error::ActionNotFound { session_id, action_id }),
    }
}

/// Withdraws what a turn of ours asked.
pub async fn cancel(
    db: impl PgExecutor<'_>,
    claim: &Claim,
    replica: ReplicaId,
) -> Result<Vec<Event>> {
    let stamp = Stamp { runtime_id: replica, trace: Trace::current(), ids: RareIds::default() };
    let rows = sqlx::query_scalar!(
        r#"select session.cancel_actions($1, $2, $3, $4, $5) as "events!: Json<Vec<events::Row>>""#,
        replica as _,
        claim.session_id as _,
        claim.epoch,
        claim.turn_id as _,
        Json(stamp) as _,
    )
    .fetch_one(db)
    .await?;
    events::decode(rows.0)
}

/// An action whose time is over.
#[derive(Debug)]
pub struct Due {
    pub tenant: Tenant,
    pub session_id: SessionId,
    pub id: ActionId,
    pub kind: String,
}

pub async fn due(db: impl PgExecutor<'_>, limit: i64) -> Result<Vec<Due>> {
    let due = sqlx::query_as!(
        Due,
        r#"
        select tenant_id as "tenant: _", session_id as "session_id: _", id as "id: _", kind
        from session.action
        where status = 'open' and expires_at < now()
        order by expires_at
        limit $1
        "#,
        limit,
    )
    .fetch_all(db)
    .await?;
    Ok(due)
}
