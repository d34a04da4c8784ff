use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Path, State},
    http::{HeaderMap, header::AUTHORIZATION},
};
use jiff::Timestamp;
use serde_json::Value;
use uuid::Uuid;

use super::{
    Http,
    answer::{Answer, Refusal},
    body,
    known::{Proof, Receiver},
};
use crate::{
    firing::Occasion,
    secret,
    webhook::{delivery, headers::safe, signature::one},
};

const IDEMPOTENCY_KEY: &str = "idempotency-key";

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
    let receiver = believe(receiver.as_deref(), headers)?;
    let held = body::read(headers, body, http.max_bytes, &http.bodies, &owner).await?;
    let body = held.bytes.as_slice();
    let id = match headers.contains_key(IDEMPOTENCY_KEY) {
        true => one(headers, IDEMPOTENCY_KEY)
            .ok()
            .and_then(delivery::given)
            .ok_or(Refusal::Malformed("idempotency-key is not 1 to 200 printable characters"))?,
        false => Uuid::now_v7().to_string(),
    };
    let payload = match body.is_empty() {
        true => Value::Null,
        false => {
            serde_json::from_slice(body).map_err(|_| Refusal::Malformed("the body is not JSON"))?
        }
    };
    let mut occasion = Occasion::now(http.fire.clock.now(), id, payload);
    occasion.headers = safe(headers);
    Ok(http.accept(receiver, occasion).await)
}

/// Whether whoever asks has a credential of this trigger. Takes as long for one that does not exist.
fn believe<'a>(
    receiver: Option<&'a Receiver>,
    headers: &HeaderMap,
) -> Result<&'a Receiver, Refusal> {
    let now = Timestamp::now();
    let credential = one(headers, AUTHORIZATION.as_str()).ok().and_then(bearer).unwrap_or_default();
    let Some((receiver, Proof::Api { hashes })) =
        receiver.map(|receiver| (receiver, &receiver.proof))
    else {
        std::hint::black_box(secret::is_one_of(credential, &[[0; 32]]));
        return Err(Refusal::NotFound);
    };
    let live: Vec<[u8; 32]> =
        hashes.iter().filter(|hash| hash.is_live(now)).map(|hash| hash.value).collect();
    match secret::is_one_of(credential, &live) {
        true => Ok(receiver),
        false => Err(Refusal::Unbelieved),
    }
}

fn bearer(header: &str) -> Option<&str> {
    let (scheme, credential) = header.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| credential.trim())
}
