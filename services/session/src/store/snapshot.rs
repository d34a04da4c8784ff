use jiff_sqlx::Timestamp as Time;
use proto::session::v1::{QueuedTurn, StepView, ToolCallView, TurnView};
use serde::Deserialize;
use sqlx::{PgConnection, types::Json};

use crate::{
    error::Result,
    ids::{MessageId, SessionId, TurnId},
    message::{Asked, ToolState},
    time,
};

/// The latest turns, oldest first, with their steps.
pub async fn turns(
    db: &mut PgConnection,
    session_id: SessionId,
    limit: i64,
) -> Result<Vec<TurnView>> {
    let mut rows = sqlx::query!(
        r#"
        select t.id as "id: TurnId", t.status, t.view as "view: Json<TurnView>",
               coalesce((
                   select jsonb_agg(jsonb_build_object(
                       'message_id', m.id, 'status', m.status, 'model', m.metadata_json ->> 'model',
                       'calls', (
                           select coalesce(jsonb_agg(jsonb_build_object(
                               'tool_call_id', p.data_json ->> 'tool_call_id', 'tool', substr(p.type, 6),
                               'state', p.data_json ->> 'state', 'asked', p.data_json ->> 'asked',
                               'error_text', p.data_json ->> 'error_text'
                           ) order by p.index), '[]')
                           from session.chat_parts p
                           where p.session_id = m.session_id and p.message_id = m.id and p.type like 'tool-%'
                       )) order by m.position)
                   from session.chat_messages m
                   where m.session_id = t.session_id and m.turn_id = t.id and m.role = 'assistant' and not m.synthetic
               ), '[]') as "steps!: Json<Vec<Step>>"
        from session.turn t
        where t.session_id = $1
        order by t.submitted_at desc
        limit $2
        "#,
        session_id as _,
        limit,
    )
    .fetch_all(db)
    .await?;
    rows.reverse();
    Ok(rows
        .into_iter()
        .map(|row| {
            let mut view = row.view.0;
            view.turn_id = row.id.to_string();
            view.steps = row.steps.0.into_iter().map(Step::into_view).collect();
            // Until a worker took it, only the column knows.
            match row.status.as_str() {
                "queued" => view.status = "queued".into(),
                "accepted" => view.status = "preparing".into(),
                "cancelled" => view.status = "cancelled".into(),
                _ => {}
            }
            view
        })
        .collect())
}

/// The turns that wait, in the order in which they will run.
pub async fn queue(db: &mut PgConnection, session_id: SessionId) -> Result<Vec<QueuedTurn>> {
    let rows = sqlx::query!(
        r#"
        select m.id as "id: MessageId", m.turn_id as "turn_id: TurnId", m.created_at as "created_at: Time",
               (select left(p.data_json ->> 'text', 200) from session.chat_parts p
                where p.session_id = m.session_id and p.message_id = m.id and p.type = 'text'
                order by p.index limit 1) as preview
        from session.chat_messages m
        where m.session_id = $1 and m.queue_rank is not null
        order by m.queue_rank
        limit 1000
        "#,
        session_id as _,
    )
    .fetch_all(db)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| QueuedTurn {
            turn_id: row.turn_id.to_string(),
            message_id: row.id.to_string(),
            queued_at: Some(time::to_proto(row.created_at.to_jiff())),
            preview: row.preview.unwrap_or_default(),
        })
        .collect())
}

#[derive(Debug, Deserialize)]
struct Step {
    message_id: MessageId,
    status: String,
    model: Option<String>,
    calls: Vec<Call>,
}

#[derive(Debug, Deserialize)]
struct Call {
    tool_call_id: String,
    tool: String,
    state: ToolState,
    asked: Option<Asked>,
    error_text: Option<String>,
}

impl Step {
    fn into_view(self) -> StepView {
        StepView {
            step_id: self.message_id.step().to_string(),
            message_id: self.message_id.to_string(),
            status: self.status,
            model: self.model.unwrap_or_default(),
            tool_calls: self.calls.into_iter().map(Call::into_view).collect(),
        }
    }
}

impl Call {
    fn into_view(self) -> ToolCallView {
        let status = match self.state {
            ToolState::InputStreaming => "pending",
            ToolState::InputAvailable if self.asked == Some(Asked::Open) => "blocked",
            ToolState::InputAvailable => "running",
            ToolState::OutputAvailable => "completed",
            ToolState::OutputError => "failed",
        };
        ToolCallView {
            tool_call_id: self.tool_call_id,
            tool: self.tool,
            status: status.to_owned(),
            error_text: self.error_text.unwrap_or_default(),
        }
    }
}
