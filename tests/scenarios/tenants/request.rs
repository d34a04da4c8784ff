//! Requests out of descriptors.

use jiff::{SignedDuration, Timestamp};
use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};
use serde_json::{Map, Value, json};

/// How deep messages nest in a request before they are left out.
const DEPTH: usize = 4;

/// What goes into fields by their names, in JSON; `Message.field` comes before `field`. What
/// has no place here is left out if it is a number or a flag, and gets a word if it is text.
const PLAUSIBLE: &[(&str, &str)] = &[
    ("amount_micros", r#""1000000000""#),
    ("capabilities", r#"["tools"]"#),
    ("delivery_header", "null"),
    ("doubled_hour", "null"),
    ("Manifest.caller", "null"),
    ("Manifest.permissions", "null"),
    ("media_type", r#""image/png""#),
    ("misfire", "null"),
    ("overlap", "null"),
    ("previous_model", "null"),
    ("profile", "null"),
    ("secret", "null"),
    ("signature_header", "null"),
    ("skipped_hour", "null"),
    ("SubmitTurnRequest.trigger", "null"),
    ("command", r#""true""#),
    ("Call.epoch", r#""1000000""#),
    ("Call.input_json", r#""{\"command\": \"cat */*; true\"}""#),
    ("Call.permissions", r#"{"mode": "MODE_AUTO"}"#),
    ("Call.tool", r#""bash""#),
    ("delay_ms", r#""86400000""#),
    ("RaiseEpochRequest.epoch", r#""1000000""#),
    ("reasoning_effort", "null"),
    ("RunHooksRequest.epoch", r#""1000000""#),
    ("RunHooksRequest.event", r#""stop""#),
    ("Answer.values", "null"),
    (
        "CountTokensRequest.prompt",
        r#"{"messages": [{"role": "ROLE_USER", "content": [{"text": "words"}]}]}"#,
    ),
    (
        "GenerateRequest.prompt",
        r#"{"messages": [{"role": "ROLE_USER", "content": [{"text": "words"}]}]}"#,
    ),
    ("GenerateRequest.attempt", "1"),
    ("ControlTaskRequest.command", r#""COMMAND_PAUSE""#),
    ("CreateKeyRequest.scopes", r#"["read"]"#),
    ("criteria", r#"["words"]"#),
    ("cron", r#""0 * * * *""#),
    ("data", r#""d29yZHM=""#),
    ("ImportSessionRequest.data", r#""e30=""#),
    ("delivery_state", "null"),
    ("event", r#""pre_tool_use""#),
    ("failure_category", "null"),
    ("filter", "null"),
    ("format", r#""FORMAT_TAR""#),
    ("group_by", r#"["model"]"#),
    ("interval_ms", r#""86400000""#),
    ("kind", r#""blocks""#),
    ("Limit.limit", r#""requests_per_minute""#),
    ("Limit.scope", r#""subject""#),
    ("mode", "null"),
    ("model", r#""scripted/demo""#),
    ("new_session", "true"),
    ("order", "1"),
    ("page_token", "null"),
    ("pattern", r#""*""#),
    ("permission", r#""bash""#),
    ("provider", r#""github""#),
    ("StartTrialRequest.role", r#""baseline""#),
    ("pty", "true"),
    ("rows", "24"),
    ("columns", "80"),
    ("DeleteMemoryRequest.scope", r#""project""#),
    ("ListMemoriesRequest.scope", r#""project""#),
    ("Memory.scope", r#""project""#),
    ("ReadMemoryRequest.scope", r#""project""#),
    ("sequence", r#""1""#),
    ("signal", r#""USR1""#),
    ("status", "null"),
    ("time_zone", r#""UTC""#),
    ("url", r#""https://nowhere.invalid/""#),
    ("Limit.value", r#""1000""#),
];

/// What goes without what: where a message has the first field, it has none of the others.
const WITHOUT: &[(&str, &[&str])] = &[
    ("File.ref", &["data"]),
    ("RestoreWorkspaceRequest.snapshot_id", &["request_id"]),
    ("Target.session_id", &["agent", "workspace_id"]),
];

/// Names of things that do not say so: whoever knows one may ask for what has it.
const NAMES: &[&str] = &[
    "agent",
    "blocked_by",
    "channel",
    "key",
    "name",
    "new_path",
    "path",
    "project",
    "ref",
    "subscription",
];

/// A way to fill a request.
pub struct Build<'a> {
    /// Which member of every `oneof`, counted around.
    pub arm: usize,
    /// What goes into `Message.field`.
    pub fill: &'a dyn Fn(&str) -> Option<String>,
}

pub struct Built {
    pub json: Value,
    /// The fields that name something, as `Message.field`.
    pub ids: Vec<String>,
}

/// How many ways there are to fill the `oneof`s of a message.
pub fn arms(message: &MessageDescriptor) -> usize {
    most_arms(message, DEPTH)
}

fn most_arms(message: &MessageDescriptor, depth: usize) -> usize {
    let own = message.oneofs().filter(|oneof| !oneof.is_synthetic());
    let own = own.map(|oneof| oneof.fields().len());
    let nested = message.fields().filter_map(|field| match field.kind() {
        Kind::Message(nested) if depth > 0 => Some(most_arms(&nested, depth - 1)),
        _ => None,
    });
    own.chain(nested).max().unwrap_or(1).max(1)
}

impl Build<'_> {
    pub fn request(&self, message: &MessageDescriptor) -> Built {
        let mut ids = Vec::new();
        let json = self.message(message, DEPTH, &mut ids);
        ids.sort();
        ids.dedup();
        Built { json, ids }
    }

    fn message(&self, message: &MessageDescriptor, depth: usize, ids: &mut Vec<String>) -> Value {
        let mut json = Map::new();
        for field in message.fields() {
            let oneof = field.containing_oneof().filter(|oneof| !oneof.is_synthetic());
            if let Some(oneof) = oneof {
                let chosen = oneof.fields().nth(self.arm % oneof.fields().len());
                if chosen.as_ref() != Some(&field) {
                    continue;
                }
            }
            let value = self.field(message, &field, depth, ids);
            if let Some(value) = value.filter(|value| !value.is_null()) {
                json.insert(field.name().to_owned(), value);
            }
        }
        for (first, others) in WITHOUT {
            let Some(field) = first.strip_prefix(&format!("{}.", message.name())) else { continue };
            for other in others.iter().filter(|_| json.contains_key(field)).collect::<Vec<_>>() {
                json.remove(*other);
                ids.retain(|id| *id != format!("{}.{other}", message.name()));
            }
        }
        Value::Object(json)
    }

    fn field(
        &self,
        message: &MessageDescriptor,
        field: &FieldDescriptor,
        depth: usize,
        ids: &mut Vec<String>,
    ) -> Option<Value> {
        let name = format!("{}.{}", message.name(), field.name());
        if is_id(field) {
            let id = (self.fill)(&name)
                .unwrap_or_else(|| panic!("nobody knows what goes into the field {name}"));
            ids.push(name);
            return Some(match (field.is_map(), field.is_list()) {
                (true, _) => json!({ "TOKEN": id }),
                (_, true) => json!([id]),
                _ => id.into(),
            });
        }
        let said = |wanted: &str| PLAUSIBLE.iter().find(|(name, _)| *name == wanted);
        if let Some((_, text)) = said(&name).or_else(|| said(field.name())) {
            return serde_json::from_str(text).unwrap();
        }
        let value = self.value(field, depth, ids)?;
        match (field.is_map(), field.is_list()) {
            (true, _) => None,
            (_, true) => Some(json!([value])),
            _ => Some(value),
        }
    }

    fn value(&self, field: &FieldDescriptor, depth: usize, ids: &mut Vec<String>) -> Option<Value> {
        match field.kind() {
            _ if field.is_map() => None,
            Kind::Message(nested) if nested.full_name() == "google.protobuf.Timestamp" => {
                time(field.name())
            }
            Kind::Message(nested) if depth > 0 => Some(self.message(&nested, depth - 1, ids)),
            Kind::Enum(values) => Some(values.values().nth(1)?.name().into()),
            Kind::String if field.name().ends_with("_json") => Some("{}".into()),
            Kind::String if field.name() == "items" => Some("{}".into()),
            Kind::String => Some("words".into()),
            _ => None,
        }
    }
}

/// A time that makes sense, of those that callers choose.
fn time(field: &str) -> Option<Value> {
    let days = match field {
        "start_time" => -1,
        "fire_time" => 0,
        "at" => 1,
        "end_time" => 2,
        "expire_time" => 30,
        _ => return None,
    };
    Some((Timestamp::now() + SignedDuration::from_hours(24 * days)).to_string().into())
}

/// Whether a field names something that may belong to somebody.
fn is_id(field: &FieldDescriptor) -> bool {
    let name = field.name();
    let plain = matches!(field.kind(), Kind::String) || field.is_map();
    let suffix = ["_id", "_ids", "_ref", "_refs", "_key"].iter().any(|end| name.ends_with(end));
    plain && (suffix || name == "id" || NAMES.contains(&name))
}
