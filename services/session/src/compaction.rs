//! What the model can see of a conversation, and how its older part becomes a summary.
//! No I/O: the same messages give the same view on any replica.
//!
//! A compaction changes nothing that was said. It adds one message with one part, the
//! marker, and from then on the view begins with the marker's summary. Hide the marker and
//! everything is visible again.

mod ladder;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::{
    hook::Note,
    ids::{MessageId, TurnId},
    message::{Message, Part, Role, ToolUse},
    prompt, subagent,
    turn::Step,
};

pub use ladder::{Method, continued, pieces};

/// The type of the part that marks a compaction.
pub const KIND: &str = "data-compaction";

/// How many turns an automatic compaction keeps verbatim, the running one included.
const TAIL_TURNS: usize = 2;

/// And how much of what the model can take they may fill: one part in so many.
const TAIL_SHARE: i32 = 4;

/// Tool output that the model sees beyond that of the newest turns. What is older is left
/// out of its view, because it can be had again and rarely matters any more.
const OLD_OUTPUT_BYTES: usize = 160 * 1024;

/// Smaller outputs are not worth leaving out.
const SMALL_OUTPUT_BYTES: usize = 400;

/// `data-compaction`, as it is stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Marker {
    /// Markdown.
    pub summary: String,
    /// The first message that is kept verbatim; `None`: none is.
    pub tail_start_id: Option<MessageId>,
    /// Nobody asked for it.
    pub auto: bool,
    pub summary_tokens: i32,
}

impl Marker {
    pub fn part(&self) -> Part {
        Part::Data { kind: KIND.to_owned(), data: json!(self) }
    }

    /// The marker in a message, if it is one.
    pub fn of(parts: &[Part]) -> Option<Marker> {
        match parts.first()? {
            Part::Data { kind, data } if kind == KIND => serde_json::from_value(data.clone()).ok(),
            _ => None,
        }
    }
}

/// A message that the model can see.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Entry<'a> {
    pub id: MessageId,
    pub turn_id: TurnId,
    pub role: Role,
    pub parts: &'a [Part],
}

/// What the model can see.
#[derive(Debug, Clone, PartialEq)]
pub struct View<'a> {
    /// Of everything before the entries.
    pub summary: Option<String>,
    pub entries: Vec<Entry<'a>>,
}

/// Resolves what the model sees now: everything, or the last summary and what followed.
///
/// `history` is what came before the steps of the running turn, its user message included.
pub fn view<'a>(history: &'a [Message], turn_id: TurnId, steps: &'a [Step]) -> View<'a> {
    let said = history.iter().map(|message| {
        let Message { id, turn_id, role, .. } = *message;
        (Entry { id, turn_id, role, parts: &message.parts }, message.metadata.compact)
    });
    let done = steps.iter().map(|step| {
        let entry =
            Entry { id: step.message_id, turn_id, role: Role::Assistant, parts: &step.parts };
        (entry, false)
    });
    let all: Vec<_> = said.chain(done).collect();
    let hidden = hidden(&all);
    let last = all.iter().enumerate().rev();
    let last =
        last.filter_map(|(index, (entry, _))| Some((index, Marker::of(entry.parts)?))).next();

    let shown = |range: &[(Entry<'a>, bool)]| {
        let entries = range.iter().filter(|(entry, compact)| {
            // Requests to compact and older markers are no part of the conversation, and what
            // hooks refused never became one.
            !compact && Marker::of(entry.parts).is_none() && !hidden.contains(&entry.id)
        });
        entries.map(|(entry, _)| *entry).collect::<Vec<_>>()
    };
    let Some((at, marker)) = last else {
        return View { summary: None, entries: shown(&all) };
    };
    let tail = match marker.tail_start_id {
        None => at,
        // Where the tail is longer than what was loaded, all of that belongs to it.
        Some(id) => all[..at].iter().position(|(entry, _)| entry.id == id).unwrap_or(0),
    };
    // Whatever was summarized, the model is still to do what this turn asks for.
    let asked = all[..tail]
        .iter()
        .rposition(|(entry, _)| entry.role == Role::User && entry.turn_id == all[at].0.turn_id);
    let mut entries = asked.map(|asked| shown(&all[asked..=asked])).unwrap_or_default();
    entries.extend(shown(&all[tail..]));
    View { summary: Some(marker.summary), entries }
}

/// The messages that hooks refused, and what says so.
fn hidden(all: &[(Entry<'_>, bool)]) -> Vec<MessageId> {
    let (mut hidden, mut asked) = (Vec::new(), None);
    for (entry, _) in all {
        match entry.role {
            Role::User => asked = Some(entry.id),
            Role::Assistant => {
                if Note::of(entry.parts).is_some_and(|note| note.hides_the_message()) {
                    hidden.extend(asked);
                    hidden.push(entry.id);
                }
            }
        }
    }
    hidden
}

impl<'a> View<'a> {
    /// Whether the tool outputs of each entry are left out.
    pub fn pruned(&self) -> Vec<bool> {
        let mut turns: Vec<TurnId> = Vec::new();
        let mut bytes = 0;
        let mut pruned = vec![false; self.entries.len()];
        for (entry, pruned) in self.entries.iter().zip(&mut pruned).rev() {
            if turns.last() != Some(&entry.turn_id) {
                turns.push(entry.turn_id);
            }
            if turns.len() > TAIL_TURNS {
                bytes += entry.tools().map(output_bytes).sum::<usize>();
                *pruned = bytes > OLD_OUTPUT_BYTES;
            }
        }
        pruned
    }

    /// Roughly how many tokens the model reads of it.
    pub fn tokens(&self) -> i32 {
        let summary = self.summary.as_ref().map_or(0, String::len);
        prompt::tokens(summary + self.entries.iter().map(Entry::bytes).sum::<usize>())
    }
}

impl<'a> Entry<'a> {
    pub fn tools(&self) -> impl Iterator<Item = &'a ToolUse> + use<'a> {
        self.parts.iter().filter_map(|part| match part {
            Part::Tool(tool_use) => Some(tool_use),
            _ => None,
        })
    }

    fn bytes(&self) -> usize {
        let bytes = self.parts.iter().map(|part| match part {
            Part::Text(text) | Part::Reasoning(text) => text.text.len(),
            Part::Tool(tool_use) => {
                tool_use.tool.len() + tool_use.input_json.len() + output_bytes(tool_use)
            }
            Part::File(file) => file.name.len() + file.reference.len(),
            Part::Data { .. } => 0,
        });
        let note = told(self.parts).map_or(0, |told| told.len());
        note + bytes.sum::<usize>()
    }
}

/// What the model reads of a message that no model wrote: what hooks left, and how children
/// ended.
pub fn told(parts: &[Part]) -> Option<String> {
    let hook = Note::of(parts).map(|note| note.told());
    hook.or_else(|| subagent::Note::of(parts).map(|note| note.told()))
}

fn output_bytes(tool_use: &ToolUse) -> usize {
    tool_use.output_json.as_ref().or(tool_use.error_text.as_ref()).map_or(0, String::len)
}

/// What stands in the place of an output that is left out.
pub fn left_out(tool_use: &ToolUse) -> Option<String> {
    let bytes = output_bytes(tool_use);
    (bytes > SMALL_OUTPUT_BYTES).then(|| {
        let stored = match tool_use.metadata.as_ref().map(|metadata| &metadata.output_path) {
            Some(path) if !path.is_empty() => format!("; all of it is at {path}"),
            _ => String::new(),
        };
        format!("[an old output of {bytes} bytes, left out{stored}]")
    })
}

/// What a compaction summarizes and what it keeps.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan<'a> {
    pub head: Vec<Entry<'a>>,
    pub tail_start_id: Option<MessageId>,
    /// Of the summarized turns, in order.
    pub turn_ids: Vec<TurnId>,
    /// What is stored outside of the conversation and stays reachable.
    pub evidence_refs: Vec<String>,
}

/// How many of them are named.
const MOST_REFS: usize = 100;

/// Decides where the summary ends. `turn_id` is the running turn, whose message the model
/// goes on to see; `usable_tokens` is what the model can take. `None`: there is nothing
/// that a summary would make smaller.
pub fn plan<'a>(
    view: &View<'a>,
    turn_id: TurnId,
    usable_tokens: i32,
    automatic: bool,
) -> Option<Plan<'a>> {
    let entries = &view.entries;
    let start = match automatic {
        true => tail(entries, usable_tokens / TAIL_SHARE),
        false => entries.len(),
    };
    let head = entries[..start].iter().copied();
    let head: Vec<_> = head
        .filter(|entry| !automatic || entry.role == Role::Assistant || entry.turn_id != turn_id)
        .collect();
    if head.is_empty() {
        return None;
    }
    let mut turn_ids: Vec<TurnId> = head.iter().map(|entry| entry.turn_id).collect();
    turn_ids.dedup();
    let refs = head.iter().flat_map(|entry| entry.tools());
    let refs = refs.filter_map(|tool_use| Some(&tool_use.metadata.as_ref()?.output_ref));
    let mut evidence_refs: Vec<_> = refs.filter(|text| !text.is_empty()).cloned().collect();
    evidence_refs.reverse();
    evidence_refs.truncate(MOST_REFS);
    let tail_start_id = entries.get(start).map(|entry| entry.id);
    Some(Plan { head, tail_start_id, turn_ids, evidence_refs })
}

/// Where the verbatim tail begins: at a turn if one fits, else at a step of the last turn.
fn tail(entries: &[Entry<'_>], budget: i32) -> usize {
    let (mut bytes, mut turns) = (0, 0);
    let mut start = None;
    let mut step = entries.len();
    for (index, entry) in entries.iter().enumerate().rev() {
        bytes += entry.bytes();
        if prompt::tokens(bytes) > budget {
            break;
        }
        match entry.role {
            Role::User => {
                start = Some(index);
                turns += 1;
                if turns == TAIL_TURNS {
                    break;
                }
            }
            Role::Assistant if turns == 0 => step = index,
            Role::Assistant => {}
        }
    }
    start.unwrap_or(step)
}
