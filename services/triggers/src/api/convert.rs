//! From what is stored to what callers see.

use jiff::Timestamp;
use proto::triggers::v1::{
    self as pb, schedule::When as PbWhen, target::Session as PbSession, trigger::Kind as PbKind,
};

use crate::{
    http,
    ids::TriggerId,
    schedule::{Schedule, When},
    store::{history::Recorded, triggers::Shown},
    time::to_proto,
    trigger::{Kind, Status, Target, TargetSession, Trigger},
};

pub fn trigger(shown: Shown, now: Timestamp, http: &http::Args) -> pb::Trigger {
    let Shown { trigger, next_fire, last_fire } = shown;
    let status = status(&trigger, now).to_string();
    let Trigger { id, source, definition, created_at, expires_at, .. } = trigger;
    pb::Trigger {
        trigger_id: id.to_string(),
        name: definition.name,
        kind: Some(kind(id, definition.kind, http)),
        target: Some(target(definition.target)),
        template: definition.template,
        max_per_minute: definition.max_per_minute.unwrap_or_default(),
        expire_time: expires_at.map(to_proto),
        mode: definition.mode.map_or("", |mode| mode.as_str()).to_owned(),
        status,
        create_time: Some(to_proto(created_at)),
        next_fire_time: next_fire.map(to_proto),
        last_fire_time: last_fire.map(to_proto),
        source: source.to_string(),
    }
}

/// What waits for others expires without anybody doing anything.
fn status(trigger: &Trigger, now: Timestamp) -> Status {
    let waits = !matches!(trigger.definition.kind, Kind::Schedule(_));
    match trigger.expires_at {
        Some(expires) if waits && expires <= now => Status::Expired,
        _ => trigger.status,
    }
}

fn kind(id: TriggerId, kind: Kind, http: &http::Args) -> PbKind {
    match kind {
        Kind::Schedule(schedule) => PbKind::Schedule(self::schedule(schedule)),
        Kind::Webhook(webhook) => PbKind::Webhook(pb::Webhook {
            provider: webhook.provider,
            filter: webhook.filter,
            url: http.webhook_url(id),
            signature_header: webhook.signature_header,
            delivery_header: webhook.delivery_header,
        }),
        Kind::Api => PbKind::Api(pb::Api { url: http.api_url(id) }),
        Kind::McpEvent(event) => PbKind::McpEvent(pb::McpEvent {
            mcp_server_id: event.mcp_server_id,
            subscription: event.subscription,
            project: event.project,
        }),
    }
}

fn schedule(schedule: Schedule) -> pb::Schedule {
    pb::Schedule {
        when: Some(match schedule.when {
            When::Cron(cron) => PbWhen::Cron(cron),
            When::IntervalMs(interval) => PbWhen::IntervalMs(interval),
            When::At(at) => PbWhen::At(to_proto(at)),
        }),
        time_zone: schedule.time_zone,
        skipped_hour: word(&schedule.skipped_hour),
        doubled_hour: word(&schedule.doubled_hour),
        misfire: word(&schedule.misfire),
        overlap: word(&schedule.overlap),
        jitter_ms: i32::try_from(schedule.jitter_ms).unwrap_or(i32::MAX),
        start_time: schedule.start.map(to_proto),
        end_time: schedule.end.map(to_proto),
    }
}

/// A policy as it is written, see `check::word`.
fn word(policy: &impl serde::Serialize) -> String {
    let value = serde_json::to_value(policy).unwrap_or_default();
    value.as_str().unwrap_or_default().to_owned()
}

fn target(target: Target) -> pb::Target {
    pb::Target {
        session: Some(match target.session {
            TargetSession::Id(id) => PbSession::SessionId(id),
            TargetSession::New => PbSession::NewSession(true),
            TargetSession::Key(template) => PbSession::SessionKey(template),
        }),
        agent: target.agent,
        workspace_id: target.workspace_id,
    }
}

pub fn firing(recorded: Recorded) -> pb::Firing {
    pb::Firing {
        firing_id: recorded.id.to_string(),
        trigger_id: recorded.trigger_id.to_string(),
        status: recorded.status.to_string(),
        drop_reason: recorded.drop_reason,
        due_time: Some(to_proto(recorded.due_at.to_jiff())),
        fire_time: Some(to_proto(recorded.fired_at.to_jiff())),
        delivery_id: recorded.delivery_id,
        session_id: recorded.session_id.unwrap_or_default(),
        turn_id: recorded.turn_id.unwrap_or_default(),
        missed: recorded.missed,
    }
}
