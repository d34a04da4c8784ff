use std::{collections::BTreeMap, mem};

use jiff::Timestamp;
use proto::event::v1::{Event, Payload, RareIds, SCHEMA_VERSION};
use serde::Deserialize;
use serde_json::value::RawValue;
use sqlx::{PgExecutor, types::Json};

use crate::{error::Result, ids::SessionId, time};

/// A read ends early when it has about this much, so that memory is bounded whatever the
/// events hold. At least one row is read.
pub const PAGE_BYTES: i64 = 4 * 1024 * 1024;

/// A row of the log, as functions return it.
#[derive(Debug, Clone, Deserialize)]
pub struct Row {
    session_id: SessionId,
    pub seq: i64,
    pub r#type: String,
    runtime_id: String,
    created_at: Timestamp,
    pub turn_id: Option<String>,
    pub step_id: Option<String>,
    pub tool_call_id: Option<String>,
    action_id: Option<String>,
    task_id: Option<String>,
    run_id: Option<String>,
    subagent_id: Option<String>,
    trace_id: Option<String>,
    span_id: Option<String>,
    ids: Option<RareIds>,
    pub refs: Option<BTreeMap<String, String>>,
    pub payload: Box<RawValue>,
}

impl Row {
    /// The event as readers get it, wherever it was read.
    pub fn into_event(self) -> Result<Event> {
        let payload = Payload::from_json(&self.r#type, self.payload.get())?;
        Ok(Event { payload, ..self.into_head() })
    }

    /// The event as it is exported and sealed: with its payload as it is stored, also
    /// where a newer server wrote what this one does not know.
    pub fn into_envelope(mut self) -> Result<Box<RawValue>> {
        let payload = mem::take(&mut self.payload);
        let mut envelope = self.into_head().to_json()?;
        // A head without a payload, which has fields before and a brace behind it.
        envelope.pop();
        envelope.push_str(r#","payload":"#);
        envelope.push_str(payload.get());
        envelope.push('}');
        Ok(RawValue::from_string(envelope)?)
    }

    /// The place of the first event that this one stands for.
    pub fn first(&self) -> i64 {
        let first = self.refs.as_ref().and_then(|refs| refs.get(FIRST));
        first.and_then(|first| first.parse().ok()).unwrap_or(self.seq)
    }

    /// The same event, saying something else.
    pub fn saying(&self, payload: Box<RawValue>, refs: BTreeMap<String, String>) -> Row {
        Row { payload, refs: Some(refs), ..self.clone() }
    }

    fn into_head(self) -> Event {
        let ids = self.ids.unwrap_or_default();
        Event {
            r#type: self.r#type,
            event_id: self.session_id.event(self.seq),
            schema_version: SCHEMA_VERSION.to_owned(),
            runtime_id: self.runtime_id,
            timestamp: Some(time::to_proto(self.created_at)),
            sequence: self.seq,
            session_id: self.session_id.to_string(),
            thread_id: self.session_id.thread().to_string(),
            turn_id: self.turn_id.unwrap_or_default(),
            step_id: self.step_id.unwrap_or_default(),
            tool_call_id: self.tool_call_id.unwrap_or_default(),
            action_id: self.action_id.unwrap_or_default(),
            task_id: self.task_id.unwrap_or_default(),
            run_id: self.run_id.unwrap_or_default(),
            subagent_id: self.subagent_id.unwrap_or_default(),
            trace_id: self.trace_id.unwrap_or_default(),
            span_id: self.span_id.unwrap_or_default(),
            job_id: ids.job_id,
            job_item_id: ids.job_item_id,
            process_id: ids.process_id,
            channel_id: ids.channel_id,
            output_ref: ids.output_ref,
            model_request_id: ids.model_request_id,
            request_id: ids.request_id,
            refs: self.refs.unwrap_or_default(),
            payload: None,
        }
    }
}

/// What a function of the database appended, to be published.
pub fn decode(rows: Vec<Row>) -> Result<Vec<Event>> {
    rows.into_iter().map(Row::into_event).collect()
}

/// The place of the first event that this one stands for.
pub fn first_of(event: &Event) -> i64 {
    let first = event.refs.get(FIRST).and_then(|first| first.parse().ok());
    first.unwrap_or(event.sequence)
}

/// Where an event that retention left of several says which was the first.
pub const FIRST: &str = "firstSequence";

/// The events after `after`, oldest first. The caller has checked whose session it is.
pub async fn after(
    db: impl PgExecutor<'_>,
    session_id: SessionId,
    after: i64,
    limit: i64,
) -> Result<Vec<Event>> {
    let rows = rows(db, session_id, after, i64::MAX, limit, PAGE_BYTES).await?;
    rows.into_iter().map(Row::into_event).collect()
}

/// The rows after `after` and up to `through`, oldest first.
pub async fn rows(
    db: impl PgExecutor<'_>,
    session_id: SessionId,
    after: i64,
    through: i64,
    limit: i64,
    bytes: i64,
) -> Result<Vec<Row>> {
    let rows = sqlx::query!(
        r#"
        select to_json(e) as "row!: Json<Row>"
        from (
            select e.*, sum(octet_length(e.payload::text) + 300)
                       over (order by e.seq rows between unbounded preceding and 1 preceding) as before
            from (
                select * from session.event
                where session_id = $1 and seq > $2 and seq <= $3
                order by seq
                limit $4
            ) e
        ) e
        where e.before is null or e.before < $5
        order by e.seq
        "#,
        session_id as _,
        after,
        through,
        limit,
        bytes,
    )
    .fetch_all(db)
    .await?;
    Ok(rows.into_iter().map(|row| row.row.0).collect())
}

/// The first event after `after`, when the log no longer holds all that came in between;
/// `last` is where the log ends.
pub async fn gap_after(
    db: impl PgExecutor<'_>,
    session_id: SessionId,
    after: i64,
    last: i64,
) -> Result<Option<i64>> {
    if after >= last {
        return Ok(None);
    }
    let next = sqlx::query!(
        r#"
        select seq, coalesce((refs ->> 'firstSequence')::bigint, seq) as "first!"
        from session.event
        where session_id = $1 and seq > $2
        order by seq
        limit 1
        "#,
        session_id as _,
        after,
    )
    .fetch_optional(db)
    .await?;
    Ok(match next {
        Some(next) if next.first == after + 1 => None,
        Some(next) => Some(next.seq),
        None => Some(last + 1),
    })
}

/// Shows Postgres that a transaction that waits is not forgotten.
pub async fn keep_awake(db: impl PgExecutor<'_>) -> Result<()> {
    sqlx::query_scalar!("select 1").fetch_one(db).await?;
    Ok(())
}
