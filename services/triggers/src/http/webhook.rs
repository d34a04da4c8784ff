use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Path, State},
    http::HeaderMap,
};
use jiff::Timestamp;
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};
use tracing::debug;

use super::{
    Http,
    answer::{Answer, Refusal},
    body,
    known::{Proof, Receiver},
};
use crate::{
    firing::{Drop, Occasion},
    template::Expression,
    webhook::{Provider, delivery, headers::safe, signature},
};

/// What nobody's requests are compared with, so that they take as long as anybody's.
const NOBODY: &str = "nobody has this secret";

pub async fn receive(
    State(http): State<Arc<Http>>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Answer {
    respond(&http, &id, &headers, body).await.unwrap_or_else(Answer::Refused)
}

async fn respond(
    http: &Http,
    id: &str,
    headers: &HeaderMap,
    body: Body,
) -> Result<Answer, Refusal> {
    let (receiver, owner, _place) = http.door.enter(id).await?;
    let held = body::read(headers, body, http.max_bytes, &http.bodies, &owner).await?;
    let body = held.bytes.as_slice();
    let (receiver, provider, filter) = believe(receiver.as_deref(), headers, body)?;
    let payload = body::payload(provider, headers, body)?;
    if let Some(challenge) = challenge(provider, &payload) {
        return Ok(Answer::Challenge(challenge));
    }
    let id = delivery::id(provider, headers, body, &payload);
    let mut occasion = Occasion::now(http.fire.clock.now(), id, payload);
    occasion.headers = safe(headers);
    if !counts(filter, &occasion) {
        occasion.drop = Some(Drop::Filtered);
    }
    Ok(http.accept(receiver, occasion).await)
}

/// Whether it was sent by somebody who has a secret of this trigger.
fn believe<'a>(
    receiver: Option<&'a Receiver>,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<(&'a Receiver, &'a Provider, Option<&'a Expression>), Refusal> {
    // Signatures go by real time, whatever schedules go by.
    let now = Timestamp::now();
    let Some((receiver, Proof::Webhook { provider, filter, secrets })) =
        receiver.map(|receiver| (receiver, &receiver.proof))
    else {
        std::hint::black_box(signature::mac(NOBODY.as_bytes(), &[body]));
        return Err(Refusal::NotFound);
    };
    let live: Vec<&str> = secrets
        .iter()
        .filter(|secret| secret.is_live(now))
        .map(|secret| secret.value.expose_secret())
        .collect();
    match signature::verify(provider, &live, headers, body, now.as_second()) {
        Ok(()) => Ok((receiver, provider, filter.as_ref())),
        Err(refused) => {
            let id = receiver.trigger.id;
            debug!(trigger.id = %id, "a request for trigger {id} was refused: {refused}");
            Err(Refusal::Unbelieved)
        }
    }
}

/// What Slack wants to hear back when somebody gives it our URL.
fn challenge(provider: &Provider, payload: &Value) -> Option<String> {
    let asked = *provider == Provider::Slack && payload["type"] == "url_verification";
    asked.then(|| payload["challenge"].as_str().map(str::to_owned)).flatten()
}

/// Whether a delivery is one that the trigger is about.
fn counts(filter: Option<&Expression>, occasion: &Occasion) -> bool {
    let Some(filter) = filter else { return true };
    let scope = json!({ "payload": occasion.payload, "headers": occasion.headers });
    filter.holds(&scope).unwrap_or(false)
}
