//! The way from a tool's evaluation and execution to the machine's inputs.

use std::sync::Arc;

use chassis::Caller;
use proto::{
    event::v1::{Event, Payload, ToolMetadata},
    tools::v1::{
        Call, EvaluateRequest, ExecuteRequest, ExecuteResponse, Outcome as Ended,
        execute_response::Item, outcome::Result as Ending,
    },
};
use serde_json::Value;
use tonic::{Status, Streaming};

use super::{Inputs, own, people::Ask};
use crate::{
    host::Host,
    ids::ToolCallId,
    message::without_nul,
    turn::{Decision, Input, Outcome},
};

/// Asks whether a call may run; always ends in `Evaluated`.
pub async fn evaluate(
    host: Arc<Host>,
    caller: Caller,
    id: ToolCallId,
    call: Call,
    ask: Ask,
    inputs: Inputs,
) {
    let input_json = call.input_json.clone();
    let tool = call.tool.clone();
    let (mut client, peer) = host.tools();
    let request = EvaluateRequest { call: Some(call) };
    let patience = host.patience(&caller).await;
    let input = match client.evaluate(peer.request_within(patience, &caller, request)).await {
        Ok(response) => {
            let response = response.into_inner();
            let evaluation = response.evaluation.unwrap_or_default();
            let input_json = without_nul(response.input_json);
            Input::Evaluated {
                id,
                decision: ask.decide(&tool, &input_json, evaluation),
                facts: response.facts.into_iter().map(storable).collect(),
                input_json,
            }
        }
        Err(status) => {
            let reason = format!("the tool could not be checked: {}", status.message());
            let decision = Decision::Unavailable { reason };
            Input::Evaluated { id, decision, facts: vec![], input_json }
        }
    };
    let _ = inputs.send(vec![input]).await;
}

/// Runs a call and tells `inputs` about it; always ends in `ToolEnded`.
pub async fn execute(
    host: Arc<Host>,
    caller: Caller,
    id: ToolCallId,
    call: Call,
    approved: bool,
    inputs: Inputs,
) {
    if own::hosts(&host, &caller, &call.tool).await {
        let outcome = own::execute(&host, &caller, &call).await;
        let _ = inputs.send(vec![Input::ToolEnded { id, outcome }]).await;
        return;
    }
    let (mut client, peer) = host.tools();
    let request = ExecuteRequest { call: Some(call), approved, ..ExecuteRequest::default() };
    let outcome = match client.execute(peer.request(&caller, request)).await {
        Ok(response) => listen(response.into_inner(), id, &inputs).await,
        Err(status) => broken("the tool did not start", &status),
    };
    let _ = inputs.send(vec![Input::ToolEnded { id, outcome }]).await;
}

async fn listen(
    mut stream: Streaming<ExecuteResponse>,
    id: ToolCallId,
    inputs: &Inputs,
) -> Outcome {
    loop {
        let item = match stream.message().await {
            Ok(Some(response)) => response.item,
            Ok(None) => return broken(MAYBE, &Status::unavailable("the stream ended")),
            Err(status) => return broken(MAYBE, &status),
        };
        match item {
            Some(Item::Fact(fact)) => {
                let fact = Input::ToolFact { id, fact: storable(*fact) };
                let _ = inputs.send(vec![fact]).await;
            }
            Some(Item::Outcome(ended)) => {
                chassis::hear_out(stream);
                return outcome(ended);
            }
            None => {}
        }
    }
}

const MAYBE: &str = "the tool's host failed while it ran; it may have had effects";

fn outcome(ended: Ended) -> Outcome {
    let metadata = ended.metadata.unwrap_or_default();
    match ended.result {
        Some(Ending::DataJson(data_json)) => {
            Outcome::Result { data_json: without_nul(data_json), metadata }
        }
        Some(Ending::ErrorText(text)) => {
            Outcome::Error { text: without_nul(text), kind: ended.error_kind, metadata }
        }
        None => Outcome::Result { data_json: "null".into(), metadata },
    }
}

fn broken(what: &str, status: &Status) -> Outcome {
    Outcome::Error {
        text: without_nul(format!("{what}: {}", status.message())),
        kind: "unavailable".into(),
        metadata: ToolMetadata::default(),
    }
}

/// A fact as Postgres can store it: text without NUL, wherever in it that is.
pub fn storable(mut fact: Event) -> Event {
    let Some(payload) = &fact.payload else { return fact };
    let Ok(json) = payload.to_json() else { return fact };
    if json.contains("\\u0000")
        && let Ok(mut value) = serde_json::from_str::<Value>(&json)
    {
        clean(&mut value);
        fact.payload = Payload::from_json(&fact.r#type, &value.to_string()).ok().flatten();
    }
    fact
}

fn clean(value: &mut Value) {
    match value {
        Value::String(text) => *text = without_nul(std::mem::take(text)),
        Value::Array(values) => values.iter_mut().for_each(clean),
        Value::Object(fields) => fields.values_mut().for_each(clean),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
