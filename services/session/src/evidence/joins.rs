//! Whether what a pack says beside its log is about the log.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use super::{facts::Fact, verify::Broken};
use crate::seal::{Digest, digest};

/// The events of a pack, by session and sequence.
#[derive(Debug, Default)]
pub struct Joins {
    events: HashMap<(String, i64), Known>,
    /// The session that entries without one are about.
    session: Option<String>,
    requests: HashMap<String, i64>,
    found: u64,
}

#[derive(Debug)]
struct Known {
    digest: Digest,
    event_id: String,
    r#type: String,
    tool_call_id: Option<String>,
}

/// What a line may say of an event.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Pointing<'a> {
    #[serde(borrow)]
    event: Option<&'a RawValue>,
    sequence: Option<i64>,
    session_id: Option<String>,
    event_id: Option<String>,
    r#type: Option<String>,
    started_sequence: Option<i64>,
    tool_call_id: Option<String>,
    #[serde(borrow)]
    request: Option<&'a RawValue>,
}

impl Joins {
    pub fn event(&mut self, fact: &Fact, digest: Digest) {
        self.session.get_or_insert_with(|| fact.session_id.clone());
        if let Some(id) = &fact.model_request_id {
            self.requests.entry(id.clone()).or_insert(fact.sequence);
        }
        let known = Known {
            digest,
            event_id: fact.event_id.clone(),
            r#type: fact.r#type.clone(),
            tool_call_id: fact.tool_call_id.clone(),
        };
        self.events.insert((fact.session_id.clone(), fact.sequence), known);
    }

    pub fn found(&self) -> u64 {
        self.found
    }

    /// Checks a line of any other section. Where a pack has no log there is nothing to join.
    pub fn line(&mut self, section: &str, data: &RawValue, place: Broken) -> Result<(), Broken> {
        if self.events.is_empty() {
            return Ok(());
        }
        let Ok(line) = serde_json::from_str::<Pointing<'_>>(data.get()) else { return Ok(()) };
        if let Some(event) = line.event {
            let fact: Fact = super::verify::read(event, &place)?;
            let place = Broken { sequence: Some(fact.sequence), ..place };
            let known = self.known(Some(&fact.session_id), fact.sequence, &place)?;
            if digest(event.get()).ok() != Some(known.digest) {
                let problem = "is not the event that the log has there".to_owned();
                return Err(Broken { field: Some("event".into()), problem, ..place });
            }
            self.found += 1;
            return Ok(());
        }
        if section == "model_requests"
            && let Some(request) = line.request
        {
            return self.request(request, line.sequence, place);
        }
        let Some(sequence) = line.sequence else { return Ok(()) };
        let place = Broken { sequence: Some(sequence), ..place };
        let session = line.session_id.as_deref();
        let known = self.known(session, sequence, &place)?;
        let wrong = |field: &str| {
            let problem = "is not that of the event in the log".to_owned();
            Err(Broken { field: Some(field.to_owned()), problem, ..place.clone() })
        };
        if line.event_id.is_some_and(|id| id != known.event_id) {
            return wrong("eventId");
        }
        if line.r#type.is_some_and(|name| name != known.r#type) {
            return wrong("type");
        }
        if line.tool_call_id.is_some() && line.tool_call_id != known.tool_call_id {
            return wrong("toolCallId");
        }
        if let Some(started) = line.started_sequence {
            let started = self.known(session, started, &place)?;
            if started.tool_call_id != line.tool_call_id {
                return wrong("startedSequence");
            }
        }
        self.found += 1;
        Ok(())
    }

    fn request(
        &mut self,
        request: &RawValue,
        sequence: Option<i64>,
        place: Broken,
    ) -> Result<(), Broken> {
        let row: Value = super::verify::read(request, &place)?;
        let id = row["modelRequestId"].as_str().unwrap_or_default();
        match sequence {
            Some(sequence) if self.requests.get(id) != Some(&sequence) => {
                let problem = format!("the event does not speak of {id}");
                Err(Broken {
                    sequence: Some(sequence),
                    field: Some("sequence".into()),
                    problem,
                    ..place
                })
            }
            Some(_) => {
                self.found += 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn known(
        &self,
        session: Option<&str>,
        sequence: i64,
        place: &Broken,
    ) -> Result<&Known, Broken> {
        let session = session.or(self.session.as_deref()).unwrap_or_default();
        self.events.get(&(session.to_owned(), sequence)).ok_or_else(|| Broken {
            field: Some("sequence".into()),
            problem: format!("the pack has no event {sequence} of {session}"),
            ..place.clone()
        })
    }
}

/// The sequence that a line is about, if it can be told.
pub fn sequence(data: &RawValue) -> Option<i64> {
    let data: Value = serde_json::from_str(data.get()).ok()?;
    let event = data.get("event").unwrap_or(&data);
    event.get("sequence").and_then(Value::as_i64)
}
