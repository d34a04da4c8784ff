//! The way from a tool's evaluation and execution to the machine's inputs.

use std::sync::Arc;

use chassis::Caller;
use proto::{
    error::v1::Reason,
    event::v1::{Event, Payload, ToolMetadata},
    tools::v1::{
        Call, EvaluateRequest, ExecuteRequest, ExecuteResponse, Outcome as Ended,
        execute_response::Item, outcome::Result as Ending,
    },
};
use serde_json::Value;
use tonic::{Status, Streaming};
use tonic_types::StatusExt as _;

use super::{Inputs, own, people::Ask};
use crate::{
    host::Host,
    ids::ToolCallId,
    message::without_nul,
    passing::Asked,
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
    let request = EvaluateRequest { call: Some(call) };
    let patience = host.patience(&caller).await;
    let mut asked = Asked::new(&host);
    let answer = loop {
        let (mut client, peer) = host.tools();
        let request = peer.request_within(patience, &caller, request.clone());
        let answer = client.evaluate(request).await;
        if !asked.is_worth_another(&answer).await {
            break answer;
        }
    };
    let input = match answer {
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
    let request = ExecuteRequest { call: Some(call), approved, ..ExecuteRequest::default() };
    // The fence keeps a call from running twice, so one whose answer was lost may be repeated.
    let mut asked = Asked::new(&host);
    let answer = loop {
        let (mut client, peer) = host.tools();
        let answer = client.execute(peer.request(&caller, request.clone())).await;
        if !asked.is_worth_another(&answer).await {
            break answer;
        }
    };
    let outcome = match answer {
        Ok(response) => listen(response.into_inner(), id, &inputs).await,
        Err(status) if was_repeated(&status) => broken(MAYBE, &status),
        Err(status) => broken("the tool did not start", &status),
    };
    let _ = inputs.send(vec![Input::ToolEnded { id, outcome }]).await;
}

/// Whether the tools service has seen this call before: it was taken, and its answer was lost.
fn was_repeated(status: &Status) -> bool {
    let details = status.get_error_details();
    details.error_info().is_some_and(|info| info.reason == Reason::CallRepeated.as_str_name())
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
