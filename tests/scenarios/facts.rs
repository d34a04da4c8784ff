use std::{fs, path::Path};

use jsonschema::Validator;
use proto::session::v1::{respond_action_request::Decision, subscribe_request::From};
use serde_json::{Value, json};
use tests::World;

const SCRIPT: &str = r#"think I could use a tool.
say Let me see.
call bash {"command": "echo found"}
---
say It said {{tool_result}}"#;

/// A tool that does not exist, and then a provider that wants no more of us.
const BROKEN: &str = "call nothing {}\n---\nfail auth";

/// Events of these belong to a turn and say so.
const OF_A_TURN: [&str; 13] = [
    "turn",
    "model",
    "reasoning",
    "tool",
    "action",
    "permission",
    "sandbox",
    "hook",
    "context",
    "routing",
    "cost",
    "rate_limit",
    "quota",
];

#[tokio::test]
async fn every_fact_of_a_turn_is_joined_and_valid() {
    let mut world = World::start().await;
    let session = world.client("acme").await.create_careful_session().await;
    let action = session.asks(SCRIPT).await;
    let waiting = session.snapshot().await.json;
    let mut seen = session.subscribe(From::Live(true)).await;
    session.respond(&action, Decision::Project).await.unwrap();
    let seen = seen.until_ended(&action.turn_id).await;
    assert_eq!(seen.last().unwrap().r#type, "turn.completed");
    let well = session.snapshot().await.json;
    let seen = session.run(BROKEN).await;
    assert_eq!(seen.last().unwrap().r#type, "turn.failed");
    let broken = session.snapshot().await.json;

    let events = session.log_json().await.into_iter();
    let events: Vec<Value> = events.map(|json| serde_json::from_str(&json).unwrap()).collect();
    for (event, sequence) in events.iter().zip(1_i64..) {
        assert_eq!(event["sequence"], sequence);
        let name = event["type"].as_str().unwrap();
        let family = name.split('.').next().unwrap();
        let has = |id: &str| event[id].as_str().is_some_and(|id| !id.is_empty());
        if OF_A_TURN.contains(&family) {
            assert!(has("threadId") && has("turnId"), "{event}");
        }
        if family == "action" {
            assert!(has("actionId") && has("toolCallId"), "{event}");
        }
        if family == "tool" && name != "tool.catalog.resolved" {
            assert!(has("stepId") && has("toolCallId"), "{event}");
        }
    }
    for family in
        ["turn", "model", "reasoning", "tool", "action", "permission", "sandbox", "routing", "cost"]
    {
        let prefix = format!("{family}.");
        let shown = events.iter().any(|event| event["type"].as_str().unwrap().starts_with(&prefix));
        assert!(shown, "the turn has no {family} facts to check");
    }

    let snapshots = [waiting, well, broken].map(|json| serde_json::from_str(&json).unwrap());
    for (schema, documents) in [("event", &events[..]), ("snapshot", &snapshots)] {
        for validator in schemas(schema) {
            for document in documents {
                let errors = validator.iter_errors(document);
                let errors: Vec<_> = errors.map(|error| error.to_string()).collect();
                assert_eq!(errors, [""; 0], "{document:#}");
            }
            // A schema that takes everything would prove nothing.
            for wrong in [json!({}), with_a_wrong_time(documents[0].clone())] {
                assert!(!validator.is_valid(&wrong), "the {schema} schema takes {wrong:#}");
            }
        }
    }
}

/// Every event of a log is one that the schemas know, and what `check` wants.
pub fn assert_valid(log: &[String], check: impl Fn(&Value)) {
    let validators = schemas("event");
    for json in log {
        let event: Value = serde_json::from_str(json).unwrap();
        for validator in &validators {
            let errors = validator.iter_errors(&event).map(|error| error.to_string());
            assert_eq!(errors.collect::<Vec<_>>(), [""; 0], "{event:#}");
        }
        check(&event);
    }
}

fn with_a_wrong_time(mut document: Value) -> Value {
    for field in ["timestamp", "updatedAt"] {
        if let Some(time) = document.get_mut(field) {
            *time = json!("yesterday");
        }
    }
    document
}

/// Our own schema, and the published one that it must never contradict where there is a copy.
fn schemas(name: &str) -> Vec<Validator> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let ours = root.join(format!("proto/schemas/{name}.schema.json"));
    let published = root.join(format!("../shared/schemas/agentruntime-{name}.schema.json"));
    let mut validators = vec![validator(&ours)];
    match published.exists() {
        true => validators.push(validator(&published)),
        false => eprintln!("there is no copy of the published {name} schema to check against"),
    }
    validators
}

fn validator(path: &Path) -> Validator {
    let schema = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    jsonschema::options().should_validate_formats(true).build(&schema).unwrap()
}
