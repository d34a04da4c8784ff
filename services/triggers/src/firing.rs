//! One occasion on which a trigger fires, and what becomes of it. No I/O.

use std::collections::BTreeMap;

use chassis::Tenant;
use jiff::Timestamp;
use prost::Message as _;
use proto::session::v1::{InputPart, SubmitTurnRequest, Trigger as Envelope, input_part::Content};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    ids::{FiringId, TriggerId},
    schedule::Overlap,
    template, time,
    trigger::{Kind, Source, TargetSession, Trigger},
    words::words,
};

words! {
    /// Why a firing became no turn.
    Drop {
        Duplicate = "duplicate",
        Throttled = "throttled",
        Quota = "quota",
        Forbidden = "forbidden",
        Filtered = "filtered",
        Template = "template",
        QueueFull = "queue_full",
        Expired = "expired",
        Paused = "paused",
        Missed = "missed",
        Overlap = "overlap",
        NotFound = "not_found",
        Undeliverable = "undeliverable",
    }
}

words! {
    Status {
        Pending = "pending",
        Submitted = "submitted",
        Dropped = "dropped",
    }
}

/// What fires a trigger: a due time, a delivery, or somebody who says so.
#[derive(Debug, Clone)]
pub struct Occasion {
    /// What the sender calls it; the same one fires once.
    pub delivery_id: String,
    pub due_at: Timestamp,
    pub fired_at: Timestamp,

    /// What the template sees.
    pub payload: Value,

    /// Those headers of the request that are safe to keep.
    pub headers: BTreeMap<String, String>,

    /// Who sent it, as far as that was proved.
    pub auth_subject: String,

    /// How many other due times it stands for.
    pub missed: usize,

    /// Something else bounds how many of them there are.
    pub unthrottled: bool,

    /// The trigger expires with it.
    pub last: bool,

    /// Somebody has decided already that it becomes no turn.
    pub drop: Option<Drop>,
}

impl Occasion {
    /// One that fires now.
    pub fn now(now: Timestamp, delivery_id: impl Into<String>, payload: Value) -> Occasion {
        Occasion {
            delivery_id: delivery_id.into(),
            due_at: now,
            fired_at: now,
            payload,
            headers: BTreeMap::new(),
            auth_subject: String::new(),
            missed: 0,
            unthrottled: false,
            last: false,
            drop: None,
        }
    }
}

/// Where a firing's turn goes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Route {
    /// A key stands here as it was rendered.
    pub session: TargetSession,
    pub agent: String,
    pub workspace_id: String,

    /// Of sessions that are made.
    pub title: String,
    pub overlap: Overlap,
}

/// A firing that is ready to be stored. Its request is made once, before anybody submits it, so
/// that every attempt submits the same bytes.
#[derive(Debug, Clone)]
pub struct Candidate {
    pub id: FiringId,
    pub tenant: Tenant,
    pub trigger_id: TriggerId,
    pub subject: String,
    pub source: Source,
    pub delivery_id: String,
    pub due_at: Timestamp,
    pub fired_at: Timestamp,
    pub missed: i32,
    pub envelope: Option<Vec<u8>>,
    pub payload: String,
    pub route: Route,
    pub max_per_minute: i32,
    pub unthrottled: bool,
    pub drop: Option<Drop>,
}

/// What was made of a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receipt {
    pub id: FiringId,

    /// Nothing: it becomes a turn.
    pub drop: Option<Drop>,
}

/// A firing that is to become a turn.
#[derive(Debug, Clone)]
pub struct Pending {
    pub id: FiringId,
    pub tenant: Tenant,
    pub trigger_id: TriggerId,
    pub subject: String,
    pub envelope: Vec<u8>,
    pub route: Route,
    pub attempts: i32,
}

/// The longest message that the session service takes is larger.
const LONGEST_MESSAGE: usize = 512 * 1024;
const LONGEST_KEY: usize = 200;

impl Candidate {
    /// Makes a firing of an occasion: the message from the template, the key of its session, and
    /// the request with both.
    pub fn new(
        trigger: &Trigger,
        id: FiringId,
        occasion: Occasion,
        max_per_minute: i32,
    ) -> Candidate {
        let definition = &trigger.definition;
        let scope = scope(trigger, &occasion);
        let message = message(trigger, &scope, occasion.last);
        let session = match &definition.target.session {
            TargetSession::Key(template) => rendered(template, &scope, LONGEST_KEY)
                .filter(|key| !key.is_empty())
                .map(TargetSession::Key),
            session => Some(session.clone()),
        };
        let drop = match (&message, &session) {
            (Some(_), Some(_)) => occasion.drop,
            _ => occasion.drop.or(Some(Drop::Template)),
        };
        let route = Route {
            session: session.unwrap_or(TargetSession::New),
            agent: definition.target.agent.clone(),
            workspace_id: definition.target.workspace_id.clone(),
            title: definition.name.clone(),
            overlap: match &definition.kind {
                Kind::Schedule(schedule) => schedule.overlap,
                Kind::Webhook(_) | Kind::Api | Kind::McpEvent(_) => Overlap::Queue,
            },
        };
        let payload = match &occasion.payload {
            Value::Null => String::new(),
            payload => payload.to_string().replace("\\u0000", "\\ufffd"),
        };
        Candidate {
            id,
            tenant: trigger.tenant.clone(),
            trigger_id: trigger.id,
            subject: trigger.subject.clone(),
            source: trigger.source,
            delivery_id: occasion.delivery_id.replace('\0', "\u{fffd}"),
            due_at: occasion.due_at,
            fired_at: occasion.fired_at,
            missed: i32::try_from(occasion.missed).unwrap_or(i32::MAX),
            envelope: message
                .filter(|_| drop != Some(Drop::Template))
                .map(|message| envelope(trigger, &occasion, id, &route, message)),
            payload,
            route,
            max_per_minute: definition.max_per_minute.unwrap_or(max_per_minute),
            unthrottled: occasion.unthrottled,
            drop,
        }
    }
}

/// What templates see.
fn scope(trigger: &Trigger, occasion: &Occasion) -> Value {
    json!({
        "payload": occasion.payload,
        "headers": occasion.headers,
        "trigger": { "id": trigger.id, "name": trigger.definition.name },
        "delivery_id": occasion.delivery_id,
        "due_time": occasion.due_at,
        "fire_time": occasion.fired_at,
        "missed": occasion.missed,
        "last": occasion.last,
    })
}

fn message(trigger: &Trigger, scope: &Value, last: bool) -> Option<String> {
    let template = &trigger.definition.template;
    match trigger.source {
        // An agent's own words are no template.
        Source::SelfSchedule if last => Some(format!(
            "{template}\n\n(This was the last time: the wake-up has expired. Ask for another if you need it.)"
        )),
        Source::SelfSchedule => Some(template.clone()),
        // Without a template, what was sent is the message.
        Source::Webhook | Source::Api | Source::McpEvent if template.is_empty() => {
            let payload = scope["payload"].to_string().replace('\0', "\u{fffd}");
            Some(payload).filter(|payload| payload.len() <= LONGEST_MESSAGE)
        }
        Source::Schedule | Source::Webhook | Source::Api | Source::McpEvent => {
            rendered(template, scope, LONGEST_MESSAGE).filter(|message| !message.trim().is_empty())
        }
    }
}

fn rendered(template: &str, scope: &Value, most: usize) -> Option<String> {
    let text = template::render(template, scope).ok()?.replace('\0', "\u{fffd}");
    Some(text).filter(|text| text.len() <= most)
}

/// The request as it is submitted.
fn envelope(
    trigger: &Trigger,
    occasion: &Occasion,
    id: FiringId,
    route: &Route,
    message: String,
) -> Vec<u8> {
    let session_id = match &route.session {
        TargetSession::Id(id) => id.clone(),
        TargetSession::New | TargetSession::Key(_) => String::new(),
    };
    let schedule_id = match trigger.source {
        Source::Schedule | Source::SelfSchedule => trigger.id.to_string(),
        Source::Webhook | Source::Api | Source::McpEvent => String::new(),
    };
    let auth_subject = match occasion.auth_subject.is_empty() {
        true => trigger.subject.clone(),
        false => occasion.auth_subject.clone(),
    };
    let request = SubmitTurnRequest {
        session_id,
        request_id: id.to_string(),
        parts: vec![InputPart { content: Some(Content::Text(message)) }],
        headless: true,
        trigger: Some(Envelope {
            source: trigger.source.to_string(),
            fire_time: Some(time::to_proto(occasion.fired_at)),
            schedule_id,
            delivery_id: occasion.delivery_id.clone(),
            headers: occasion.headers.clone(),
            auth_subject,
            mode: trigger.definition.mode.map_or("", |mode| mode.as_str()).to_owned(),
        }),
        ..SubmitTurnRequest::default()
    };
    request.encode_to_vec()
}
