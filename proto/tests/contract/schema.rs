//! Writes JSON Schemas from the contracts. Fields that nobody knows are allowed everywhere, so that
//! what a newer server writes is still valid.

use std::collections::BTreeMap;

use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MessageDescriptor};
use proto::event::v1::{EVENT_NAMES, SCHEMA_VERSION};
use serde_json::{Map, Value, json};

use crate::comments::{CONTRACTS, comment};

/// The schema of [`proto::event::v1::Event::to_json`].
pub fn event() -> Value {
    let event = CONTRACTS.get_message_by_name("windlass.event.v1.Event").unwrap();
    let mut definitions = Map::new();
    let mut schema = message(&event, &mut definitions);

    // The payload stands under one name whatever its type; `type` says which it is.
    let mut types = BTreeMap::<String, Vec<String>>::new();
    for field in payloads() {
        schema["properties"].as_object_mut().unwrap().remove(field.json_name());
        types.entry(reference(&field)).or_default().push(name(&field));
    }
    let choices = types.into_iter().map(|(payload, types)| {
        json!({
            "if": { "properties": { "type": { "enum": types } } },
            "then": { "properties": { "payload": { "$ref": payload } } },
        })
    });
    schema["allOf"] = choices.collect();
    schema["properties"]["payload"] = json!({ "description": "What `type` calls for." });
    schema["properties"]["type"]["enum"] = json!(EVENT_NAMES);
    schema["properties"]["schemaVersion"]["const"] = json!(SCHEMA_VERSION);
    let sequence = &mut schema["properties"]["sequence"];
    *sequence = json!({
        "description": sequence["description"],
        "type": "integer",
        "minimum": 1,
    });
    let required = [
        "type",
        "eventId",
        "schemaVersion",
        "timestamp",
        "sequence",
        "sessionId",
        "threadId",
        "payload",
    ];
    document("event", schema, &required, definitions)
}

/// The schema of a session's snapshot, in the JSON form that protobuf itself gives a message.
pub fn snapshot() -> Value {
    let snapshot = CONTRACTS.get_message_by_name("windlass.session.v1.Snapshot").unwrap();
    let mut definitions = Map::new();
    let mut schema = message(&snapshot, &mut definitions);
    schema["properties"]["schemaVersion"]["const"] = json!("1");
    document("snapshot", schema, &["schemaVersion", "sessionId", "threads"], definitions)
}

fn document(
    name: &str,
    mut schema: Value,
    required: &[&str],
    definitions: Map<String, Value>,
) -> Value {
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["$id"] = json!(format!("urn:windlass:{name}:1"));
    schema["title"] = json!(format!("Windlass {name}"));
    schema["required"] = json!(required);
    schema["$defs"] = definitions.into();
    // The same file whatever features other crates switch on in `serde_json`.
    schema.sort_all_objects();
    schema
}

/// The fields of an event of which each has exactly one.
pub fn payloads() -> Vec<FieldDescriptor> {
    let event = CONTRACTS.get_message_by_name("windlass.event.v1.Event").unwrap();
    event.oneofs().find(|oneof| oneof.name() == "payload").unwrap().fields().collect()
}

/// The dotted name of the event that carries this payload.
pub fn name(payload: &FieldDescriptor) -> String {
    let option = CONTRACTS.get_extension_by_name("windlass.event.v1.name").unwrap();
    let options: DynamicMessage = payload.options();
    options.get_extension(&option).as_str().unwrap().to_owned()
}

/// A message, with those that it holds put into `definitions`.
fn message(message: &MessageDescriptor, definitions: &mut Map<String, Value>) -> Value {
    let mut properties = Map::new();
    for field in message.fields() {
        properties.insert(field.json_name().to_owned(), property(&field, definitions));
    }
    let description = comment(&message.parent_file(), message.path());
    described(description, json!({ "type": "object", "properties": properties }))
}

fn property(field: &FieldDescriptor, definitions: &mut Map<String, Value>) -> Value {
    let description = comment(&field.parent_file(), field.path());
    let schema = if field.is_map() {
        let value = field.kind().as_message().unwrap().map_entry_value_field();
        json!({ "type": "object", "additionalProperties": one(&value, definitions) })
    } else if field.is_list() {
        json!({ "type": "array", "items": one(field, definitions) })
    } else if let Some(prefix) = prefix(&description) {
        json!({ "type": "string", "pattern": format!("^{prefix}.") })
    } else {
        one(field, definitions)
    };
    described(description, schema)
}

/// One value of the field, as protobuf's JSON form writes it.
fn one(field: &FieldDescriptor, definitions: &mut Map<String, Value>) -> Value {
    match field.kind() {
        Kind::String => json!({ "type": "string" }),
        Kind::Bool => json!({ "type": "boolean" }),
        Kind::Double => json!({ "type": "number" }),
        Kind::Int32 => json!({ "type": "integer", "minimum": i32::MIN, "maximum": i32::MAX }),
        // More than a double can hold, so it travels as text.
        Kind::Int64 => json!({ "type": "string", "pattern": "^-?[0-9]{1,19}$" }),
        Kind::Enum(values) => {
            json!({ "enum": values.values().map(|value| value.name().to_owned()).collect::<Vec<_>>() })
        }
        Kind::Message(held) if held.full_name() == "google.protobuf.Timestamp" => {
            json!({ "type": "string", "format": "date-time" })
        }
        Kind::Message(held) => {
            assert!(held.full_name().starts_with("windlass."), "a JSON form of its own: {held:?}");
            if !definitions.contains_key(held.full_name()) {
                let schema = message(&held, definitions);
                definitions.insert(held.full_name().to_owned(), schema);
            }
            json!({ "$ref": reference(field) })
        }
        other => panic!("{} is {other:?}: say here how that looks in JSON", field.full_name()),
    }
}

fn reference(field: &FieldDescriptor) -> String {
    format!("#/$defs/{}", field.kind().as_message().unwrap().full_name())
}

fn described(description: String, mut schema: Value) -> Value {
    if !description.is_empty() {
        schema["description"] = json!(description);
    }
    schema
}

/// What ids of this field begin with: comments write it as `ses_…`.
pub fn prefix(description: &str) -> Option<&str> {
    let words = description.split('`').skip(1).step_by(2);
    words.filter_map(|word| word.strip_suffix('…')).find(|prefix| prefix.ends_with('_'))
}
