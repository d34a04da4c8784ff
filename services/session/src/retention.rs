//! What becomes of old deltas. No I/O.

use std::collections::BTreeMap;

use serde_json::{Value, value::RawValue};

use crate::{
    error::Result,
    seal::{digest, hex},
    store::{
        events::{FIRST, Row},
        seals::Joined,
    },
};

/// A joined event stays readable in one piece.
const MOST: usize = 256 * 1024;

/// Joins the deltas of one thing that stand directly behind each other: what is left is in the
/// place of the last, says what all of them said, and names the first. Others may
/// have written in between; such deltas stay apart, or a cursor would not know on which side it is.
pub fn join(rows: &[Row]) -> Result<Vec<Joined>> {
    let mut joined = Vec::new();
    let mut run: Option<Run> = None;
    for row in rows {
        let delta = delta(row)?;
        match (&mut run, delta) {
            (Some(run), Some((text, rest))) if run.takes(row, &text, &rest) => {
                run.text.push_str(&text);
                run.last = row;
            }
            (_, delta) => {
                joined.extend(run.take().map(Run::close).transpose()?.flatten());
                run = delta.map(|(text, rest)| Run { first: row, last: row, text, rest });
            }
        }
    }
    joined.extend(run.map(Run::close).transpose()?.flatten());
    Ok(joined)
}

struct Run<'a> {
    first: &'a Row,
    last: &'a Row,
    text: String,
    /// The payload without its text.
    rest: Value,
}

impl Run<'_> {
    fn takes(&self, row: &Row, text: &str, rest: &Value) -> bool {
        let last = self.last;
        row.seq == last.seq + 1
            && row.r#type == last.r#type
            && (&row.turn_id, &row.step_id, &row.tool_call_id)
                == (&last.turn_id, &last.step_id, &last.tool_call_id)
            && *rest == self.rest
            && self.text.len() + text.len() <= MOST
    }

    /// What is left of the run, unless it was a single event.
    fn close(self) -> Result<Option<Joined>> {
        if self.first.seq == self.last.seq {
            return Ok(None);
        }
        let mut payload = self.rest;
        payload["text"] = Value::String(self.text);
        let refs = BTreeMap::from([(FIRST.to_owned(), self.first.seq.to_string())]);
        let left = self.last.saying(RawValue::from_string(payload.to_string())?, refs.clone());
        Ok(Some(Joined {
            first: self.first.seq,
            through: self.last.seq,
            payload,
            refs: serde_json::json!(refs),
            digest: hex(&digest(left.into_envelope()?.get())?),
        }))
    }
}

/// The text of a delta, and what else it says.
fn delta(row: &Row) -> Result<Option<(String, Value)>> {
    const DELTAS: [&str; 3] = ["model.delta", "reasoning.delta", "tool.progress"];
    if !DELTAS.contains(&row.r#type.as_str())
        || row.refs.as_ref().is_some_and(|refs| !refs.is_empty())
    {
        return Ok(None);
    }
    let mut payload: Value = serde_json::from_str(row.payload.get())?;
    let text = payload.as_object_mut().and_then(|fields| fields.remove("text"));
    Ok(match text {
        Some(Value::String(text)) => Some((text, payload)),
        _ => None,
    })
}
