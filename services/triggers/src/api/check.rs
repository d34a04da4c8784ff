//! What a request must look like before anything is stored.

use std::time::Duration;

use ::http::HeaderName;
use jiff::{SignedDuration, Timestamp};
use prost::Message;
use proto::triggers::v1::{
    self as pb, schedule::When as PbWhen, target::Session as PbSession, trigger::Kind as PbKind,
};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::{
    credential,
    error::{Error, Result, invalid},
    schedule::{Due, Plan, Problem, Schedule, When},
    template::{self, Expression},
    time,
    trigger::{Definition, Kind, McpEvent, Mode, Source, Target, TargetSession, Trigger, Webhook},
    webhook::Provider,
};

const LONGEST_TEMPLATE: usize = 16 * 1024;
const LONGEST_KEY: usize = 1_000;
const LARGEST_PAYLOAD: usize = 64 * 1024;
const SHORTEST_INTERVAL_MS: i64 = 1_000;
const LONGEST_INTERVAL_MS: i64 = 366 * 86_400_000;
const LONGEST_JITTER_MS: i32 = 3_600_000;
const MOST_PER_MINUTE: i32 = 6_000;

/// The furthest that anything may lie ahead.
const FURTHEST: SignedDuration = SignedDuration::from_hours(10 * 366 * 24);

/// An idempotency key of the caller's.
pub fn request_id(text: &str) -> Result<&str> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    match (1..=100).contains(&text.len()) && text.bytes().all(allowed) {
        true => Ok(text),
        false => {
            Err(invalid("request_id", "expected 1 to 100 characters of A-Z, a-z, 0-9, _ and -"))
        }
    }
}

/// Tells a repeated request from another one with the same id.
pub fn digest(request: &impl Message) -> String {
    format!("{:x}", Sha256::digest(request.encode_to_vec()))
}

/// How many rows the caller wants; zero leaves it to us.
pub fn count(field: &str, asked: i32, default: i64, most: i64) -> Result<i64> {
    match i64::from(asked) {
        0 => Ok(default),
        asked if asked < 0 => Err(invalid(field, "must not be negative")),
        asked => Ok(asked.min(most)),
    }
}

/// What a trigger is to do.
pub fn definition(trigger: &pb::Trigger) -> Result<Definition> {
    let name = text("trigger.name", &trigger.name, 100)?;
    if name.trim().is_empty() {
        return Err(invalid("trigger.name", "expected 1 to 100 characters"));
    }
    let kind = kind(trigger.kind.as_ref())?;
    let max_per_minute = match trigger.max_per_minute {
        0 => None,
        most @ 1..=MOST_PER_MINUTE => Some(most),
        _ => return Err(invalid("trigger.max_per_minute", "expected 0 to 6,000")),
    };
    let mode = match trigger.mode.as_str() {
        "" => None,
        "plan" => Some(Mode::Plan),
        "never_ask" => Some(Mode::NeverAsk),
        _ => return Err(invalid("trigger.mode", "expected nothing, plan or never_ask")),
    };
    Ok(Definition {
        name: name.to_owned(),
        template: message("trigger.template", &trigger.template, &kind)?,
        kind,
        target: target(trigger.target.as_ref())?,
        max_per_minute,
        mode,
    })
}

fn message(field: &'static str, template: &str, kind: &Kind) -> Result<String> {
    if template.len() > LONGEST_TEMPLATE {
        return Err(invalid(field, "at most 16 KiB"));
    }
    if matches!(kind, Kind::Schedule(_)) && template.trim().is_empty() {
        return Err(invalid(field, "a schedule needs a message"));
    }
    template::check(template)
        .map_err(|error| invalid(field, format!("is no template: {error}")))?;
    Ok(template.to_owned())
}

fn kind(kind: Option<&PbKind>) -> Result<Kind> {
    match kind {
        Some(PbKind::Schedule(schedule)) => {
            Ok(Kind::Schedule(self::schedule("trigger.schedule", schedule)?))
        }
        Some(PbKind::Webhook(webhook)) => Ok(Kind::Webhook(self::webhook(webhook)?)),
        Some(PbKind::Api(_)) => Ok(Kind::Api),
        Some(PbKind::McpEvent(event)) => Ok(Kind::McpEvent(mcp_event(event)?)),
        None => {
            Err(invalid("trigger.kind", "expected one of schedule, webhook, api and mcp_event"))
        }
    }
}

fn webhook(webhook: &pb::Webhook) -> Result<Webhook> {
    const FILTER: &str = "trigger.webhook.filter";
    let filter = webhook.filter.trim();
    if !filter.is_empty() {
        Expression::parse(filter)
            .map_err(|error| invalid(FILTER, format!("is no expression: {error}")))?;
    }
    let checked = Webhook {
        provider: webhook.provider.clone(),
        filter: filter.to_owned(),
        signature_header: webhook.signature_header.clone(),
        delivery_header: webhook.delivery_header.clone(),
    };
    let provider = credential::provider(&checked)?;
    for (field, name) in [
        ("trigger.webhook.signature_header", &checked.signature_header),
        ("trigger.webhook.delivery_header", &checked.delivery_header),
    ] {
        if !name.is_empty() && !matches!(provider, Provider::Hmac { .. }) {
            return Err(invalid(field, "is only for `hmac`, others have headers of their own"));
        }
        if name.len() > 100 || (!name.is_empty() && name.parse::<HeaderName>().is_err()) {
            return Err(invalid(field, "expected the name of a header, at most 100 characters"));
        }
    }
    Ok(checked)
}

fn mcp_event(event: &pb::McpEvent) -> Result<McpEvent> {
    let id = event.mcp_server_id.as_str();
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    if !(1..=32).contains(&id.len()) || !id.bytes().all(plain) {
        let problem = "expected 1 to 32 characters of a-z and 0-9";
        return Err(invalid("trigger.mcp_event.mcp_server_id", problem));
    }
    let subscription = text("trigger.mcp_event.subscription", &event.subscription, 2_000)?;
    if subscription.is_empty() {
        let problem = "expected a resource's URI, or a method that begins with notifications/";
        return Err(invalid("trigger.mcp_event.subscription", problem));
    }
    Ok(McpEvent {
        mcp_server_id: id.to_owned(),
        subscription: subscription.to_owned(),
        project: text("trigger.mcp_event.project", &event.project, 200)?.to_owned(),
    })
}

/// What fires a trigger that somebody makes.
pub fn source(kind: &Kind) -> Source {
    match kind {
        Kind::Schedule(_) => Source::Schedule,
        Kind::Webhook(_) => Source::Webhook,
        Kind::Api => Source::Api,
        Kind::McpEvent(_) => Source::McpEvent,
    }
}

fn target(target: Option<&pb::Target>) -> Result<Target> {
    let target = target.ok_or_else(|| invalid("trigger.target", "is missing"))?;
    let session = match &target.session {
        Some(PbSession::SessionId(id)) => {
            TargetSession::Id(id_of("trigger.target.session_id", "ses", id)?.to_owned())
        }
        Some(PbSession::NewSession(true)) => TargetSession::New,
        Some(PbSession::NewSession(false)) => {
            return Err(invalid("trigger.target.new_session", "expected true, or another target"));
        }
        Some(PbSession::SessionKey(template)) => {
            const FIELD: &str = "trigger.target.session_key";
            if template.trim().is_empty() {
                return Err(invalid(FIELD, "is empty"));
            }
            let template = text(FIELD, template, LONGEST_KEY)?;
            template::check(template)
                .map_err(|error| invalid(FIELD, format!("is no template: {error}")))?;
            TargetSession::Key(template.to_owned())
        }
        None => {
            let problem = "expected one of session_id, new_session and session_key";
            return Err(invalid("trigger.target.session", problem));
        }
    };
    let (agent, workspace_id) = (target.agent.as_str(), target.workspace_id.as_str());
    if let TargetSession::Id(_) = session {
        for (field, text) in
            [("trigger.target.agent", agent), ("trigger.target.workspace_id", workspace_id)]
        {
            if !text.is_empty() {
                return Err(invalid(field, "is only for targets that make sessions"));
            }
        }
    }
    let allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
    if agent.len() > 64 || !agent.bytes().all(allowed) {
        let problem = "expected 1 to 64 characters of a-z, 0-9 and -";
        return Err(invalid("trigger.target.agent", problem));
    }
    if !workspace_id.is_empty() {
        id_of("trigger.target.workspace_id", "ws", workspace_id)?;
    }
    let (agent, workspace_id) = (agent.to_owned(), workspace_id.to_owned());
    Ok(Target { session, agent, workspace_id })
}

/// A schedule; `field` is where it stands in the request.
pub fn schedule(field: &str, schedule: &pb::Schedule) -> Result<Schedule> {
    let at = |name: &str| format!("{field}.{name}");
    let when = match &schedule.when {
        Some(PbWhen::Cron(cron)) => When::Cron(cron.trim().to_owned()),
        Some(PbWhen::IntervalMs(interval @ SHORTEST_INTERVAL_MS..=LONGEST_INTERVAL_MS)) => {
            When::IntervalMs(*interval)
        }
        Some(PbWhen::IntervalMs(_)) => {
            return Err(invalid(
                at("interval_ms"),
                "expected 1,000 to 31,622,400,000, which is a year",
            ));
        }
        Some(PbWhen::At(time)) => When::At(instant(&at("at"), time)?),
        None => return Err(invalid(at("when"), "expected one of cron, interval_ms and at")),
    };
    let jitter_ms = match schedule.jitter_ms {
        jitter @ 0..=LONGEST_JITTER_MS => jitter.unsigned_abs(),
        _ => return Err(invalid(at("jitter_ms"), "expected 0 to 3,600,000")),
    };
    if matches!(when, When::IntervalMs(interval) if i64::from(jitter_ms) >= interval) {
        return Err(invalid(at("jitter_ms"), "must be less than the interval"));
    }
    let start = schedule.start_time.as_ref().map(|time| instant(&at("start_time"), time));
    let end = schedule.end_time.as_ref().map(|time| instant(&at("end_time"), time));
    let (start, end) = (start.transpose()?, end.transpose()?);
    if start.zip(end).is_some_and(|(start, end)| start > end) {
        return Err(invalid(at("end_time"), "is before start_time"));
    }
    let checked = Schedule {
        when,
        time_zone: match schedule.time_zone.as_str() {
            "" => "UTC".to_owned(),
            name => name.to_owned(),
        },
        skipped_hour: word(&at("skipped_hour"), &schedule.skipped_hour, "next or skip")?,
        doubled_hour: word(&at("doubled_hour"), &schedule.doubled_hour, "first, second or both")?,
        misfire: word(&at("misfire"), &schedule.misfire, "skip, once or all")?,
        overlap: word(&at("overlap"), &schedule.overlap, "queue, skip or cancel_previous")?,
        jitter_ms,
        start,
        end,
    };
    Plan::new(&checked, Timestamp::UNIX_EPOCH, None, None)
        .map_err(|Problem { field, problem }| invalid(at(field), problem))?;
    Ok(checked)
}

/// One of the words that a policy has, or nothing for the usual one.
fn word<T: Default + serde::de::DeserializeOwned>(
    field: &str,
    text: &str,
    words: &str,
) -> Result<T> {
    if text.is_empty() {
        return Ok(T::default());
    }
    serde_json::from_value(Value::from(text))
        .map_err(|_| invalid(field, format!("expected {words}")))
}

/// When a trigger expires. What fires once needs no other end.
pub fn expiry(
    trigger: &pb::Trigger,
    kind: &Kind,
    now: Timestamp,
    ttl: Duration,
) -> Result<Option<Timestamp>> {
    const FIELD: &str = "trigger.expire_time";
    match (&trigger.expire_time, kind) {
        (Some(time), _) => {
            let at = instant(FIELD, time)?;
            if at <= now {
                return Err(invalid(FIELD, "is past"));
            }
            match at.duration_since(now) > FURTHEST {
                true => Err(invalid(FIELD, "at most ten years ahead")),
                false => Ok(Some(at)),
            }
        }
        (None, Kind::Schedule(schedule)) if schedule.is_once() => Ok(None),
        (None, _) => Ok(now.checked_add(ttl).ok()),
    }
}

/// When a trigger is due first, if it is a schedule. One that never is, is refused.
pub fn first_due(trigger: &Trigger, now: Timestamp) -> Result<Option<Due>> {
    let plan = trigger.plan().map_err(|Problem { field, problem }| {
        invalid(format!("trigger.schedule.{field}"), problem)
    })?;
    let Some(plan) = plan else { return Ok(None) };
    match plan.next(now) {
        Some(due) => Ok(Some(due)),
        None => Err(never("trigger.schedule")),
    }
}

pub fn never(field: &str) -> Error {
    let problem = "there is no such date, or it is past".to_owned();
    Error::NeverFires { field: field.to_owned(), problem }
}

pub fn instant(field: &str, time: &pbjson_types::Timestamp) -> Result<Timestamp> {
    time::from_proto(time).ok_or_else(|| invalid(field, "is no time"))
}

/// What a template sees of somebody who fires by hand.
pub fn payload(field: &str, json: &str) -> Result<Value> {
    if json.is_empty() {
        return Ok(Value::Null);
    }
    if json.len() > LARGEST_PAYLOAD {
        return Err(invalid(field, "at most 64 KiB"));
    }
    serde_json::from_str(json).map_err(|error| invalid(field, format!("is not JSON: {error}")))
}

pub fn text<'a>(field: &'static str, text: &'a str, most: usize) -> Result<&'a str> {
    if text.chars().count() > most {
        return Err(invalid(field, format!("at most {most} characters")));
    }
    match text.contains('\0') {
        true => Err(invalid(field, "must not contain NUL")),
        false => Ok(text),
    }
}

/// An id of another service's: a prefix and 26 characters.
pub fn id_of<'a>(field: &str, prefix: &str, text: &'a str) -> Result<&'a str> {
    let rest = text.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('_'));
    let allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9');
    match rest {
        Some(rest) if rest.len() == 26 && rest.bytes().all(allowed) => Ok(text),
        _ => Err(invalid(field, format!("expected {prefix}_ and 26 characters"))),
    }
}
