//! What can be wrong with a message.

use prost::Message as _;
use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MapKey, ReflectMessage as _, Value};
use tests::{Method, chaos::Dice};

/// How many kinds of damage there are.
pub const KINDS: usize = 8;

/// Deeper than any reader should follow.
const DEPTH: usize = 2_000;

/// More than any message may be, and less than would hurt whoever makes it: lists of long texts in lists
/// have no end.
const MOST: usize = 8 * 1024 * 1024;

/// Texts that somebody may trip over.
const TEXTS: &[&str] = &[
    "",
    " ",
    "\0",
    "a\0b",
    "\n",
    "\u{202e}\u{200b}\u{feff}",
    "🪢",
    "..",
    "../../../etc/passwd",
    "/",
    "//",
    "'; drop table session.event; --",
    "%s%n{}{{ 1 / 0 }}{% for a in b %}",
    "[[[[[[[[",
    "{\"a\":",
    "{\"a\": 1e999}",
    "null",
    "-1",
    "9223372036854775808",
    "NaN",
    "*/0 * * * *",
    "99 99 99 99 99",
    "http://[::1",
    "file:///etc/passwd",
    "ses_",
    "ses_00000000000000000000000000",
    "ses_zzzzzzzzzzzzzzzzzzzzzzzzzz",
    "wl_",
    "scripted/demo",
    "scripted/nobody",
    "#!script\nfail transient",
    "#!script\nnonsense",
];

/// The request with something done to it, as bytes.
pub fn done(dice: &mut Dice, kind: usize, method: &Method, request: &DynamicMessage) -> Vec<u8> {
    let mut bytes = request.encode_to_vec();
    match kind {
        0 => random(dice, 200),
        1..=3 => {
            let mut request = request.clone();
            for _ in 0..=dice.below(2) {
                change(dice, &mut request, 4);
            }
            request.encode_to_vec()
        }
        4 => {
            for _ in 0..=dice.below(4) {
                damage(dice, &mut bytes);
            }
            bytes
        }
        // Text that is none, or a number where a message should be.
        5 => {
            let fields: Vec<_> = method.input.fields().collect();
            let number = dice.choose(&fields).map_or(1, FieldDescriptor::number);
            let wire_type = dice.below(8) as u64;
            varint(&mut bytes, (u64::from(number) << 3) | wire_type);
            match wire_type {
                2 => {
                    let text = random(dice, 20);
                    varint(&mut bytes, text.len() as u64 + 1);
                    bytes.push(0xff);
                    bytes.extend(text);
                }
                _ => varint(&mut bytes, dice.roll()),
            }
            bytes
        }
        // A length that promises more than there is, or than fits.
        6 => {
            varint(&mut bytes, (1 << 3) | 2);
            varint(&mut bytes, dice.roll() >> dice.below(64));
            bytes
        }
        _ => nested(dice, method),
    }
}

/// Replaces something in the message, or in one inside of it.
fn change(dice: &mut Dice, message: &mut DynamicMessage, depth: usize) {
    let fields: Vec<_> = message.descriptor().fields().collect();
    let Some(field) = dice.choose(&fields).cloned() else { return };
    if field.is_map() {
        let text = Value::String(text(dice));
        let count = dice.below(300).min(MOST / size(&text));
        let entries = (0..count).map(|at| (MapKey::String(format!("{at}")), text.clone()));
        // Not every map is one of texts.
        let _ = message.try_set_field(&field, Value::Map(entries.collect()));
        return;
    }
    if field.is_list() {
        let count = [0, 1, 2, 50, 2_000][dice.below(5)];
        let value = value(dice, &field, depth);
        let count = count.min(MOST / size(&value));
        message.set_field(&field, Value::List(vec![value; count]));
        return;
    }
    if let Kind::Message(_) = field.kind()
        && depth > 0
        && dice.below(4) > 0
        && let Value::Message(nested) = message.get_field_mut(&field)
    {
        return change(dice, nested, depth - 1);
    }
    let value = value(dice, &field, depth);
    message.set_field(&field, value);
}

fn value(dice: &mut Dice, field: &FieldDescriptor, depth: usize) -> Value {
    let number = [0, 1, -1, i64::MAX, i64::MIN, i64::from(i32::MAX), 1 << 40, 65_537];
    let number = number[dice.below(number.len())];
    match field.kind() {
        Kind::String => Value::String(text(dice)),
        Kind::Bytes => Value::Bytes(random(dice, 70_000).into()),
        Kind::Bool => Value::Bool(dice.below(2) == 0),
        Kind::Enum(_) => Value::EnumNumber([0, 1, 2, 7, -1, i32::MAX][dice.below(6)]),
        Kind::Double => {
            Value::F64([0.0, -1.0, f64::NAN, f64::INFINITY, f64::MAX, 1e-320][dice.below(6)])
        }
        Kind::Float => Value::F32(f32::NAN),
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => Value::I32(number as i32),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => Value::I64(number),
        Kind::Uint32 | Kind::Fixed32 => Value::U32(number as u32),
        Kind::Uint64 | Kind::Fixed64 => Value::U64(number as u64),
        Kind::Message(nested) => {
            let mut message = DynamicMessage::new(nested);
            if depth > 0 && dice.below(2) == 0 {
                change(dice, &mut message, depth - 1);
            }
            Value::Message(message)
        }
    }
}

/// How much one of them takes, about.
fn size(value: &Value) -> usize {
    let own = match value {
        Value::String(text) => text.len(),
        Value::Bytes(bytes) => bytes.len(),
        Value::Message(message) => message.encoded_len(),
        _ => 0,
    };
    own + 10
}

fn text(dice: &mut Dice) -> String {
    match dice.below(6) {
        0 => "a".repeat([65, 201, 1_001, 70_000, 1 << 20][dice.below(5)]),
        1 => "{\"a\":".repeat(1 + dice.below(5_000)),
        2 => String::from_utf8_lossy(&random(dice, 100)).into_owned(),
        _ => dice.choose(TEXTS).map_or_else(String::new, |text| (*text).to_owned()),
    }
}

fn random(dice: &mut Dice, most: usize) -> Vec<u8> {
    (0..dice.below(most)).map(|_| dice.roll() as u8).collect()
}

fn damage(dice: &mut Dice, bytes: &mut Vec<u8>) {
    let at = dice.below(bytes.len() + 1);
    match dice.below(3) {
        0 => bytes.truncate(at),
        1 => bytes.insert(at, dice.roll() as u8),
        _ => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << dice.below(8);
            }
        }
    }
}

/// Messages in messages, by whichever way the request has to hold itself, or by none.
fn nested(dice: &mut Dice, method: &Method) -> Vec<u8> {
    let way: Vec<u32> = way_down(method);
    let mut bytes = Vec::new();
    for depth in 0..DEPTH {
        let number = match way.is_empty() {
            true => 1 + dice.below(10) as u32,
            // The innermost comes first.
            false => way[way.len() - 1 - depth],
        };
        let mut outer = Vec::new();
        varint(&mut outer, (u64::from(number) << 3) | 2);
        varint(&mut outer, bytes.len() as u64);
        outer.extend(bytes);
        bytes = outer;
    }
    bytes
}

/// The numbers of fields that lead through messages to one that can hold itself.
fn way_down(method: &Method) -> Vec<u32> {
    let mut ways = vec![(method.input.clone(), Vec::new())];
    while let Some((message, way)) = ways.pop() {
        if way.len() > 5 {
            continue;
        }
        for field in message.fields() {
            let Kind::Message(nested) = field.kind() else { continue };
            let mut way = way.clone();
            way.push(field.number());
            if nested == message {
                let mut deep = way.clone();
                deep.resize(DEPTH, field.number());
                return deep;
            }
            ways.push((nested, way));
        }
    }
    Vec::new()
}

fn varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}
