//! A database with sessions in it, in the verbs of the store, for tests.

use chassis::Tenant;
use jiff::Timestamp;
use proto::event::v1::{Event, ModelDelta, Payload, TurnCompleted, TurnStarted};
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::{
    error::Result,
    ids::{MessageId, PartId, ReplicaId, SessionId, ToolCallId, TurnId, WorkspaceId},
    message::{MessageStatus, Metadata, Part, Text},
    pending::{Owner, Pending},
    store::{
        flush::{self, Answer, Batch},
        replicas,
        sessions::{self, NewSession},
        turns::{self, Claim, NewTurn, Stamp, Submitted},
    },
    subagent::{Origin, Spawn},
    turn::{Ending, Step},
};

pub struct World {
    pub db: PgPool,
    pub tenant: Tenant,
    /// A replica that lives.
    pub replica: ReplicaId,
}

/// A session's `run_state`.
#[derive(Debug, Clone, PartialEq, sqlx::FromRow)]
pub struct State {
    pub status: String,
    pub active_turn: Option<TurnId>,
    pub owner: Option<ReplicaId>,
    pub epoch: i64,
    pub flush_no: i64,
    pub next_seq: i64,
    pub queued: i32,
}

impl World {
    pub async fn new(db: PgPool) -> World {
        let replica = ReplicaId::new();
        replicas::register(&db, replica, "here").await.unwrap();
        World { db, tenant: "acme".parse().unwrap(), replica }
    }

    pub async fn another_replica(&self) -> ReplicaId {
        let replica = ReplicaId::new();
        replicas::register(&self.db, replica, "there").await.unwrap();
        replica
    }

    pub async fn create(&self, request_id: &str, digest: &str) -> Result<SessionId> {
        let new = NewSession {
            id: SessionId::new(),
            tenant: &self.tenant,
            subject: "alice",
            request_id,
            request_digest: digest,
            title: "",
            agent: "default",
            workspace_id: WorkspaceId::new(),
            metadata: &json!({}),
            created: &json!({}),
        };
        sessions::create(&self.db, new, &stamp(self.replica)).await
    }

    pub async fn session(&self) -> SessionId {
        let id = SessionId::new();
        self.create(&id.to_string(), "digest").await.unwrap()
    }

    /// Submits what can be submitted; the text is request id, digest and message at once.
    pub async fn submit(&self, id: SessionId, text: &str) -> Submitted {
        self.try_submit(id, text, text, |_| ()).await.unwrap()
    }

    pub async fn try_submit(
        &self,
        session_id: SessionId,
        request_id: &str,
        digest: &str,
        change: impl FnOnce(&mut NewTurn),
    ) -> Result<Submitted> {
        let mut new = self.new_turn(session_id, request_id, digest);
        change(&mut new);
        turns::submit(&self.db, &new, None, &stamp(self.replica)).await
    }

    /// Submits as a replica does that has room for the turn.
    pub async fn submit_here(&self, id: SessionId, text: &str) -> Submitted {
        let new = self.new_turn(id, text, text);
        turns::submit(&self.db, &new, Some(self.replica), &stamp(self.replica)).await.unwrap()
    }

    fn new_turn(&self, session_id: SessionId, request_id: &str, digest: &str) -> NewTurn {
        let message_id = MessageId::new();
        NewTurn {
            tenant: self.tenant.clone(),
            session_id,
            message_id,
            request_id: request_id.to_owned(),
            request_digest: digest.to_owned(),
            parts: vec![Part::text(request_id)],
            metadata: json!({}),
            submitted: json!({"messageId": message_id}),
            subject: "alice".to_owned(),
            trace_parent: None,
            reject: false,
            queue_limit: 3,
        }
    }

    pub async fn claim(&self, id: SessionId) -> Claim {
        turns::claim(&self.db, self.replica, &[id]).await.unwrap().remove(0).0
    }

    /// A session whose turn this replica has just claimed.
    pub async fn claimed(&self) -> Claim {
        let id = self.session().await;
        self.submit(id, "hello").await;
        self.claim(id).await
    }

    pub async fn flush(&self, owner: &Owner, pending: &Pending) -> Option<Answer> {
        self.flush_as(self.replica, &[(owner, pending)]).await.pop()
    }

    pub async fn flush_as(&self, by: ReplicaId, rows: &[(&Owner, &Pending)]) -> Vec<Answer> {
        flush::flush(&self.db, by, &batch(by, rows)).await.unwrap()
    }

    pub async fn state(&self, id: SessionId) -> State {
        sqlx::query_as("select * from session.run_state where session_id = $1")
            .bind(id)
            .fetch_one(&self.db)
            .await
            .unwrap()
    }

    /// The log, one line per event.
    pub async fn log(&self, id: SessionId) -> String {
        let lines: Vec<String> = sqlx::query_scalar(
            "select concat_ws(' ', seq, type, payload ->> 'status', payload ->> 'change', payload ->> 'length',
                    payload ->> 'text')
             from session.event where session_id = $1 order by seq",
        )
        .bind(id)
        .fetch_all(&self.db)
        .await
        .unwrap();
        lines.iter().map(|line| format!("{line}\n")).collect()
    }

    /// The messages, one line each: place, rank, status, and whether it says when it was queued.
    pub async fn messages(&self, id: SessionId) -> String {
        let lines: Vec<String> = sqlx::query_scalar(
            "select format('%s at %s rank %s %s%s', role, coalesce(position::text, '-'),
                    coalesce(queue_rank::text, '-'), status,
                    case when metadata_json ? 'queued_at' then ' queued_at' end)
             from session.chat_messages where session_id = $1 order by created_at, id",
        )
        .bind(id)
        .fetch_all(&self.db)
        .await
        .unwrap();
        lines.iter().map(|line| format!("{line}\n")).collect()
    }

    pub async fn turn_status(&self, session_id: SessionId, id: TurnId) -> String {
        turns::get(&self.db, &self.tenant, session_id, id).await.unwrap().status
    }

    /// Ends the claimed turn. What waits goes on after a good end and not after a broken one.
    pub async fn end(&self, claim: &Claim, ending: Ending) {
        let end = pending(|pending, now| {
            pending.append(completed(), now);
            pending.end(ending);
        });
        self.flush(&Owner::from(claim), &end).await.unwrap();
    }

    /// A session that runs a turn, and these turns in its queue.
    pub async fn queued<const N: usize>(&self, texts: [&str; N]) -> (Claim, [TurnId; N]) {
        let claim = self.claimed().await;
        let mut turns = [claim.turn_id; N];
        for (turn, text) in turns.iter_mut().zip(texts) {
            *turn = self.submit(claim.session_id, text).await.turn_id;
        }
        (claim, turns)
    }

    /// The queue, by what its turns say.
    pub async fn queue(&self, id: SessionId) -> Vec<String> {
        let mut db = self.db.acquire().await.unwrap();
        let queue = crate::store::snapshot::queue(&mut db, id).await.unwrap();
        queue.into_iter().map(|turn| turn.preview).collect()
    }
}

pub fn stamp(runtime_id: ReplicaId) -> Stamp {
    Stamp::of(runtime_id)
}

pub fn batch<'a>(by: ReplicaId, rows: &[(&'a Owner, &'a Pending)]) -> Batch<'a> {
    let mut batch = Batch::new(by);
    for (lease, &(owner, pending)) in rows.iter().enumerate() {
        pending.write(&mut batch, lease, owner).unwrap();
    }
    batch
}

/// A step that is streaming one text.
pub fn step(message_id: MessageId, text: &str) -> Step {
    let part = Text { text: text.to_owned(), streaming: true, ..Text::default() };
    Step {
        message_id,
        status: MessageStatus::Streaming,
        metadata: Metadata::default(),
        parts: vec![Part::Text(part)],
    }
}

/// A child of `parent_id` that a call asks for.
pub fn spawn(parent_id: SessionId, id: ToolCallId, background: bool) -> Spawn {
    let subagent_id = id.subagent();
    let (session_id, message_id) = (subagent_id.session(), subagent_id.message());
    Spawn {
        origin: Origin {
            subagent_id,
            session_id,
            parent_id,
            parent_message_id: message_id,
            root_id: parent_id,
            tool_call_id: id,
            agent: "explore".into(),
            background,
            inspectable: false,
            depth: 1,
            most_depth: 5,
            permissions: Default::default(),
        },
        step_id: message_id.step(),
        title: String::new(),
        subject: "ann".into(),
        workspace_id: WorkspaceId::new(),
        metadata: json!({}),
        message_id,
        turn_id: message_id.turn(),
        part_id: PartId::new(),
        prompt: "look".into(),
        message_metadata: json!({}),
        created: json!({}),
        submitted: json!({}),
        trace_parent: None,
    }
}

pub fn started() -> Event {
    Event::fact(Payload::TurnStarted(TurnStarted::default()))
}

pub fn completed() -> Event {
    Event::fact(Payload::TurnCompleted(TurnCompleted::default()))
}

pub fn delta(message_id: MessageId, text: &str) -> Event {
    let (message_id, text) = (message_id.to_string(), text.to_owned());
    Event::fact(Payload::ModelDelta(ModelDelta { message_id, part_index: 0, text }))
}

/// What `add` writes, at some time.
pub fn pending(add: impl FnOnce(&mut Pending, Timestamp)) -> Pending {
    let mut pending = Pending::default();
    add(&mut pending, crate::time::now());
    pending
}

/// The text of each part of each message, as a reader of the conversation gets it.
pub async fn texts(db: &PgPool, id: SessionId) -> Vec<String> {
    let mut db = db.begin_with("begin isolation level repeatable read, read only").await.unwrap();
    let window = crate::store::messages::Window::Before(i64::MAX, 100);
    let page = crate::store::messages::page(&mut db, id, window, false, i64::MAX);
    let (stored, _) = page.await.unwrap();
    let text = |part: &Value| part["text"].as_str().unwrap_or_default().to_owned();
    stored
        .iter()
        .flat_map(|message| message.parts())
        .map(|row| text(&row.part().unwrap().data()))
        .collect()
}
