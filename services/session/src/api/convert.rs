//! The border with protobuf.

use jiff::Timestamp;
use jiff_sqlx::Timestamp as Time;
use proto::session::v1 as pb;
use serde_json::{Value, json};

use crate::{
    error::Result,
    ids::SessionId,
    message::{Metadata, Part, Role},
    store::{messages::Stored, sessions::Session, turns},
    time,
};

pub fn timestamp(time: Time) -> Option<pbjson_types::Timestamp> {
    Some(time::to_proto(time.to_jiff()))
}

/// `ready` is our word for busy without a worker yet.
pub fn status(status: &str) -> pb::session::Status {
    match status {
        "idle" => pb::session::Status::Idle,
        "ready" | "busy" | "waiting_on_child" => pb::session::Status::Busy,
        "retrying" => pb::session::Status::Retrying,
        "waiting_on_approval" => pb::session::Status::WaitingOnApproval,
        "waiting_on_user_input" => pb::session::Status::WaitingOnUserInput,
        "error" => pb::session::Status::Error,
        _ => pb::session::Status::Unspecified,
    }
}

impl From<Session> for pb::Session {
    fn from(session: Session) -> pb::Session {
        pb::Session {
            session_id: session.id.to_string(),
            title: session.title,
            agent: session.agent,
            status: status(&session.status).into(),
            active_turn_id: session.active_turn.map(|id| id.to_string()).unwrap_or_default(),
            queued_turns: session.queued,
            last_sequence: session.last_sequence,
            workspace_id: session.workspace_id.to_string(),
            parent_session_id: session.parent_id.unwrap_or_default(),
            parent_message_id: session.parent_message_id.unwrap_or_default(),
            ephemeral: session.ephemeral,
            archived: session.archived,
            create_time: timestamp(session.created_at),
            update_time: timestamp(session.updated_at),
            input_tokens: session.input_tokens,
            output_tokens: session.output_tokens,
            cost_micros: session.cost_micros,
            metadata_json: session.metadata.to_string(),
            subject: session.subject,
            status_message: session.status_message,
        }
    }
}

pub fn turn_status(status: &str) -> pb::turn::Status {
    match status {
        "accepted" => pb::turn::Status::Accepted,
        "queued" => pb::turn::Status::Queued,
        "running" => pb::turn::Status::Running,
        "waiting" => pb::turn::Status::Waiting,
        "completed" => pb::turn::Status::Completed,
        "failed" => pb::turn::Status::Failed,
        "cancelled" => pb::turn::Status::Cancelled,
        _ => pb::turn::Status::Unspecified,
    }
}

pub fn submitted(session_id: SessionId, turn: turns::Submitted) -> pb::SubmitTurnResponse {
    pb::SubmitTurnResponse {
        sequence: turn.sequence,
        turn: Some(pb::Turn {
            turn_id: turn.turn_id.to_string(),
            session_id: session_id.to_string(),
            message_id: turn.message_id.to_string(),
            status: turn_status(&turn.status).into(),
            submit_time: timestamp(turn.submitted_at),
            queue_position: turn.queue_position.unwrap_or_default(),
        }),
    }
}

pub fn turn(session_id: SessionId, turn: turns::Turn) -> pb::Turn {
    pb::Turn {
        turn_id: turn.id.to_string(),
        session_id: session_id.to_string(),
        message_id: turn.message_id.to_string(),
        status: turn_status(&turn.status).into(),
        submit_time: timestamp(turn.submitted_at),
        queue_position: turn.queue_position.unwrap_or_default() as i32,
    }
}

pub fn message(session_id: SessionId, stored: &Stored) -> Result<pb::Message> {
    let metadata: Metadata = serde_json::from_value(stored.metadata.0.clone())?;
    let parts = stored.parts().iter().map(|row| {
        let part = row.part()?;
        Ok(pb::Part {
            part_id: row.id.to_string(),
            index: row.index,
            r#type: row.r#type.clone(),
            content: Some(content(part)),
        })
    });
    let queued = metadata.queued_at.and_then(|at| Timestamp::from_millisecond(at).ok());
    Ok(pb::Message {
        message_id: stored.id.to_string(),
        session_id: session_id.to_string(),
        role: match stored.role.0 {
            Role::User => pb::message::Role::User,
            Role::Assistant => pb::message::Role::Assistant,
        }
        .into(),
        turn_id: stored.turn_id.to_string(),
        parts: parts.collect::<Result<_>>()?,
        create_time: timestamp(stored.created_at),
        queue_time: queued.map(time::to_proto),
        hide_time: stored.hidden_at.and_then(timestamp),
        // A request to compact is ours to word: it says nothing.
        synthetic: stored.synthetic || metadata.compact,
        usage: metadata.usage,
        cost_micros: metadata.cost_micros.unwrap_or_default(),
        model: metadata.model.unwrap_or_default(),
        agent: metadata.agent.unwrap_or_default(),
        prompt_digest: metadata.prompt_digest.unwrap_or_default(),
        metadata_json: kept(metadata.client, metadata.trigger),
        status: stored.status.clone(),
    })
}

/// What the caller wanted kept, and what fired the turn when no person did.
fn kept(client: Option<Value>, trigger: Option<Value>) -> String {
    match (client, trigger) {
        (None, None) => String::new(),
        (Some(client), None) => client.to_string(),
        (client, Some(trigger)) => {
            let mut kept = client.unwrap_or_else(|| json!({}));
            kept["trigger"] = trigger;
            kept.to_string()
        }
    }
}

fn content(part: Part) -> pb::part::Content {
    match part {
        Part::Text(text) | Part::Reasoning(text) => {
            pb::part::Content::Text(pb::part::Text { text: text.text, streaming: text.streaming })
        }
        Part::Tool(tool_use) => pb::part::Content::Tool(pb::part::ToolUse {
            tool_call_id: tool_use.tool_call_id.to_string(),
            tool: tool_use.tool,
            state: tool_use.state.as_str().to_owned(),
            input_json: tool_use.input_json,
            output_json: tool_use.output_json.unwrap_or_default(),
            error_text: tool_use.error_text.unwrap_or_default(),
            metadata: tool_use.metadata,
        }),
        Part::File(file) => pb::part::Content::File(pb::part::File {
            name: file.name,
            media_type: file.media_type,
            r#ref: file.reference,
            data: file.data,
        }),
        Part::Data { data, .. } => pb::part::Content::DataJson(data.to_string()),
    }
}
