use std::collections::HashMap;

use jiff_sqlx::Timestamp as Time;
use serde::Deserialize;
use serde_json::Value;
use sqlx::{PgConnection, types::Json};

use crate::{
    error::Result,
    ids::{MessageId, PartId, SessionId, TurnId},
    message::{Message, Metadata, Part, Role},
};

/// A message with its parts, complete up to the last event.
#[derive(Debug)]
pub struct Stored {
    pub id: MessageId,
    pub turn_id: TurnId,
    pub role: Json<Role>,
    pub status: String,
    pub synthetic: bool,
    pub position: Option<i64>,
    pub metadata: Json<Value>,
    pub created_at: Time,
    pub hidden_at: Option<Time>,
    parts: Json<Vec<PartRow>>,
}

/// A part as it stands in its row, which deltas may have outgrown.
#[derive(Debug, Clone, Deserialize)]
pub struct PartRow {
    pub index: i32,
    pub id: PartId,
    pub r#type: String,
    data: Value,
    folded_seq: i64,
}

impl PartRow {
    pub fn part(&self) -> Result<Part> {
        Ok(Part::from_row(&self.r#type, self.data.clone())?)
    }

    fn extend(&mut self, more: &str) {
        if let Some(Value::String(text)) = self.data.get_mut("text") {
            text.push_str(more);
        }
    }

    fn is_streaming(&self) -> bool {
        self.data.get("streaming") == Some(&Value::Bool(true))
    }
}

impl Stored {
    pub fn parts(&self) -> &[PartRow] {
        &self.parts
    }

    pub fn into_message(self) -> Result<Message> {
        Ok(Message {
            id: self.id,
            turn_id: self.turn_id,
            role: self.role.0,
            metadata: serde_json::from_value::<Metadata>(self.metadata.0)?,
            parts: self.parts.iter().map(PartRow::part).collect::<Result<_>>()?,
        })
    }
}

/// What a query for messages asks for.
#[derive(Debug, Clone, Copy)]
pub enum Window {
    /// The latest that have a place in the conversation, from before a position.
    Before(i64, i64),
    /// Those that wait in the queue.
    Queued,
}

/// Messages in the order of the conversation. Call it in a transaction that sees one
/// state, or a message could be newer than the deltas that are added to it.
pub async fn load(
    db: &mut PgConnection,
    session_id: SessionId,
    window: Window,
    include_hidden: bool,
) -> Result<Vec<Stored>> {
    let (before, limit, queued) = match window {
        Window::Before(position, limit) => (position, limit, false),
        Window::Queued => (i64::MAX, 1000, true),
    };
    let mut messages = sqlx::query_as!(
        Stored,
        r#"
        select m.id as "id!: _", m.turn_id as "turn_id!: _", to_jsonb(m.role) as "role!: _", m.status as "status!",
               m.synthetic as "synthetic!", m.position, m.metadata_json as "metadata!: _",
               m.created_at as "created_at!: _", m.hidden_at as "hidden_at: _",
               coalesce((
                   select jsonb_agg(jsonb_build_object(
                       'index', p.index, 'id', p.id, 'type', p.type, 'data', p.data_json,
                       'folded_seq', p.folded_seq) order by p.index)
                   from session.chat_parts p
                   where p.session_id = m.session_id and p.message_id = m.id
               ), '[]') as "parts!: _"
        from (
            -- Each window has its own index, and so a branch of its own.
            (select * from session.chat_messages
             where not $5 and session_id = $1 and position < $3 and (hidden_at is null or $2)
             order by position desc limit $4)
            union all
            (select * from session.chat_messages
             where $5 and session_id = $1 and queue_rank is not null and (hidden_at is null or $2)
             order by queue_rank desc limit $4)
        ) m
        order by m.position desc, m.queue_rank desc
        "#,
        session_id as _,
        include_hidden,
        before,
        limit,
        queued,
    )
    .fetch_all(&mut *db)
    .await?;
    messages.reverse();
    unfold(db, session_id, &mut messages).await?;
    Ok(messages)
}

/// Adds what the log says beyond what the rows of growing parts hold.
async fn unfold(
    db: &mut PgConnection,
    session_id: SessionId,
    messages: &mut [Stored],
) -> Result<()> {
    let mut growing: HashMap<(MessageId, i32), &mut PartRow> = messages
        .iter_mut()
        .flat_map(|message| {
            let id = message.id;
            message.parts.iter_mut().map(move |part| ((id, part.index), part))
        })
        .filter(|(_, part)| part.is_streaming())
        .collect();
    let Some(folded) = growing.values().map(|part| part.folded_seq).min() else {
        return Ok(());
    };
    let deltas = sqlx::query!(
        r#"
        select seq, payload ->> 'messageId' as "message_id!: MessageId",
               coalesce((payload ->> 'partIndex')::int, 0) as "part_index!", payload ->> 'text' as "text!"
        from session.event
        where session_id = $1 and seq > $2 and type in ('model.delta', 'reasoning.delta')
        order by seq
        "#,
        session_id as _,
        folded,
    )
    .fetch_all(db)
    .await?;
    for delta in deltas {
        if let Some(part) = growing.get_mut(&(delta.message_id, delta.part_index))
            && delta.seq > part.folded_seq
        {
            part.extend(&delta.text);
        }
    }
    Ok(())
}
