//! Hooks of what happens to a turn and not to a call.

use chassis::Tenant;
use proto::tools::v1 as pb;
use serde_json::{Map, json};
use sqlx::PgPool;

use super::{LONGEST_ID, epoch, invalid, parse};
use crate::{
    call::SessionId,
    decide::LARGEST_INPUT,
    error::{Error, Result},
    execute::Executor,
    hook::Event,
    hooks::{Occasion, Place, Record},
    store,
};

/// What happened to a turn.
pub struct Happened {
    event: Event,
    place: Place,
    epoch: i64,
    text: String,
}

pub fn decode(tenant: Tenant, request: pb::RunHooksRequest) -> Result<Happened> {
    let event = Event::parse(&request.event).filter(|event| !event.is_about_a_tool());
    if request.turn_id.len() > LONGEST_ID {
        return Err(invalid("turn_id", "is longer than 100 characters"));
    }
    if request.text.len() > LARGEST_INPUT {
        return Err(invalid("text", "is larger than 1 MiB"));
    }
    Ok(Happened {
        event: event.ok_or_else(|| invalid("event", "is no event of a turn"))?,
        place: Place {
            tenant,
            session_id: parse("session_id", &request.session_id)?,
            turn_id: request.turn_id,
            workspace_id: parse("workspace_id", &request.workspace_id)?,
            step_id: String::new(),
            tool_call_id: String::new(),
            tool: String::new(),
            repeats: u32::try_from(request.stops).map_err(|_| invalid("stops", "is negative"))?,
        },
        epoch: epoch("epoch", request.epoch)?,
        text: request.text,
    })
}

pub async fn run(
    db: &PgPool,
    executor: &Executor,
    happened: Happened,
) -> Result<pb::RunHooksResponse> {
    let Happened { event, place, epoch, text } = happened;
    let policy = executor.policies.of(&place.tenant, place.workspace_id).await?;
    if policy.asked(event, "").next().is_none() {
        return Ok(pb::RunHooksResponse::default());
    }
    check_epoch(db, &place.tenant, place.session_id, epoch).await?;
    let details = match event {
        Event::UserPromptSubmit => Map::from_iter([("prompt".to_owned(), json!(text))]),
        Event::Stop => Map::from_iter([
            ("message".to_owned(), json!(text)),
            ("stops".to_owned(), json!(place.repeats)),
        ]),
        _ => Map::new(),
    };
    let occasion = Occasion { event, place: &place, policy: &policy, details };
    let mut record = Record::Kept(vec![]);
    let verdict = executor.hooks.all(&occasion, &mut record).await;
    Ok(pb::RunHooksResponse {
        facts: match record {
            Record::Kept(facts) => facts,
            Record::Told(_) => vec![],
        },
        blocked: verdict.block.is_some(),
        reason: verdict.block.unwrap_or_default(),
        context: verdict.context,
    })
}

/// An owner that lost its session asks nobody any more.
async fn check_epoch(
    db: &PgPool,
    tenant: &Tenant,
    session_id: SessionId,
    epoch: i64,
) -> Result<()> {
    match store::epoch(db, tenant, session_id).await? {
        current_epoch if current_epoch > epoch => {
            Err(Error::EpochStale { session_id, epoch, current_epoch })
        }
        _ => Ok(()),
    }
}
