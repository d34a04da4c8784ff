//! Messages in which every field is set, and set to something awkward.

use std::collections::HashMap;

use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, Value};

use crate::{comments::comment, schema};

pub fn filled(message: &MessageDescriptor) -> DynamicMessage {
    let mut filled = DynamicMessage::new(message.clone());
    for field in message.fields() {
        filled.set_field(&field, some(&field));
    }
    filled
}

fn some(field: &FieldDescriptor) -> Value {
    if field.is_map() {
        let value = field.kind().as_message().unwrap().map_entry_value_field();
        Value::Map(HashMap::from([(MapKey::String("a \"key\"".into()), one(&value))]))
    } else if field.is_list() {
        Value::List(vec![one(field), one(field)])
    } else {
        one(field)
    }
}

fn one(field: &FieldDescriptor) -> Value {
    match field.kind() {
        Kind::String => {
            let comment = comment(&field.parent_file(), field.path());
            Value::String(format!("{}\"ü\"\n\u{0}😀", schema::prefix(&comment).unwrap_or_default()))
        }
        Kind::Bool => Value::Bool(true),
        Kind::Double => Value::F64(-0.1),
        Kind::Int32 => Value::I32(i32::MIN),
        Kind::Int64 => Value::I64(i64::MAX),
        Kind::Enum(values) => Value::EnumNumber(values.values().last().unwrap().number()),
        Kind::Message(held) if held.full_name() == "google.protobuf.Timestamp" => {
            let mut time = DynamicMessage::new(held);
            time.set_field_by_name("seconds", Value::I64(1_767_225_599));
            time.set_field_by_name("nanos", Value::I32(999_999_999));
            Value::Message(time)
        }
        Kind::Message(held) => Value::Message(filled(&held)),
        other => panic!("{} is {other:?}: say here how to fill it", field.full_name()),
    }
}
