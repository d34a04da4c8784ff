//! What a pack says of events beyond the events themselves.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};

/// Events that are shown a second time, by what they are about: the section, and the names of
/// the events, in which `%` stands for anything.
pub const FAMILIES: [(&str, &[&str]); 12] = [
    ("routing", &["task.profile.resolved", "routing.%"]),
    ("permissions", &["permission.%", "policy.changed"]),
    ("decisions", &["action.%"]),
    ("sandbox", &["sandbox.%"]),
    ("hooks", &["hook.%"]),
    ("limits", &["rate_limit.%", "quota.%", "limit.%"]),
    ("costs", &["cost.%"]),
    ("context", &["context.%", "tool.catalog.resolved", "history.%"]),
    (
        "processes",
        &[
            "process.started",
            "process.input",
            "process.completed",
            "process.failed",
            "process.terminated",
        ],
    ),
    ("subagents", &["subagent.%"]),
    ("tasks", &["task.%", "job.%"]),
    ("references", &["evidence.changed"]),
];

/// Events that only add to a text, which the timeline leaves out.
pub const DELTAS: [&str; 4] = ["model.delta", "reasoning.delta", "tool.progress", "process.output"];

/// How much of a value a timeline shows, in characters.
const BRIEF: usize = 120;

/// An event, as far as a pack looks into it.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fact {
    pub r#type: String,
    pub event_id: String,
    pub sequence: i64,
    #[serde(default)]
    pub timestamp: Option<String>,
    pub session_id: String,
    #[serde(default)]
    pub turn_id: Option<String>,
    #[serde(default)]
    pub step_id: Option<String>,
    #[serde(default)]
    pub tool_call_id: Option<String>,
    #[serde(default)]
    pub action_id: Option<String>,
    #[serde(default)]
    pub task_id: Option<String>,
    #[serde(default)]
    pub model_request_id: Option<String>,
    #[serde(default)]
    pub output_ref: Option<String>,
    #[serde(default)]
    pub refs: BTreeMap<String, String>,
    #[serde(default)]
    pub payload: Value,
}

impl Fact {
    /// The place of the first event that this one stands for.
    pub fn first(&self) -> i64 {
        let first = self.refs.get("firstSequence").and_then(|first| first.parse().ok());
        first.unwrap_or(self.sequence)
    }

    /// A field of the payload that is text.
    pub fn text(&self, field: &str) -> &str {
        self.payload.get(field).and_then(Value::as_str).unwrap_or_default()
    }
}

/// Reads an event as it is exported.
pub fn fact(event: &RawValue) -> serde_json::Result<Fact> {
    serde_json::from_str(event.get())
}

/// One line of what happened, or nothing for what only adds to a text.
pub fn timeline(fact: &Fact) -> Option<Value> {
    if DELTAS.contains(&fact.r#type.as_str()) {
        return None;
    }
    let mut line = json!({
        "sequence": fact.sequence, "eventId": fact.event_id, "type": fact.r#type,
        "timestamp": fact.timestamp, "text": brief(&fact.payload),
    });
    let ids = [
        ("turnId", &fact.turn_id),
        ("stepId", &fact.step_id),
        ("toolCallId", &fact.tool_call_id),
        ("actionId", &fact.action_id),
        ("taskId", &fact.task_id),
        ("modelRequestId", &fact.model_request_id),
    ];
    for (name, id) in ids {
        if let Some(id) = id {
            line[name] = json!(id);
        }
    }
    Some(line)
}

/// The plain values of a payload, cut short.
fn brief(payload: &Value) -> String {
    let Value::Object(fields) = payload else { return String::new() };
    let values = fields.iter().filter_map(|(name, value)| {
        let text = match value {
            Value::String(text) => cut(text, BRIEF),
            Value::Number(_) | Value::Bool(_) => value.to_string(),
            Value::Null | Value::Array(_) | Value::Object(_) => return None,
        };
        Some(format!("{name}={text}"))
    });
    values.collect::<Vec<_>>().join(" ")
}

/// The beginning of a text.
pub fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// A thing that an event points to.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Artifact {
    /// `output`, `snapshot`, `updated_input`, `file` or `artifact`.
    pub kind: &'static str,
    pub r#ref: String,
    pub sequence: i64,
    pub event_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    #[serde(skip_serializing_if = "Value::is_null")]
    pub detail: Value,
}

/// Everything that an event points to.
pub fn artifacts(fact: &Fact) -> Vec<Artifact> {
    let new = |kind, reference: &str, detail| Artifact {
        kind,
        r#ref: reference.to_owned(),
        sequence: fact.sequence,
        event_id: fact.event_id.clone(),
        tool_call_id: fact.tool_call_id.clone(),
        detail,
    };
    let mut found = Vec::new();
    if let Some(output) = &fact.output_ref {
        found.push(new("output", output, fact.payload.clone()));
    }
    let metadata = &fact.payload["metadata"];
    if let Some(output) = metadata["outputRef"].as_str().filter(|output| !output.is_empty()) {
        let detail =
            json!({"outputBytes": metadata["outputBytes"], "outputPath": metadata["outputPath"]});
        found.push(new("output", output, detail));
    }
    for (name, reference) in &fact.refs {
        match name.as_str() {
            "snapshotId" => found.push(new("snapshot", reference, Value::Null)),
            "updatedInputRef" => found.push(new("updated_input", reference, Value::Null)),
            _ => {}
        }
    }
    if fact.r#type == "artifact.changed" {
        found.push(new("artifact", fact.text("artifactId"), fact.payload.clone()));
    }
    found
}

/// The tool calls under way, so that a failure can say what failed.
#[derive(Debug, Default)]
pub struct Failures {
    open: HashMap<String, (String, i64, String)>,
}

impl Failures {
    /// What is to be looked at, in order.
    pub const TYPES: [&str; 4] = ["tool.started", "tool.args", "tool.result", "tool.failed"];

    /// Takes the next event; returns what failed with it.
    pub fn take(&mut self, fact: &Fact) -> Option<Value> {
        let id = fact.tool_call_id.clone()?;
        match fact.r#type.as_str() {
            "tool.started" => {
                let call = (fact.text("tool").to_owned(), fact.sequence, String::new());
                self.open.insert(id, call);
                None
            }
            "tool.args" => {
                if let Some((_, _, input)) = self.open.get_mut(&id) {
                    fact.text("inputJson").clone_into(input);
                }
                None
            }
            "tool.failed" => {
                let (tool, started, input) = self.open.remove(&id).unwrap_or_default();
                Some(json!({
                    "sequence": fact.sequence, "eventId": fact.event_id, "toolCallId": id,
                    "startedSequence": (started > 0).then_some(started),
                    "tool": tool, "inputJson": input, "kind": fact.text("kind"),
                    "errorText": fact.text("errorText"), "turnId": fact.turn_id, "stepId": fact.step_id,
                }))
            }
            _ => {
                self.open.remove(&id);
                None
            }
        }
    }
}
