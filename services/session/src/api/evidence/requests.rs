//! The rows of the request log that belong to what a pack is about.

use std::time::Duration;

use chassis::Caller;
use proto::models::v1::{ListModelRequestsRequest, ListModelRequestsResponse, ModelRequest};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tonic::Status;

use super::{Subject, pack::Pack};
use crate::{
    error::Result,
    evidence::{Signal, State, Tally},
    host::{ANSWER, Host},
    time,
};

const SIGNAL: &str = "model_requests";
const PAGE: i32 = 500;

/// Rows are written in groups, so that one may come a moment after the turn it belongs to ended.
const PATIENCE: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_millis(100);

pub async fn write(
    host: &Host,
    caller: &Caller,
    subject: &Subject,
    pack: &mut Pack,
    tally: &Tally,
) -> Result<Signal> {
    match rows(host, caller, subject, pack, tally).await? {
        Ok(signal) => Ok(signal),
        Err(status) => {
            let reason = format!("the models service does not answer: {}", status.message());
            Ok(Signal::new(SIGNAL, State::MissingCorrelation, 0, reason))
        }
    }
}

async fn rows(
    host: &Host,
    caller: &Caller,
    subject: &Subject,
    pack: &mut Pack,
    tally: &Tally,
) -> Result<Result<Signal, Status>> {
    let mut charged = tally.charged_requests().clone();
    let (mut count, mut running) = (0, 0);
    for selection in &subject.selections {
        let session_id = selection.session_id.to_string();
        let turns: Vec<_> = match selection.whole {
            true => vec![String::new()],
            false => selection.turns.iter().map(ToString::to_string).collect(),
        };
        for turn_id in turns {
            let mut request = ListModelRequestsRequest {
                session_id: session_id.clone(),
                turn_id,
                page_size: PAGE,
                ..ListModelRequestsRequest::default()
            };
            if subject.scope.kind == "turn" {
                settle(host, caller, &request, tally).await;
            }
            loop {
                let page = match list(host, caller, &request).await {
                    Ok(page) => page,
                    Err(status) => return Ok(Err(status)),
                };
                for row in page.model_requests {
                    count += 1;
                    running += u64::from(row.status == "running");
                    charged.remove(&row.model_request_id);
                    let line = json!({
                        "request": shown(&row),
                        // Where the log first speaks of it.
                        "sequence": tally.requests.get(&row.model_request_id),
                    });
                    pack.line(None, SIGNAL, &line).await?;
                }
                request.page_token = page.next_page_token;
                if request.page_token.is_empty() {
                    break;
                }
            }
        }
    }
    let missing = charged.len() as u64;
    let signal = Signal::of(SIGNAL, count, "no provider was asked")
        .unless_missing(running, "requests were still running")
        .unless_missing(
            missing,
            "requests that the log tells the cost of are not in the request log",
        );
    Ok(Ok(signal))
}

/// Waits until the rows of a turn are there and closed, but not for ever.
async fn settle(host: &Host, caller: &Caller, request: &ListModelRequestsRequest, tally: &Tally) {
    let started = Instant::now();
    while started.elapsed() < PATIENCE {
        let Ok(page) = list(host, caller, request).await else { return };
        let rows = &page.model_requests;
        let there = |id: &String| rows.iter().any(|row| row.model_request_id == *id);
        let many = !page.next_page_token.is_empty();
        if many
            || tally.charged_requests().iter().all(there)
                && rows.iter().all(|row| row.status != "running")
        {
            return;
        }
        sleep(AGAIN).await;
    }
}

async fn list(
    host: &Host,
    caller: &Caller,
    request: &ListModelRequestsRequest,
) -> Result<ListModelRequestsResponse, Status> {
    let (mut client, peer) = host.ledger();
    let request = peer.request_within(ANSWER, caller, request.clone());
    Ok(client.list_model_requests(request).await?.into_inner())
}

fn shown(row: &ModelRequest) -> Value {
    let started = row.start_time.and_then(time::from_proto);
    json!({
        "modelRequestId": row.model_request_id, "sessionId": row.session_id, "turnId": row.turn_id,
        "stepId": row.step_id, "provider": row.provider, "model": row.model, "status": row.status,
        "errorKind": row.error_kind, "usage": row.usage, "costMicros": row.cost_micros.to_string(),
        "startTime": started, "firstTokenMs": row.first_token_ms, "durationMs": row.duration_ms,
    })
}
