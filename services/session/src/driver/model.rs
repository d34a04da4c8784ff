//! The way from a model's stream to the machine's inputs.

use std::{
    collections::{HashMap, HashSet},
    error::Error as _,
    sync::Arc,
    time::Duration,
};

use chassis::Caller;
use proto::{
    error::v1::Reason,
    models::v1::{GenerateRequest, GenerateResponse, generate_response::Item},
};
use tokio::{sync::mpsc, time::timeout};
use tonic::{Code, Status, Streaming};
use tonic_types::StatusExt as _;

use crate::{
    driver::calls::storable,
    host::Host,
    ids::ToolCallId,
    message::without_nul,
    turn::{Failure, Finished, Input},
};

/// Calls the model and tells `inputs` what it says; always ends in `Finished` or `Failed`.
pub async fn generate(
    host: Arc<Host>,
    caller: Caller,
    request: GenerateRequest,
    read_only: HashSet<String>,
    inputs: mpsc::Sender<Input>,
) {
    let silence = Duration::from_secs_f64(host.config.model_silence);
    let (mut client, peer) = host.models();
    let answer = timeout(silence, client.generate(peer.request(&caller, request)));
    let end = match answer.await {
        Ok(Ok(response)) => listen(response.into_inner(), silence, &read_only, &inputs).await,
        Ok(Err(status)) => Input::Failed(failure(&status)),
        Err(_) => Input::Failed(silent(silence)),
    };
    let _ = inputs.send(end).await;
}

async fn listen(
    mut stream: Streaming<GenerateResponse>,
    silence: Duration,
    read_only: &HashSet<String>,
    inputs: &mpsc::Sender<Input>,
) -> Input {
    let mut calls = HashMap::new();
    loop {
        let item = match timeout(silence, stream.message()).await {
            Ok(Ok(Some(response))) => response.item,
            Ok(Ok(None)) => {
                return Input::Failed(Failure {
                    kind: "cut".into(),
                    message: "the model's answer broke off".into(),
                    transient: true,
                    retry_after: None,
                });
            }
            Ok(Err(status)) => return Input::Failed(failure(&status)),
            Err(_) => return Input::Failed(silent(silence)),
        };
        let input = match item {
            Some(Item::Fact(fact)) => Input::Fact(storable(*fact)),
            Some(Item::Text(delta)) => Input::Text(without_nul(delta.text)),
            Some(Item::Reasoning(delta)) => Input::Reasoning {
                text: without_nul(delta.text),
                signature: without_nul(delta.signature),
            },
            Some(Item::ToolCallStarted(started)) => {
                let id = ToolCallId::new();
                calls.insert(started.index, id);
                let read_only = read_only.contains(&started.tool);
                Input::CallStarted { id, tool: without_nul(started.tool), read_only }
            }
            Some(Item::ToolCallCompleted(completed)) => match calls.get(&completed.index) {
                Some(id) => {
                    Input::CallCompleted { id: *id, input_json: without_nul(completed.input_json) }
                }
                None => continue,
            },
            Some(Item::Finished(finished)) => {
                return Input::Finished(Finished {
                    finish_reason: finished.finish_reason,
                    usage: finished.usage.unwrap_or_default(),
                    cost_micros: finished.cost_micros,
                    provider: finished.provider,
                    model: finished.model,
                });
            }
            // The input is taken when it is complete.
            Some(Item::ToolCallDelta(_)) | None => continue,
        };
        if inputs.send(input).await.is_err() {
            return Input::Rested;
        }
    }
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
        Some(
            Reason::DependencyUnavailable
            | Reason::Stopping
            | Reason::Overloaded
            | Reason::DeadlineExceeded,
        ) => ("unavailable", true),
        Some(_) => ("invalid", false),
        // A broken connection to the models service has no reason of ours. What the transport
        // says has a source and any code; a server that goes away in peace is INTERNAL.
        None => (
            "unavailable",
            status.source().is_some()
                || matches!(status.code(), Code::Unavailable | Code::Unknown | Code::Cancelled),
        ),
    };
    let retry_after = details.retry_info().and_then(|info| info.retry_delay);
    let (kind, message) = (kind.to_owned(), without_nul(status.message().to_owned()));
    Failure { kind, message, transient, retry_after }
}
