use std::collections::HashMap;

use jiff_sqlx::Timestamp as Time;
use serde::Deserialize;
use serde_json::Value;
use sqlx::{PgConnection, PgExecutor, types::Json};

use crate::{
    error::Result,
    ids::{MessageId, PartId, ReplicaId, SessionId, TurnId},
    message::{Message, MessageStatus, Metadata, Part, Role},
    turn::Step,
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
    /// Its place in the queue, while it waits there.
    pub queue_rank: Option<i64>,
    pub metadata: Json<Value>,
    pub created_at: Time,
    pub hidden_at: Option<Time>,
    parts: Json<Vec<PartRow>>,
    /// How many the query found, this one among them.
    found: i64,
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

/// What came before the steps of a turn, its user message included, and the steps.
pub fn split(stored: Vec<Stored>, turn_id: TurnId) -> Result<(Vec<Message>, Vec<Step>)> {
    let (mut history, mut steps) = (Vec::new(), Vec::new());
    for message in stored {
        let status = match message.status.as_str() {
            "streaming" => MessageStatus::Streaming,
            "failed" => MessageStatus::Failed,
            "cancelled" => MessageStatus::Cancelled,
            _ => MessageStatus::Completed,
        };
        let message = message.into_message()?;
        if message.role == Role::Assistant && message.turn_id == turn_id {
            let Message { id: message_id, metadata, parts, .. } = message;
            steps.push(Step { message_id, status, metadata, parts });
        } else {
            history.push(message);
        }
    }
    Ok((history, steps))
}

/// What a query for messages asks for.
#[derive(Debug, Clone, Copy)]
pub enum Window {
    /// The latest that have a place in the conversation, from before a position.
    Before(i64, i64),
    /// The earliest that have a place in the conversation, from after a position.
    After(i64, i64),
    /// The first of those that wait in the queue, from after a rank.
    Queued(i64, i64),
}

/// Messages in the order of the conversation, no more than about so many bytes and at least one.
/// Says whether the window, or the conversation beyond it, has more. Call it in a transaction that
/// sees one state, or a message could be newer than the deltas that are added to it.
pub async fn page(
    db: &mut PgConnection,
    session_id: SessionId,
    window: Window,
    include_hidden: bool,
    bytes: i64,
) -> Result<(Vec<Stored>, bool)> {
    let (kind, place, limit) = match window {
        Window::Before(position, limit) => ("before", position, limit),
        Window::After(position, limit) => ("after", position, limit),
        Window::Queued(rank, limit) => ("queued", rank, limit),
    };
    let mut messages = sqlx::query_as!(
        Stored,
        r#"
        with page as materialized (
            select m.*, row_number() over (order by m.place) as nth,
                   coalesce((
                       select jsonb_agg(jsonb_build_object(
                           'index', p.index, 'id', p.id, 'type', p.type, 'data', p.data_json,
                           'folded_seq', p.folded_seq) order by p.index)
                       from session.chat_parts p
                       where p.session_id = m.session_id and p.message_id = m.id
                   ), '[]') as parts
            from (
                -- Each window has its own index, and so a branch of its own.
                (select *, -position as place from session.chat_messages
                 where $5 = 'before' and session_id = $1 and position < $3 and (hidden_at is null or $2)
                 order by position desc limit $4)
                union all
                (select *, position from session.chat_messages
                 where $5 = 'after' and session_id = $1 and position > $3 and (hidden_at is null or $2)
                 order by position limit $4)
                union all
                (select *, queue_rank from session.chat_messages
                 where $5 = 'queued' and session_id = $1 and queue_rank > $3 and (hidden_at is null or $2)
                 order by queue_rank limit $4)
            ) m
        ), sized as (
            -- Measured only for those who mind.
            select page.*, sum(case when $6 < 9223372036854775807
                                   then octet_length(page.parts::text) + octet_length(page.metadata_json::text) + 300
                                   else 0 end)
                               over (order by page.nth rows between unbounded preceding and 1 preceding) as before
            from page
        )
        select m.id as "id!: _", m.turn_id as "turn_id!: _", to_jsonb(m.role) as "role!: _", m.status as "status!",
               m.synthetic as "synthetic!", m.position, m.queue_rank, m.metadata_json as "metadata!: _",
               m.created_at as "created_at!: _", m.hidden_at as "hidden_at: _", m.parts as "parts!: _",
               (select count(*) from page) as "found!"
        from sized m
        where m.nth = 1 or m.before < $6
        order by m.nth
        "#,
        session_id as _,
        include_hidden,
        place,
        limit.saturating_add(1),
        kind,
        bytes,
    )
    .fetch_all(&mut *db)
    .await?;
    messages.truncate(limit as usize);
    let more = messages.first().is_some_and(|message| message.found > messages.len() as i64);
    if let Window::Before(..) = window {
        messages.reverse();
    }
    unfold(db, session_id, &mut messages).await?;
    Ok((messages, more))
}

/// How much of a conversation a turn looks at: more than any model reads at once.
const VISIBLE: i64 = 10_000;
const VISIBLE_BYTES: i64 = 8 * 1024 * 1024;

/// And how much text that may be: what Postgres keeps in these bytes may be a hundred times as much
/// in a process. Up to `UNMEASURED` of them it is not, and nobody counts.
const VISIBLE_TEXT: i64 = 16 * 1024 * 1024;
const UNMEASURED: i64 = 16 * 1024;

/// The messages that the model can see: everything since the last compaction and what it kept,
/// and always all of the turn itself.
pub async fn visible(
    db: &mut PgConnection,
    session_id: SessionId,
    turn_id: TurnId,
) -> Result<Vec<Stored>> {
    let mut messages = sqlx::query_as!(
        Stored,
        r#"
        with marker as (
            select m.position, m.turn_id, p.data_json ->> 'tail_start_id' as tail
            from session.chat_messages m
            join session.chat_parts p on p.session_id = m.session_id and p.message_id = m.id
            where m.session_id = $1 and m.synthetic and m.hidden_at is null and p.type = 'data-compaction'
            order by m.position desc
            limit 1
        ), seen as (
            select m.*, (
                select coalesce(sum(pg_column_size(p.data_json)), 0)
                from session.chat_parts p
                where p.session_id = m.session_id and p.message_id = m.id
            ) as bytes
            from session.chat_messages m
            where m.session_id = $1 and m.hidden_at is null
              and m.position >= coalesce((
                  -- What was kept, and the message of the turn in which it was compacted.
                  select least(
                      marker.position,
                      (select t.position from session.chat_messages t
                       where t.session_id = $1 and t.id = marker.tail),
                      (select min(t.position) from session.chat_messages t
                       where t.session_id = $1 and t.turn_id = marker.turn_id))
                  from marker
                  -- Imported messages stand before zero.
              ), -9223372036854775808)
            order by m.position desc
            limit $3
        )
        select m.id as "id!: _", m.turn_id as "turn_id!: _", to_jsonb(m.role) as "role!: _", m.status as "status!",
               m.synthetic as "synthetic!", m.position, m.queue_rank, m.metadata_json as "metadata!: _",
               m.created_at as "created_at!: _", m.hidden_at as "hidden_at: _", count(*) over () as "found!",
               coalesce((
                   select json_agg(json_build_object(
                       'index', p.index, 'id', p.id, 'type', p.type, 'data', p.data_json,
                       'folded_seq', p.folded_seq) order by p.index)
                   from session.chat_parts p
                   where p.session_id = m.session_id and p.message_id = m.id
               ), '[]'::json) as "parts!: _"
        from (
            select s.*, sum(case when s.bytes_since > $6::bigint then (
                select octet_length(s.metadata_json::text) + coalesce(sum(octet_length(p.data_json::text)), 0)
                from session.chat_parts p
                where p.session_id = s.session_id and p.message_id = s.id
            ) end) over (order by s.position desc) as text_since
            from (
                select s.*, sum(s.bytes) over (order by s.position desc) as bytes_since from seen s
            ) s
            where s.bytes_since <= $4::bigint or s.turn_id = $2
        ) m
        where coalesce(m.text_since, 0) <= $5::bigint or m.turn_id = $2
        order by m.position
        "#,
        session_id as _,
        turn_id as _,
        VISIBLE,
        VISIBLE_BYTES,
        VISIBLE_TEXT,
        UNMEASURED,
    )
    .fetch_all(&mut *db)
    .await?;
    unfold(db, session_id, &mut messages).await?;
    Ok(messages)
}

/// The messages of a turn that is over, rewound or not; with `history`, behind those that its model
/// could see when it began: what a rewind hid since was visible then.
pub async fn past(
    db: &mut PgConnection,
    session_id: SessionId,
    turn_id: TurnId,
    history: bool,
) -> Result<Vec<Stored>> {
    let mut messages = sqlx::query_as!(
        Stored,
        r#"
        with asked as (
            select min(m.position) as position from session.chat_messages m
            where m.session_id = $1 and m.turn_id = $2
        ), before as (
            select m.* from session.chat_messages m, asked
            where $3 and m.session_id = $1 and m.position < asked.position
              and (m.hidden_at is null or m.hidden_by > asked.position)
        ), marker as (
            select m.position, m.turn_id, p.data_json ->> 'tail_start_id' as tail
            from before m
            join session.chat_parts p on p.session_id = m.session_id and p.message_id = m.id
            where m.synthetic and p.type = 'data-compaction'
            order by m.position desc
            limit 1
        ), seen as (
            (select * from before m
             where m.position >= coalesce((
                 select least(
                     marker.position,
                     (select t.position from before t where t.id = marker.tail),
                     (select min(t.position) from before t where t.turn_id = marker.turn_id))
                 from marker
             ), -9223372036854775808)
             order by m.position desc
             limit $4)
            union all
            select * from session.chat_messages m where m.session_id = $1 and m.turn_id = $2
        ), sized as (
            select s.*, sum((
                select coalesce(sum(pg_column_size(p.data_json)), 0)
                from session.chat_parts p
                where p.session_id = s.session_id and p.message_id = s.id
            )) over (order by s.position desc nulls first) as bytes_since
            from seen s
        )
        select m.id as "id!: _", m.turn_id as "turn_id!: _", to_jsonb(m.role) as "role!: _", m.status as "status!",
               m.synthetic as "synthetic!", m.position, m.queue_rank, m.metadata_json as "metadata!: _",
               m.created_at as "created_at!: _", m.hidden_at as "hidden_at: _", count(*) over () as "found!",
               coalesce((
                   select json_agg(json_build_object(
                       'index', p.index, 'id', p.id, 'type', p.type, 'data', p.data_json,
                       'folded_seq', p.folded_seq) order by p.index)
                   from session.chat_parts p
                   where p.session_id = m.session_id and p.message_id = m.id
               ), '[]'::json) as "parts!: _"
        from (
            select s.*, sum(case when s.bytes_since > $7::bigint then (
                select octet_length(s.metadata_json::text) + coalesce(sum(octet_length(p.data_json::text)), 0)
                from session.chat_parts p
                where p.session_id = s.session_id and p.message_id = s.id
            ) end) over (order by s.position desc nulls first) as text_since
            from sized s
            where s.bytes_since <= $5::bigint or s.turn_id = $2
        ) m
        where coalesce(m.text_since, 0) <= $6::bigint or m.turn_id = $2
        order by m.position nulls last
        "#,
        session_id as _,
        turn_id as _,
        history,
        VISIBLE,
        VISIBLE_BYTES,
        VISIBLE_TEXT,
        UNMEASURED,
    )
    .fetch_all(&mut *db)
    .await?;
    unfold(db, session_id, &mut messages).await?;
    Ok(messages)
}

/// Has all that still grows in a session, if its turn is ours, be what the log has of it.
pub async fn close(
    db: impl PgExecutor<'_>,
    owner: ReplicaId,
    session_id: SessionId,
    epoch: i64,
) -> Result<()> {
    sqlx::query!(
        r#"
        with mine as (
            select r.session_id from session.run_state r
            where r.session_id = $1 and r.owner = $2 and r.epoch = $3
            for update
        ), closed as (
            update session.chat_messages m set status = 'failed'
            from mine
            where m.session_id = mine.session_id and m.status = 'streaming'
            returning m.id
        )
        update session.chat_parts p
        set data_json = p.data_json || jsonb_build_object('streaming', false, 'text', concat(
            p.data_json ->> 'text',
            (select string_agg(e.payload ->> 'text', '' order by e.seq)
             from session.event e
             where e.session_id = p.session_id and e.seq > p.folded_seq
               and e.type in ('model.delta', 'reasoning.delta')
               and e.payload ->> 'messageId' = p.message_id
               and coalesce((e.payload ->> 'partIndex')::int, 0) = p.index)))
        from mine, closed
        where p.session_id = mine.session_id and p.message_id = closed.id
          and p.data_json -> 'streaming' = 'true'
        "#,
        session_id as _,
        owner as _,
        epoch,
    )
    .execute(db)
    .await?;
    Ok(())
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
