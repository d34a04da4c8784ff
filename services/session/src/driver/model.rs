//! The way from a model's stream to the machine's inputs.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use chassis::Caller;
use futures::StreamExt as _;
use proto::{
    error::v1::Reason,
    models::v1::{GenerateRequest, GenerateResponse, generate_response::Item},
};
use tokio::time::timeout;
use tonic::{Status, Streaming};
use tonic_types::StatusExt as _;

use super::{Inputs, calls::storable};
use crate::{
    host::Host,
    ids::ToolCallId,
    message::without_nul,
    offer::Offer,
    passing::is_passing,
    turn::{Failure, Finished, Input},
};

/// How much of what has arrived is looked at together.
const AT_ONCE: usize = 32;

/// Calls the model and tells `inputs` what it says; always ends in `Finished` or `Failed`.
pub async fn generate(
    host: Arc<Host>,
    caller: Caller,
    request: GenerateRequest,
    offer: Arc<Offer>,
    inputs: Inputs,
) {
    let silence = host.config.model_silence;
    let (mut client, peer) = host.models();
    let answer = timeout(silence, client.generate(peer.request(&caller, request)));
    let end = match answer.await {
        Ok(Ok(response)) => listen(response.into_inner(), silence, &offer.read_only, &inputs).await,
        Ok(Err(status)) => vec![Input::Failed(failure(&status))],
        Err(_) => vec![Input::Failed(silent(silence))],
    };
    let _ = inputs.send(end).await;
}

/// Tells what is there at once, words that follow each other as one. Returns the end.
async fn listen(
    stream: Streaming<GenerateResponse>,
    silence: Duration,
    read_only: &HashSet<String>,
    inputs: &Inputs,
) -> Vec<Input> {
    let mut stream = stream.ready_chunks(AT_ONCE);
    let mut calls = HashMap::new();
    loop {
        let responses = match timeout(silence, stream.next()).await {
            Ok(Some(responses)) => responses,
            Ok(None) => {
                return vec![Input::Failed(Failure {
                    kind: "cut".into(),
                    message: "the model's answer broke off".into(),
                    transient: true,
                    retry_after: None,
                })];
            }
            Err(_) => return vec![Input::Failed(silent(silence))],
        };
        let mut said = Vec::new();
        for response in responses {
            let next = match response {
                Ok(GenerateResponse { item }) => {
                    item.and_then(|item| input(item, read_only, &mut calls))
                }
                Err(status) => Some(Input::Failed(failure(&status))),
            };
            let Some(next) = next else { continue };
            let ends = matches!(next, Input::Finished(_) | Input::Failed(_));
            let more = merge(said.last_mut(), next);
            said.extend(more);
            if ends {
                chassis::hear_out(stream);
                return said;
            }
        }
        if !said.is_empty() && inputs.send(said).await.is_err() {
            return vec![];
        }
    }
}

/// What an item means to the machine, if anything.
fn input(
    item: Item,
    read_only: &HashSet<String>,
    calls: &mut HashMap<i32, ToolCallId>,
) -> Option<Input> {
    Some(match item {
        Item::Fact(fact) => Input::Fact(storable(*fact)),
        Item::Text(delta) => Input::Text(without_nul(delta.text)),
        Item::Reasoning(delta) => Input::Reasoning {
            text: without_nul(delta.text),
            signature: without_nul(delta.signature),
        },
        Item::ToolCallStarted(started) => {
            let id = ToolCallId::new();
            calls.insert(started.index, id);
            let read_only = read_only.contains(&started.tool);
            Input::CallStarted { id, tool: without_nul(started.tool), read_only }
        }
        Item::ToolCallCompleted(completed) => Input::CallCompleted {
            id: *calls.get(&completed.index)?,
            input_json: without_nul(completed.input_json),
        },
        Item::Finished(finished) => Input::Finished(Finished {
            finish_reason: finished.finish_reason,
            usage: finished.usage.unwrap_or_default(),
            cost_micros: finished.cost_micros,
            provider: finished.provider,
            model: finished.model,
        }),
        // The input is taken when it is complete.
        Item::ToolCallDelta(_) => return None,
    })
}

/// Adds words to those before them; returns what is something else.
fn merge(said: Option<&mut Input>, next: Input) -> Option<Input> {
    match (said, next) {
        (Some(Input::Text(text)), Input::Text(more)) => text.push_str(&more),
        // A signature closes the reasoning before it.
        (
            Some(Input::Reasoning { text, signature }),
            Input::Reasoning { text: more, signature: seal },
        ) if signature.is_empty() => {
            text.push_str(&more);
            *signature = seal;
        }
        (_, next) => return Some(next),
    }
    None
}

fn silent(silence: Duration) -> Failure {
    Failure {
        kind: "transient".into(),
        message: format!("the model said nothing for {} s", silence.as_secs()),
        transient: true,
        retry_after: None,
    }
}

/// What an error of the models service means for the turn.
fn failure(status: &Status) -> Failure {
    let details = status.get_error_details();
    let reason = details.error_info().and_then(|info| Reason::from_str_name(&info.reason));
    let (kind, transient) = match reason {
        Some(Reason::ProviderTransient) => ("transient", true),
        Some(Reason::RateLimited) => ("rate_limit", true),
        Some(Reason::ProviderStreamCut) => ("cut", true),
        Some(Reason::ContextOverflow) => ("context_overflow", false),
        Some(Reason::ProviderAuth) => ("auth", false),
        Some(Reason::ContentRefused) => ("refused", false),
        Some(Reason::BudgetExceeded | Reason::QuotaBlocked) => ("budget", false),
        _ if is_passing(status) => ("unavailable", true),
        Some(_) => ("invalid", false),
        None => ("unavailable", false),
    };
    let retry_after = details.retry_info().and_then(|info| info.retry_delay);
    let (kind, message) = (kind.to_owned(), without_nul(status.message().to_owned()));
    Failure { kind, message, transient, retry_after }
}
