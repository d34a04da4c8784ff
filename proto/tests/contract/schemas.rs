//! The published schemas are up to date, and take what we write.

use std::{fs, path::Path};

use expect_test::{ExpectFile, expect_file};
use jsonschema::Validator;
use proto::event::v1::EVENT_NAMES;
use serde_json::{Value, json};

use crate::{comments::CONTRACTS, filled::filled, json::events, schema};

#[test]
fn the_published_schemas_say_what_the_contracts_say() {
    published(expect_file!["../../schemas/event.schema.json"], &schema::event());
    published(expect_file!["../../schemas/snapshot.schema.json"], &schema::snapshot());
}

#[test]
fn every_event_is_valid() {
    let ours = validator(&schema::event());
    let theirs = agentruntime().map(|schema| validator(&schema));
    for event in events() {
        let json = serde_json::from_str(&event.to_json().unwrap()).unwrap();
        assert_valid(&ours, &json);
        theirs.iter().for_each(|theirs| assert_valid(theirs, &json));
    }
}

#[test]
fn events_have_the_names_that_agentruntime_gives_them() {
    let Some(schema) = agentruntime() else { return };
    let mut theirs: Vec<_> = schema["properties"]["type"]["enum"].as_array().unwrap().clone();
    let mut ours: Vec<Value> = EVENT_NAMES.iter().map(|name| json!(name)).collect();
    theirs.sort_by_key(Value::to_string);
    ours.sort_by_key(Value::to_string);
    assert_eq!(ours, theirs);
}

#[test]
fn what_a_newer_server_adds_is_valid() {
    let mut event = an_event();
    event["moonPhase"] = json!("full");
    event["payload"]["moonPhase"] = json!({ "waxing": true });
    assert_valid(&validator(&schema::event()), &event);
}

#[test]
fn what_no_server_writes_is_not_valid() {
    let schema = validator(&schema::event());
    assert_valid(&schema, &an_event());
    for (path, wrong) in [
        ("/type", json!("turn.finished")),
        ("/eventId", json!("ses_1")),
        ("/schemaVersion", json!("2")),
        ("/timestamp", json!("yesterday")),
        ("/sequence", json!(0)),
        ("/sequence", json!("1")),
        ("/payload", json!(null)),
        ("/payload/steps", json!("2")),
        ("/payload/costMicros", json!(7)),
        ("/payload/usage/input", json!(1.5)),
    ] {
        let mut event = an_event();
        *event.pointer_mut(path).unwrap() = wrong.clone();
        assert!(!schema.is_valid(&event), "{path} may be {wrong}");
    }
    for field in ["type", "eventId", "timestamp", "sequence", "sessionId", "threadId", "payload"] {
        let mut event = an_event();
        event.as_object_mut().unwrap().remove(field);
        assert!(!schema.is_valid(&event), "{field} may be absent");
    }
}

#[test]
fn every_snapshot_is_valid() {
    let schema = validator(&schema::snapshot());
    let message = CONTRACTS.get_message_by_name("windlass.session.v1.Snapshot").unwrap();
    let mut snapshot: proto::session::v1::Snapshot = filled(&message).transcode_to().unwrap();
    snapshot.schema_version = "1".into();
    assert_valid(&schema, &serde_json::to_value(&snapshot).unwrap());
    assert!(
        !schema.is_valid(&json!({ "schemaVersion": "1", "sessionId": "ses_1", "threads": {} }))
    );
}

fn an_event() -> Value {
    json!({
        "type": "turn.completed",
        "eventId": "evt_1",
        "schemaVersion": "1",
        "timestamp": "2026-01-01T00:00:00Z",
        "sequence": 1,
        "sessionId": "ses_1",
        "threadId": "thread_1",
        "payload": { "steps": 2, "usage": { "input": 3 }, "costMicros": "7" },
    })
}

fn published(file: ExpectFile, schema: &Value) {
    file.assert_eq(&format!("{schema:#}\n"));
}

fn validator(schema: &Value) -> Validator {
    jsonschema::draft202012::options().should_validate_formats(true).build(schema).unwrap()
}

fn assert_valid(schema: &Validator, json: &Value) {
    let mistakes: Vec<_> = schema
        .iter_errors(json)
        .map(|mistake| format!("{}: {mistake}", mistake.instance_path()))
        .collect();
    assert!(mistakes.is_empty(), "{mistakes:#?}\n{json:#}");
}

/// The schema that events have in common with other runtimes. It is not ours to publish, so
/// those who have it keep it beside the repository.
fn agentruntime() -> Option<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../shared/schemas/agentruntime-event.schema.json");
    if !path.exists() {
        eprintln!("not compared with agentruntime's schema: there is no {}", path.display());
        return None;
    }
    Some(serde_json::from_slice(&fs::read(path).unwrap()).unwrap())
}
