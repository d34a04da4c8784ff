//! Firing by hand, and what was fired.

use std::time::Duration;

use chassis::Tenant;
use prost::Message as _;
use proto::{session::v1::SubmitTurnRequest, triggers::v1 as pb};
use serde_json::Value;
use tonic::{Request, Status};

use super::{Api, check, convert};
use crate::{
    error::{Error, Result, parse},
    fire::inactive,
    firing::{Drop, Occasion},
    ids::{FiringId, TriggerId},
    store,
    time::to_proto,
    trigger::Trigger,
};

pub async fn run(api: &Api, request: Request<pb::RunTriggerRequest>) -> Result<pb::Firing, Status> {
    let caller = chassis::caller(&request)?;
    let request = request.into_inner();
    let id: TriggerId = parse("trigger_id", &request.trigger_id)?;
    let delivery_id = format!("run_{}", check::request_id(&request.request_id)?);
    let payload = check::payload("payload_json", &request.payload_json)?;
    let trigger = of(api, &caller.tenant, id).await?;
    let occasion = Occasion {
        auth_subject: caller.subject,
        ..Occasion::now(api.fire.clock.now(), delivery_id, payload)
    };
    Ok(by_hand(api, &caller.tenant, &trigger, occasion).await?)
}

/// Fires what was fired before, with the same payload and by the trigger as it is now.
pub async fn redeliver(
    api: &Api,
    request: Request<pb::RedeliverFiringRequest>,
) -> Result<pb::Firing, Status> {
    let caller = chassis::caller(&request)?;
    let request = request.into_inner();
    let id: FiringId = parse("firing_id", &request.firing_id)?;
    let delivery_id = format!("again_{}", check::request_id(&request.request_id)?);
    let (firing, payload, envelope) = store::history::get(&api.db, &caller.tenant, id).await?;
    let trigger = of(api, &caller.tenant, firing.trigger_id).await?;
    let payload = match payload.as_str() {
        "" => Value::Null,
        json => serde_json::from_str(json).map_err(Error::Json)?,
    };
    let envelope = envelope
        .and_then(|bytes| SubmitTurnRequest::decode(bytes.as_slice()).ok())
        .and_then(|request| request.trigger)
        .unwrap_or_default();
    let occasion = Occasion {
        headers: envelope.headers,
        auth_subject: envelope.auth_subject,
        ..Occasion::now(api.fire.clock.now(), delivery_id, payload)
    };
    Ok(by_hand(api, &caller.tenant, &trigger, occasion).await?)
}

async fn of(api: &Api, tenant: &Tenant, id: TriggerId) -> Result<Trigger> {
    let found = store::triggers::find(&api.db, id).await?;
    let ours = found.filter(|trigger| trigger.tenant == *tenant);
    ours.ok_or_else(|| Error::TriggerNotFound(id.to_string()))
}

/// Fires now, once for each delivery id.
async fn by_hand(
    api: &Api,
    tenant: &Tenant,
    trigger: &Trigger,
    occasion: Occasion,
) -> Result<pb::Firing> {
    let find =
        async |delivery_id: &str| store::history::find(&api.db, trigger.id, delivery_id).await;
    let delivery_id = occasion.delivery_id.clone();
    let id = match find(&delivery_id).await? {
        Some(id) => id,
        None => {
            let (id, now) = (trigger.id, occasion.fired_at);
            if let Some(reason) = inactive(trigger, now) {
                return Err(Error::NotActive { id, status: reason.to_string() });
            }
            let receipt = api.fire.accept(trigger, occasion).await?;
            match receipt.drop {
                Some(Drop::Duplicate) => find(&delivery_id).await?.unwrap_or(receipt.id),
                Some(Drop::Throttled) => {
                    let limit = "max_per_minute".to_owned();
                    let retry_after = until(now.as_second(), 60);
                    return Err(Error::Throttled { id, limit, retry_after });
                }
                Some(Drop::Quota) => {
                    let limit = "daily_quota".to_owned();
                    let retry_after = until(now.as_second(), 86_400);
                    return Err(Error::Throttled { id, limit, retry_after });
                }
                _ => receipt.id,
            }
        }
    };
    Ok(convert::firing(store::history::get(&api.db, tenant, id).await?.0))
}

/// How long until the next whole `step` of seconds.
fn until(second: i64, step: i64) -> Duration {
    Duration::from_secs((step - second.rem_euclid(step)).unsigned_abs())
}

pub async fn list(
    api: &Api,
    request: Request<pb::ListFiringsRequest>,
) -> Result<pb::ListFiringsResponse, Status> {
    let tenant = chassis::caller(&request)?.tenant;
    let request = request.into_inner();
    let trigger_id = optional_trigger(&request.trigger_id)?;
    let limit = check::count("page_size", request.page_size, 50, 500)?;
    let before = match request.page_token.as_str() {
        "" => None,
        token => Some(token.parse().map_err(|_| Error::InvalidCursor)?),
    };
    let found = store::history::list(&api.db, &tenant, trigger_id, before, limit + 1);
    let mut found = found.await?;
    let more = found.len() as i64 > limit;
    found.truncate(limit as usize);
    let next_page_token = match found.last() {
        Some(last) if more => last.id.to_string(),
        _ => String::new(),
    };
    let firings = found.into_iter().map(convert::firing).collect();
    Ok(pb::ListFiringsResponse { firings, next_page_token })
}

pub async fn stats(
    api: &Api,
    request: Request<pb::GetTriggerStatsRequest>,
) -> Result<pb::GetTriggerStatsResponse, Status> {
    let tenant = chassis::caller(&request)?.tenant;
    let trigger_id = optional_trigger(&request.into_inner().trigger_id)?;
    let next_fire = match trigger_id {
        Some(id) => store::triggers::get(&api.db, &tenant, id).await?.next_fire,
        None => store::due::next_of(&api.db, &tenant).await?,
    };
    let stats = store::history::stats(&api.db, &tenant, trigger_id).await?;
    Ok(pb::GetTriggerStatsResponse {
        fired: stats.fired,
        dropped: stats.dropped,
        lateness_p50_ms: stats.lateness_p50_ms,
        lateness_p99_ms: stats.lateness_p99_ms,
        next_fire_time: next_fire.map(to_proto),
        pending: stats.pending,
    })
}

fn optional_trigger(text: &str) -> Result<Option<TriggerId>> {
    match text {
        "" => Ok(None),
        id => parse("trigger_id", id).map(Some),
    }
}
