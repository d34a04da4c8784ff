use std::collections::BTreeMap;

use chassis::Tenant;
use jiff::Timestamp;
use proto::{
    event::v1::{ActionRequired, RareIds},
    session::v1::TurnView,
};
use serde::Serialize;
use serde_json::{Value, value::RawValue};
use sqlx::{PgExecutor, types::Json};

use crate::{
    ids::{
        ActionId, MessageId, PartId, ReplicaId, SessionId, StepId, SubagentId, ToolCallId, TurnId,
    },
    store::{events, turns::Stamp},
    subagent::Spawn,
};

/// What `session.flush_turns` takes: what many sessions have to say.
#[derive(Debug, Serialize)]
pub struct Batch<'a> {
    pub stamp: Stamp,
    pub leases: Vec<Lease<'a>>,
    /// Beside the sessions, because sessions share them: they are stored in one order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prompts: Vec<Prompt<'a>>,
}

impl Batch<'_> {
    /// A batch of this replica's with nothing in it yet.
    pub fn new(replica: ReplicaId) -> Batch<'static> {
        Batch { stamp: Stamp::of(replica), leases: vec![], prompts: vec![] }
    }
}

/// One session of the batch, and the proof that it is ours.
#[derive(Debug, Serialize)]
pub struct Lease<'a> {
    pub lease: usize,
    pub session_id: SessionId,
    pub epoch: i64,
    pub flush_no: i64,
    /// What the events are part of, as far as they do not say something else.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub trace_id: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub span_id: &'a str,
    pub events: Vec<Event<'a>>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub messages: &'a [Message],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub parts: &'a [Part],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub actions: &'a [Action],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub spawns: &'a [Spawn],
    /// Children whose end the conversation says now.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub tells: &'a [SubagentId],
    /// Which children are to stop: `all`, or those that calls of this `turn` wait for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stops: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn: Option<&'a Turn>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sum: Option<Sum>,
    /// What people should see the session do, if that changed.
    pub status: Option<&'static str>,
    pub status_message: Option<&'a str>,
    /// The turn waits for people or children now, if they have not answered already.
    pub parks: bool,
    /// With the end of the turn: what the session is afterwards, if nothing is queued.
    pub ends: Option<&'static str>,
}

#[derive(Debug, Serialize)]
pub struct Event<'a> {
    /// Its place among the session's events of this batch.
    pub ordinal: usize,
    pub r#type: &'a str,
    pub created_at: Timestamp,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub step_id: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub tool_call_id: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub action_id: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub task_id: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub run_id: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub subagent_id: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub trace_id: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub span_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ids: Option<RareIds>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub refs: &'a BTreeMap<String, String>,
    pub payload: Box<RawValue>,
}

#[derive(Debug, Clone, Serialize)]
pub struct Message {
    pub id: MessageId,
    pub turn_id: TurnId,
    /// The event of this batch that put it there; -1: the last one before.
    pub ordinal: i64,
    pub status: &'static str,
    pub synthetic: bool,
    pub metadata: Value,
    pub created_at: Timestamp,
}

#[derive(Debug, Clone, Serialize)]
pub struct Part {
    pub message_id: MessageId,
    pub index: usize,
    pub id: PartId,
    pub r#type: String,
    pub data: Value,
    /// The last event of this batch that it holds; -1: only what came before.
    pub ordinal: i64,
}

#[derive(Debug, Serialize)]
pub struct Prompt<'a> {
    pub tenant_id: &'a Tenant,
    pub digest: &'a str,
    pub body: &'a str,
}

#[derive(Debug, Clone, Serialize)]
pub struct Turn {
    pub id: TurnId,
    pub status: &'static str,
    pub view: TurnView,
}

#[derive(Debug, Clone, Serialize)]
pub struct Action {
    pub id: ActionId,
    pub turn_id: TurnId,
    pub step_id: StepId,
    pub tool_call_id: ToolCallId,
    pub kind: String,
    pub request: ActionRequired,
    pub permission: Option<String>,
    pub pattern: Option<String>,
    pub created_at: Timestamp,
    pub expires_at: Option<Timestamp>,
}

#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Sum {
    pub input_tokens: i64,
    pub output_tokens: i64,
    pub cost_micros: i64,
    pub model_calls: i64,
}

/// What became of one session of the batch.
#[derive(Debug)]
pub struct Answer {
    pub lease: i32,
    /// The sequence of its first event.
    pub base: i64,
    pub interrupt_turn: Option<TurnId>,
    pub interrupt_by: Option<String>,
    pub interrupt_reason: Option<String>,
    pub fired: Option<Json<events::Row>>,
    /// Whether there is something to claim now.
    pub ready: bool,
    /// Sessions that have mail now.
    pub mail: Vec<SessionId>,
    /// What was appended behind the batch, before anything was fired.
    pub told: Json<Vec<events::Row>>,
}

/// Commits a batch. Sessions that are missing from the answer were not written.
pub async fn flush(
    db: impl PgExecutor<'_>,
    owner: ReplicaId,
    batch: &Batch<'_>,
) -> Result<Vec<Answer>, sqlx::Error> {
    sqlx::query_as!(
        Answer,
        r#"
        select lease as "lease!", base as "base!", interrupt_turn as "interrupt_turn: _",
               interrupt_by, interrupt_reason, fired as "fired: _", ready as "ready!",
               mail as "mail!: _", told as "told!: _"
        from session.flush_turns($1, $2)
        "#,
        owner as _,
        Json(batch) as _,
    )
    .fetch_all(db)
    .await
}

/// Who owns a session and how far it was flushed.
#[derive(Debug)]
pub struct State {
    pub session_id: SessionId,
    pub owner: Option<ReplicaId>,
    pub epoch: i64,
    pub flush_no: i64,
}

pub async fn states(db: impl PgExecutor<'_>, ids: &[SessionId]) -> Result<Vec<State>, sqlx::Error> {
    sqlx::query_as!(
        State,
        r#"
        select session_id as "session_id: _", owner as "owner: _", epoch, flush_no
        from session.run_state
        where session_id = any($1)
        "#,
        ids as _,
    )
    .fetch_all(db)
    .await
}
