use std::collections::BTreeMap;

use jiff::Timestamp;
use proto::event::v1::{Event, Payload, RareIds, SCHEMA_VERSION};
use serde::Deserialize;
use serde_json::value::RawValue;
use sqlx::{PgExecutor, types::Json};

use crate::{error::Result, ids::SessionId, time};

/// A row of the log, as functions return it.
#[derive(Debug, Deserialize)]
pub struct Row {
    session_id: SessionId,
    seq: i64,
    r#type: String,
    runtime_id: String,
    created_at: Timestamp,
    turn_id: Option<String>,
    step_id: Option<String>,
    tool_call_id: Option<String>,
    action_id: Option<String>,
    task_id: Option<String>,
    run_id: Option<String>,
    subagent_id: Option<String>,
    trace_id: Option<String>,
    span_id: Option<String>,
    ids: Option<RareIds>,
    refs: Option<BTreeMap<String, String>>,
    payload: Box<RawValue>,
}

impl Row {
    /// The event as readers get it, wherever it was read.
    pub fn into_event(self) -> Result<Event> {
        let payload = Payload::from_json(&self.r#type, self.payload.get())?;
        let ids = self.ids.unwrap_or_default();
        Ok(Event {
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
            payload,
        })
    }
}

/// The events after `after`, oldest first. The caller has checked whose session it is.
pub async fn after(
    db: impl PgExecutor<'_>,
    session_id: SessionId,
    after: i64,
    limit: i64,
) -> Result<Vec<Event>> {
    let rows = sqlx::query!(
        r#"
        select to_jsonb(e) as "row!: Json<Row>"
        from session.event e
        where session_id = $1 and seq > $2
        order by seq
        limit $3
        "#,
        session_id as _,
        after,
        limit,
    )
    .fetch_all(db)
    .await?;
    rows.into_iter().map(|row| row.row.0.into_event()).collect()
}
