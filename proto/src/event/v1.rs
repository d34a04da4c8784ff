tonic::include_proto!("windlass.event.v1");
include!(concat!(env!("OUT_DIR"), "/windlass.event.v1.serde.rs"));
include!(concat!(env!("OUT_DIR"), "/payloads.rs"));

use std::{collections::BTreeMap, ops::AddAssign};

use pbjson_types::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

pub use event::Payload;

/// The version of the JSON form below.
pub const SCHEMA_VERSION: &str = "1";

impl Event {
    /// The flat JSON object of an exported event.
    ///
    /// Written by hand because protobuf's own JSON form cannot be it: the payload stands
    /// under one name whatever its type, and `sequence` is a number.
    pub fn to_json(&self) -> serde_json::Result<String> {
        let payload = self.payload.as_ref().map(Payload::to_json).transpose()?;
        serde_json::to_string(&Envelope {
            name: &self.r#type,
            event_id: &self.event_id,
            schema_version: &self.schema_version,
            runtime_id: &self.runtime_id,
            timestamp: self.timestamp,
            sequence: self.sequence,
            session_id: &self.session_id,
            thread_id: &self.thread_id,
            turn_id: &self.turn_id,
            step_id: &self.step_id,
            tool_call_id: &self.tool_call_id,
            action_id: &self.action_id,
            task_id: &self.task_id,
            run_id: &self.run_id,
            subagent_id: &self.subagent_id,
            trace_id: &self.trace_id,
            span_id: &self.span_id,
            job_id: &self.job_id,
            job_item_id: &self.job_item_id,
            process_id: &self.process_id,
            channel_id: &self.channel_id,
            output_ref: &self.output_ref,
            model_request_id: &self.model_request_id,
            request_id: &self.request_id,
            payload: payload.map(RawValue::from_string).transpose()?,
            refs: &self.refs,
        })
    }

    /// An event that only says what happened; whoever keeps the log fills in the rest.
    pub fn fact(payload: Payload) -> Event {
        Event { r#type: payload.name().to_owned(), payload: Some(payload), ..Event::default() }
    }
}

/// Counts come from providers, who may say anything: a sum stops at the largest number.
impl AddAssign for Usage {
    fn add_assign(&mut self, more: Usage) {
        self.input = self.input.saturating_add(more.input);
        self.output = self.output.saturating_add(more.output);
        self.reasoning = self.reasoning.saturating_add(more.reasoning);
        self.cache_read = self.cache_read.saturating_add(more.cache_read);
        self.cache_write = self.cache_write.saturating_add(more.cache_write);
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Envelope<'a> {
    #[serde(rename = "type")]
    name: &'a str,
    event_id: &'a str,
    schema_version: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    runtime_id: &'a str,
    timestamp: Option<Timestamp>,
    sequence: i64,
    #[serde(skip_serializing_if = "str::is_empty")]
    session_id: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    thread_id: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    turn_id: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    step_id: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    tool_call_id: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    action_id: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    task_id: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    run_id: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    subagent_id: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    trace_id: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    span_id: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    job_id: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    job_item_id: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    process_id: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    channel_id: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    output_ref: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    model_request_id: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    request_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    refs: &'a BTreeMap<String, String>,
}

/// The ids of an event that are rare enough to share one column in the log.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RareIds {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub job_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub job_item_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub process_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub channel_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub output_ref: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub model_request_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub request_id: String,
}
