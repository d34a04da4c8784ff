//! `request_wakeup` and `cancel_wakeup`: turns that an agent asks for itself. The triggers service
//! keeps them.

use chassis::Caller;
use proto::{
    tools::v1::Call,
    triggers::v1::{CancelWakeupRequest, RequestWakeupRequest, request_wakeup_request::When},
};
use serde::Deserialize;
use serde_json::json;
use tonic::{Code, Status};

use super::{Answer, Refusal, input, refused};
use crate::{
    host::{ANSWER, Host},
    time,
};

#[derive(Deserialize)]
struct Request {
    message: String,
    delay_seconds: Option<i64>,
    cron: Option<String>,
    at: Option<jiff::Timestamp>,
    #[serde(default)]
    time_zone: String,
}

#[derive(Deserialize)]
struct Cancel {
    wakeup_id: String,
}

pub async fn request(host: &Host, caller: &Caller, call: &Call) -> Answer {
    let Request { message, delay_seconds, cron, at, time_zone } = input(call)?;
    let when = match (delay_seconds, cron, at) {
        (Some(seconds), None, None) => When::DelayMs(seconds.saturating_mul(1_000)),
        (None, Some(cron), None) => When::Cron(cron),
        (None, None, Some(at)) => When::At(time::to_proto(at)),
        _ => {
            return Err(refused("schema", "give exactly one of delay_seconds, cron and at"));
        }
    };
    let request = RequestWakeupRequest {
        session_id: call.session_id.clone(),
        // A call is made once, and so is what it asks for.
        request_id: call.tool_call_id.clone(),
        when: Some(when),
        time_zone,
        message,
    };
    let (mut client, peer) = host.wakeups();
    let answer = client.request_wakeup(peer.request_within(ANSWER, caller, request)).await;
    let answer = answer.map_err(|status| refusal(&status))?.into_inner();
    let next = answer.next_fire_time.and_then(time::from_proto);
    Ok(json!({ "wakeup_id": answer.wakeup_id, "next_fire_time": next }))
}

pub async fn cancel(host: &Host, caller: &Caller, call: &Call) -> Answer {
    let Cancel { wakeup_id } = input(call)?;
    let request =
        CancelWakeupRequest { session_id: call.session_id.clone(), wakeup_id: wakeup_id.clone() };
    let (mut client, peer) = host.wakeups();
    let answer = client.cancel_wakeup(peer.request_within(ANSWER, caller, request)).await;
    let answer = answer.map_err(|status| refusal(&status))?.into_inner();
    match answer.cancelled {
        true => Ok(json!({ "wakeup_id": wakeup_id, "cancelled": true })),
        false => Err(refused("failed", format!("this session has no wake-up {wakeup_id}"))),
    }
}

/// What the model reads when the triggers service refuses.
fn refusal(status: &Status) -> Refusal {
    match status.code() {
        Code::InvalidArgument | Code::FailedPrecondition | Code::ResourceExhausted => {
            refused("failed", status.message())
        }
        _ => {
            tracing::warn!(%status, "the triggers service does not answer");
            refused("unavailable", "the triggers service does not answer, try again later")
        }
    }
}
