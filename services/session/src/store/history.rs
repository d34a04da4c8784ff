//! Going back in a conversation, and branching off from it.

use chassis::Tenant;
use proto::event::v1::Event;
use sqlx::{PgExecutor, types::Json};

use crate::{
    error::{Error, Result},
    ids::{MessageId, SessionId, TurnId, WorkspaceId},
    store::{
        queue::{Events, published},
        turns::Stamp,
    },
};

/// How many messages changed sides, and what is to be published.
#[derive(Debug)]
pub struct Rolled {
    pub messages: i32,
    pub events: Vec<Event>,
}

/// Hides a user message and everything behind it.
pub async fn rewind(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    id: SessionId,
    message_id: MessageId,
    snapshot_id: Option<&str>,
    stamp: &Stamp,
) -> Result<Rolled> {
    let row = sqlx::query!(
        r#"
        select outcome as "outcome!", turn_id as "turn_id: TurnId", messages, events as "events: Events"
        from session.rewind($1, $2, $3, $4, $5)
        "#,
        tenant as _,
        id as _,
        message_id as _,
        snapshot_id,
        Json(stamp) as _,
    )
    .fetch_one(db)
    .await?;
    let nothing = format!("{message_id} is not a visible user message of it");
    rolled(&row.outcome, id, row.turn_id, nothing, row.messages, row.events)
}

/// The workspace as it was when a message was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    pub workspace_id: WorkspaceId,
    /// Absent: nothing has changed since.
    pub snapshot_id: Option<String>,
}

/// What a rewind to a message would have to put back.
pub async fn files_at(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    id: SessionId,
    message_id: MessageId,
) -> Result<Files> {
    let row = sqlx::query!(
        r#"
        select
            outcome as "outcome!", turn_id as "turn_id: TurnId",
            workspace_id as "workspace_id: WorkspaceId", snapshot_id
        from session.files_at($1, $2, $3)
        "#,
        tenant as _,
        id as _,
        message_id as _,
    )
    .fetch_one(db)
    .await?;
    match (row.outcome.as_str(), row.workspace_id) {
        ("found" | "unchanged", Some(workspace_id)) => {
            Ok(Files { workspace_id, snapshot_id: row.snapshot_id })
        }
        ("busy", _) => {
            Err(Error::NotAtRest { id, turn_id: row.turn_id, problem: "a turn runs or waits" })
        }
        ("nothing", _) => {
            let problem = format!("{message_id} is not a visible user message of it");
            Err(Error::NothingToRewind { id, problem })
        }
        ("unknown", Some(workspace_id)) => Err(Error::FilesNotKept { workspace_id, message_id }),
        _ => Err(Error::SessionNotFound(id)),
    }
}

/// Shows again what the last rewind hid.
pub async fn unrewind(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    id: SessionId,
    stamp: &Stamp,
) -> Result<Rolled> {
    let row = sqlx::query!(
        r#"
        select outcome as "outcome!", turn_id as "turn_id: TurnId", messages, events as "events: Events"
        from session.unrewind($1, $2, $3)
        "#,
        tenant as _,
        id as _,
        Json(stamp) as _,
    )
    .fetch_one(db)
    .await?;
    let nothing = "nothing was rewound, or a turn was submitted since".to_owned();
    rolled(&row.outcome, id, row.turn_id, nothing, row.messages, row.events)
}

fn rolled(
    outcome: &str,
    id: SessionId,
    turn_id: Option<TurnId>,
    nothing: String,
    messages: Option<i32>,
    events: Option<Events>,
) -> Result<Rolled> {
    match outcome {
        "not_found" => Err(Error::SessionNotFound(id)),
        "busy" => Err(Error::NotAtRest { id, turn_id, problem: "a turn runs or waits" }),
        "nothing" => Err(Error::NothingToRewind { id, problem: nothing }),
        _ => Ok(Rolled { messages: messages.unwrap_or_default(), events: published(events)? }),
    }
}

#[derive(Debug)]
pub struct NewFork<'a> {
    pub id: SessionId,
    pub tenant: &'a Tenant,
    pub parent_id: SessionId,
    /// The last message to copy, or all of them.
    pub message_id: Option<MessageId>,
    pub subject: &'a str,
    pub request_id: &'a str,
    pub request_digest: &'a str,
    pub ephemeral: bool,
}

/// Creates a session that begins with another's visible messages, or finds the one this
/// request created before.
pub async fn fork(db: impl PgExecutor<'_>, new: NewFork<'_>, stamp: &Stamp) -> Result<SessionId> {
    let row = sqlx::query!(
        r#"
        select outcome as "outcome!", session_id as "session_id: SessionId", turn_id as "turn_id: TurnId"
        from session.fork($1, $2, $3, $4, $5, $6, $7, $8, $9)
        "#,
        new.tenant as _,
        new.parent_id as _,
        new.id as _,
        new.message_id as _,
        new.subject,
        new.request_id,
        new.request_digest,
        new.ephemeral,
        Json(stamp) as _,
    )
    .fetch_one(db)
    .await?;
    let (id, turn_id) = (new.parent_id, row.turn_id);
    match (row.outcome.as_str(), row.session_id, new.message_id) {
        ("forked", Some(fork), _) => Ok(fork),
        ("reused", ..) => Err(Error::RequestIdReused(new.request_id.to_owned())),
        ("busy", ..) => Err(Error::NotAtRest { id, turn_id, problem: "a turn runs or waits" }),
        ("no_message", _, Some(message_id)) => {
            Err(Error::MessageNotFound { session_id: id, message_id })
        }
        ("not_found", ..) => Err(Error::SessionNotFound(id)),
        _ => Err(Error::Corrupt("session.fork left out a column")),
    }
}
