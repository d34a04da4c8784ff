//! Payloads survive JSON: it is how they are stored.

use prost_reflect::{DynamicMessage, FieldDescriptor, Value};
use proto::event::v1::{EVENT_NAMES, Event, Payload, SCHEMA_VERSION};

use crate::{comments::CONTRACTS, filled::filled, schema};

/// Events of every type, first with an empty payload and then with a full one.
pub fn events() -> impl Iterator<Item = Event> {
    let envelope = filled(&CONTRACTS.get_message_by_name("windlass.event.v1.Event").unwrap());
    schema::payloads().into_iter().flat_map(move |field| {
        let payload = field.kind().as_message().unwrap().clone();
        let payloads = [DynamicMessage::new(payload.clone()), filled(&payload)];
        payloads.map(|payload| event(envelope.clone(), &field, payload))
    })
}

fn event(mut event: DynamicMessage, field: &FieldDescriptor, payload: DynamicMessage) -> Event {
    event.set_field(field, Value::Message(payload));
    let event: Event = event.transcode_to().unwrap();
    Event { r#type: schema::name(field), schema_version: SCHEMA_VERSION.into(), ..event }
}

#[test]
fn every_payload_is_read_back_as_it_was_written() {
    let mut names = Vec::new();
    for event in events() {
        let payload = event.payload.unwrap();
        assert_eq!(payload.name(), event.r#type);
        let json = payload.to_json().unwrap();
        let read = Payload::from_json(payload.name(), &json).unwrap();
        assert_eq!(read, Some(payload), "{json}");
        names.push(event.r#type);
    }
    names.dedup();
    assert_eq!(names, EVENT_NAMES);
}

#[test]
fn what_a_newer_server_wrote_is_read_as_far_as_it_is_known() {
    let json = r#"{ "text": "hello", "moonPhase": { "waxing": true } }"#;
    let Some(Payload::ModelDelta(delta)) = Payload::from_json("model.delta", json).unwrap() else {
        panic!("another payload");
    };
    assert_eq!(delta.text, "hello");
    assert_eq!(Payload::from_json("moon.rose", json).unwrap(), None);
}
