//! A session as JSON lines: what an export writes and an import believes. No I/O.

use std::collections::HashSet;

use jiff::{SignedDuration, Timestamp};
use proto::session::v1::TurnView;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json, value::RawValue};

use crate::{
    agent,
    ids::{MessageId, PartId, SessionId, TurnId},
    message::{Metadata, Part, Role, ToolState},
    seal::{self, Digest, Seal},
};

/// The version of the lines.
pub const VERSION: u32 = 1;

/// How much an import may hold.
pub const MAX_LINE: usize = 16 * 1024 * 1024;
pub const MAX_BYTES: usize = 1024 * 1024 * 1024;
const MAX_MESSAGES: usize = 1_000_000;
const MAX_PARTS: usize = 10_000;

/// How many values a line may have: in memory each takes many times as much as in the line.
const MAX_VALUES: usize = 200_000;
const MAX_METADATA: usize = 64 * 1024;

/// Imported messages stand before everything that the session says itself, whose places are
/// the sequences of its own log.
const BEFORE_ALL: i64 = -(1 << 40);

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Line {
    Session { version: u32, session: SessionLine },
    Message { message: Box<MessageLine> },
    Event { event: Box<RawValue> },
    Seal { seal: Seal },
}

/// A line before it is known what kind it is. Unlike an enum it keeps the text, over which
/// digests are made.
#[derive(Debug, Deserialize)]
struct Unread<'a> {
    r#type: String,
    #[serde(default)]
    version: u32,
    #[serde(borrow)]
    session: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    #[serde(borrow)]
    event: Option<&'a RawValue>,
    #[serde(borrow)]
    seal: Option<&'a RawValue>,
}

fn read<'a, T: Deserialize<'a>>(json: &'a RawValue) -> Result<T, String> {
    serde_json::from_str(json.get()).map_err(|error| format!("is not a line of an export: {error}"))
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionLine {
    pub session_id: SessionId,
    pub title: String,
    pub agent: String,
    pub subject: String,
    pub status: String,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub metadata: Value,
    pub input_tokens: i64,
    pub output_tokens: i64,
    pub cost_micros: i64,
    pub model_calls: i64,
    /// Where the log begins and ends.
    pub first_sequence: i64,
    pub last_sequence: i64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MessageLine {
    pub message_id: MessageId,
    pub turn_id: TurnId,
    pub role: Role,
    pub status: String,
    #[serde(default)]
    pub synthetic: bool,
    pub created_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hidden_at: Option<Timestamp>,
    pub metadata: Value,
    pub parts: Vec<PartLine>,
    /// With the message that asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnLine>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PartLine {
    pub part_id: PartId,
    pub index: i32,
    pub r#type: String,
    pub data: Value,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TurnLine {
    pub turn_id: TurnId,
    pub status: String,
    pub subject: String,
    pub submitted_at: Timestamp,
    pub view: TurnView,
}

/// A message that may be stored.
#[derive(Debug, Serialize)]
pub struct MessageRow {
    id: MessageId,
    role: Role,
    turn_id: TurnId,
    position: i64,
    status: String,
    synthetic: bool,
    metadata: Value,
    created_at: Timestamp,
    hidden_at: Option<Timestamp>,
    parts: Vec<PartRow>,
}

#[derive(Debug, Serialize)]
struct PartRow {
    index: i32,
    id: PartId,
    r#type: String,
    data: Value,
}

/// A turn that may be stored.
#[derive(Debug, Serialize)]
pub struct TurnRow {
    id: TurnId,
    message_id: MessageId,
    status: String,
    view: TurnView,
    subject: String,
    submitted_at: Timestamp,
}

/// What one line of an import asks for.
#[derive(Debug)]
pub enum Step {
    Begin(Box<SessionLine>),
    Store(Box<MessageRow>, Option<Box<TurnRow>>),
    /// It was checked, and nothing of it is kept.
    Checked,
}

/// Reads an import line by line and believes nothing.
#[derive(Debug)]
pub struct Import {
    now: Timestamp,
    session: Option<(SessionId, i64)>,
    messages: HashSet<MessageId>,
    turns: HashSet<TurnId>,
    /// The last seal, and the events behind it.
    seal: Option<Seal>,
    events: Vec<(i64, Digest)>,
}

impl Import {
    pub fn new(now: Timestamp) -> Import {
        Import {
            now,
            session: None,
            messages: HashSet::new(),
            turns: HashSet::new(),
            seal: None,
            events: vec![],
        }
    }

    pub fn messages(&self) -> usize {
        self.messages.len()
    }

    pub fn seals(&self) -> i32 {
        self.seal.as_ref().map_or(0, |seal| seal.number)
    }

    /// Checks the next line. What is wrong with it is said in words.
    pub fn line(&mut self, text: &[u8]) -> Result<Step, String> {
        if values(text) > MAX_VALUES {
            return Err(format!("at most {MAX_VALUES} values in a line"));
        }
        let line: Unread<'_> = serde_json::from_slice(text)
            .map_err(|error| format!("is not a line of an export: {error}"))?;
        let Some((id, first)) = self.session else {
            let ("session", Some(session)) = (line.r#type.as_str(), line.session) else {
                return Err("the first line must be the session line".into());
            };
            if line.version != VERSION {
                return Err(format!("the version is {}, expected {VERSION}", line.version));
            }
            let session = self.session_line(read(session)?)?;
            self.session = Some((session.session_id, session.first_sequence));
            return Ok(Step::Begin(Box::new(session)));
        };
        match (line.r#type.as_str(), line.message, line.event, line.seal) {
            ("message", Some(message), None, None) => {
                let (message, turn) = self.message(read(message)?)?;
                Ok(Step::Store(Box::new(message), turn.map(Box::new)))
            }
            ("event", None, Some(event), None) => self.event(event, id),
            ("seal", None, None, Some(seal)) => self.seal(read(seal)?, id, first),
            ("session", ..) => Err("a second session line".into()),
            (kind, ..) => Err(format!("a line of the unknown type {kind:?}")),
        }
    }

    fn session_line(&self, line: SessionLine) -> Result<SessionLine, String> {
        if line.title.chars().count() > 200 {
            return Err("title: at most 200 characters".into());
        }
        if !agent::is_id(&line.agent) {
            return Err("agent: expected 1 to 64 characters of a-z, 0-9 and -".into());
        }
        if !line.metadata.is_object() || line.metadata.to_string().len() > MAX_METADATA {
            return Err("metadata: expected an object of at most 64 KiB".into());
        }
        let sums = [line.input_tokens, line.output_tokens, line.cost_micros, line.model_calls];
        if sums.iter().any(|sum| *sum < 0) {
            return Err("a sum is negative".into());
        }
        no_nul_in(&line.title)?;
        no_nul(&line.metadata)?;
        Ok(line)
    }

    fn message(&mut self, line: MessageLine) -> Result<(MessageRow, Option<TurnRow>), String> {
        if !self.messages.insert(line.message_id) {
            return Err(format!("message {} is there twice", line.message_id));
        }
        if self.messages.len() > MAX_MESSAGES {
            return Err(format!("at most {MAX_MESSAGES} messages"));
        }
        self.moment("createdAt", line.created_at)?;
        line.hidden_at.map_or(Ok(()), |at| self.moment("hiddenAt", at))?;
        let metadata = metadata(line.metadata)?;
        if line.parts.len() > MAX_PARTS {
            return Err(format!("at most {MAX_PARTS} parts"));
        }
        let parts = line.parts.into_iter().zip(0..).map(|(line, index)| part(line, index));
        let row = MessageRow {
            id: line.message_id,
            role: line.role,
            turn_id: line.turn_id,
            position: BEFORE_ALL + self.messages.len() as i64,
            status: match (line.role, line.status.as_str()) {
                (Role::User, "accepted") => line.status,
                (_, "completed" | "failed" | "cancelled") => line.status,
                (_, "queued" | "accepted" | "streaming") => "cancelled".into(),
                (_, status) => return Err(format!("unknown status {status:?}")),
            },
            synthetic: line.synthetic,
            metadata,
            created_at: line.created_at,
            hidden_at: line.hidden_at,
            parts: parts.collect::<Result<_, _>>()?,
        };
        let turn = line.turn.map(|turn| self.turn(turn, row.id)).transpose()?;
        Ok((row, turn))
    }

    fn turn(&mut self, line: TurnLine, message_id: MessageId) -> Result<TurnRow, String> {
        if !self.turns.insert(line.turn_id) {
            return Err(format!("turn {} is there twice", line.turn_id));
        }
        self.moment("submittedAt", line.submitted_at)?;
        if line.subject.len() > 500 {
            return Err("subject: at most 500 bytes".into());
        }
        let mut view = line.view;
        let status = match line.status.as_str() {
            "completed" | "failed" | "cancelled" => line.status,
            "queued" | "accepted" | "running" | "waiting" => {
                view.status = "cancelled".into();
                view.status_reason = STOPPED.into();
                "cancelled".into()
            }
            status => return Err(format!("unknown status {status:?} of a turn")),
        };
        let row = TurnRow {
            id: line.turn_id,
            message_id,
            status,
            view,
            subject: line.subject,
            submitted_at: line.submitted_at,
        };
        no_nul(&json!(row))?;
        Ok(row)
    }

    fn event(&mut self, event: &RawValue, id: SessionId) -> Result<Step, String> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Head {
            session_id: SessionId,
            sequence: i64,
        }
        let Head { session_id, sequence } = read(event)?;
        if session_id != id {
            return Err("an event of another session".into());
        }
        let after = self.events.last().map(|(sequence, _)| *sequence);
        let after = after.or(self.seal.as_ref().map(|seal| seal.through_sequence)).unwrap_or(0);
        if sequence <= after {
            return Err(format!("event {sequence} follows {after}"));
        }
        if self.events.len() as i64 > MAX_UNSEALED {
            return Err(format!("more than {MAX_UNSEALED} events without a seal"));
        }
        let digest = seal::digest(event.get()).map_err(|error| error.to_string())?;
        self.events.push((sequence, digest));
        Ok(Step::Checked)
    }

    fn seal(&mut self, seal: Seal, id: SessionId, first: i64) -> Result<Step, String> {
        if seal.session_id != id.to_string() {
            return Err("a seal of another session".into());
        }
        let events = std::mem::take(&mut self.events);
        seal.check(self.seal.as_ref(), &events, first).map_err(|broken| broken.problem)?;
        self.seal = Some(seal);
        Ok(Step::Checked)
    }

    /// A moment that Postgres can hold and that has been.
    fn moment(&self, field: &str, at: Timestamp) -> Result<(), String> {
        let latest = self.now.saturating_add(SignedDuration::from_hours(24)).unwrap_or(self.now);
        match Timestamp::UNIX_EPOCH <= at && at <= latest {
            true => Ok(()),
            false => Err(format!("{field}: expected a time between 1970 and now")),
        }
    }
}

/// Seals come every so many events; a running turn has some that are not sealed yet.
const MAX_UNSEALED: i64 = 1_000_000;

/// What is said of what still ran.
const STOPPED: &str = "the session was exported while this ran";

/// What is kept with a message: what we know, and what the caller wanted kept.
fn metadata(value: Value) -> Result<Value, String> {
    let metadata: Metadata =
        serde_json::from_value(value).map_err(|error| format!("metadata: {error}"))?;
    let value = json!(Metadata { queued_at: None, ..metadata });
    if value.to_string().len() > MAX_METADATA {
        return Err("metadata: at most 64 KiB".into());
    }
    no_nul(&value)?;
    Ok(value)
}

fn part(line: PartLine, index: i32) -> Result<PartRow, String> {
    if line.index != index {
        return Err(format!("part {index} has the index {}", line.index));
    }
    let kind = line.r#type.as_str();
    let known = matches!(kind, "text" | "reasoning" | "file")
        || kind.starts_with("tool-")
        || kind.starts_with("data-");
    if !known || kind.len() > 200 {
        return Err(format!("unknown type {kind:?} of part {index}"));
    }
    no_nul_in(kind)?;
    no_nul(&line.data)?;
    let mut part =
        Part::from_row(kind, line.data).map_err(|error| format!("part {index}: {error}"))?;
    // Nothing of an import runs.
    match &mut part {
        Part::Text(text) | Part::Reasoning(text) => text.streaming = false,
        Part::Tool(tool_use) if !tool_use.state.is_over() => {
            tool_use.state = ToolState::OutputError;
            tool_use.error_text = Some(STOPPED.into());
        }
        Part::Tool(_) | Part::File(_) | Part::Data { .. } => {}
    }
    Ok(PartRow { index, id: line.part_id, r#type: part.kind(), data: part.data() })
}

/// How many values a line has, at most, before anybody reads it.
fn values(text: &[u8]) -> usize {
    let (mut count, mut quoted, mut escaped) = (1, false, false);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = quoted,
            b'"' => quoted = !quoted,
            b',' | b'[' | b'{' if !quoted => count += 1,
            _ => (),
        }
    }
    count
}

fn no_nul_in(text: &str) -> Result<(), String> {
    match text.contains('\0') {
        true => Err("must not contain NUL".into()),
        false => Ok(()),
    }
}

/// Postgres stores no NUL.
fn no_nul(value: &Value) -> Result<(), String> {
    match value {
        Value::String(text) => no_nul_in(text),
        Value::Array(values) => values.iter().try_for_each(no_nul),
        Value::Object(fields) => fields.iter().try_for_each(|(name, value)| {
            no_nul_in(name)?;
            no_nul(value)
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_many_values_is_refused_before_it_is_read() {
        let mut import = Import::new(Timestamp::UNIX_EPOCH);
        let line = format!("[{}0]", "0,".repeat(MAX_VALUES));
        let problem = import.line(line.as_bytes()).unwrap_err();
        assert_eq!(problem, "at most 200000 values in a line");

        // What stands in a text is text.
        assert_eq!(values(br#"{"a": "\\\",,,[[{{", "b": [1, {}]}"#), 6);
    }
}
