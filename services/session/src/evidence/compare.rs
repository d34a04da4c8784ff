//! What differs between a turn and its replay. No I/O.

use super::facts::cut;
use crate::{
    message::{Part, ToolUse},
    turn::Step,
};

/// How many differences are told.
pub const MOST: usize = 1000;

/// How much of a text a difference shows, in characters.
const BRIEF: usize = 160;

/// A turn that is over.
#[derive(Debug, Clone)]
pub struct Past {
    pub status: String,
    pub reason: String,
    pub agent: String,
    pub agent_version: i32,
    pub steps: Vec<Step>,
}

/// What is compared.
#[derive(Debug, Clone, Copy)]
pub struct Shown {
    /// The model was asked again, and so it may have cost something else.
    pub asked_again: bool,
}

/// One line per difference, in the order of the turn.
pub fn differences(recorded: &Past, replayed: &Past, shown: Shown) -> Vec<String> {
    let mut found = Found(Vec::new());
    let agent = |past: &Past| format!("{} (version {})", past.agent, past.agent_version);
    found.compare("turn, agent", &agent(recorded), &agent(replayed));
    let steps = recorded.steps.len().max(replayed.steps.len());
    for number in 0..steps {
        let place = format!("step {}", number + 1);
        match (recorded.steps.get(number), replayed.steps.get(number)) {
            (Some(one), Some(other)) => step(&mut found, &place, one, other, shown),
            (Some(_), None) => found.add(format!("{place}: only in the record")),
            (None, Some(_)) => found.add(format!("{place}: only in the replay")),
            (None, None) => {}
        }
    }
    found.compare("turn, status", &recorded.status, &replayed.status);
    found.compare("turn, reason", &recorded.reason, &replayed.reason);
    found.0
}

fn step(found: &mut Found, place: &str, one: &Step, other: &Step, shown: Shown) {
    let (told, tells) = (&one.metadata, &other.metadata);
    let name = |what: &str| format!("{place}, {what}");
    found.compare(&name("status"), one.status.as_str(), other.status.as_str());
    found.options(&name("prompt"), &told.prompt_digest, &tells.prompt_digest);
    found.options(&name("tools"), &told.catalog_digest, &tells.catalog_digest);
    found.options(&name("model"), &told.model, &tells.model);
    for index in 0..one.parts.len().max(other.parts.len()) {
        let place = name(&format!("part {}", index + 1));
        match (one.parts.get(index), other.parts.get(index)) {
            (Some(one), Some(other)) => part(found, &place, one, other),
            (Some(part), None) => {
                found.add(format!("{place} ({}): only in the record", part.kind()))
            }
            (None, Some(part)) => {
                found.add(format!("{place} ({}): only in the replay", part.kind()))
            }
            (None, None) => {}
        }
    }
    found.options(&name("finish reason"), &told.finish_reason, &tells.finish_reason);
    if shown.asked_again {
        let usage = |usage: &Option<proto::event::v1::Usage>| {
            usage.map(|usage| {
            let proto::event::v1::Usage { input, output, reasoning, cache_read, cache_write } = usage;
            format!("input {input}, output {output}, reasoning {reasoning}, cache {cache_read}/{cache_write}")
        })
        };
        found.options(&name("usage"), &usage(&told.usage), &usage(&tells.usage));
        let cost = |cost: Option<i64>| cost.map(|cost| cost.to_string());
        found.options(&name("cost"), &cost(told.cost_micros), &cost(tells.cost_micros));
    }
}

fn part(found: &mut Found, place: &str, one: &Part, other: &Part) {
    match (one, other) {
        (Part::Text(one), Part::Text(other)) => {
            found.compare(&format!("{place} (text)"), &one.text, &other.text);
        }
        (Part::Reasoning(one), Part::Reasoning(other)) => {
            found.compare(&format!("{place} (reasoning)"), &one.text, &other.text);
        }
        (Part::Tool(one), Part::Tool(other)) if one.tool == other.tool => {
            call(found, &format!("{place} ({})", one.tool), one, other);
        }
        (one, other) if one.kind() != other.kind() => {
            found.compare(&format!("{place}, kind"), &one.kind(), &other.kind());
        }
        (one, other) => {
            let place = format!("{place} ({})", one.kind());
            found.compare(&place, &one.data().to_string(), &other.data().to_string());
        }
    }
}

fn call(found: &mut Found, place: &str, one: &ToolUse, other: &ToolUse) {
    let name = |what: &str| format!("{place}, {what}");
    found.compare(&name("input"), &one.input_json, &other.input_json);
    found.compare(&name("state"), one.state.as_str(), other.state.as_str());
    found.options(&name("output"), &one.output_json, &other.output_json);
    found.options(&name("error"), &one.error_text, &other.error_text);
}

struct Found(Vec<String>);

impl Found {
    fn add(&mut self, difference: String) {
        match self.0.len() {
            len if len + 1 < MOST => self.0.push(difference),
            len if len + 1 == MOST => self.0.push("there are more differences".to_owned()),
            _ => {}
        }
    }

    fn compare(&mut self, place: &str, one: &str, other: &str) {
        if one != other {
            let (one, other) = apart(one, other);
            self.add(format!("{place}: recorded {one:?}, replayed {other:?}"));
        }
    }

    fn options(&mut self, place: &str, one: &Option<String>, other: &Option<String>) {
        match (one, other) {
            (Some(one), Some(other)) => self.compare(place, one, other),
            (None, None) => {}
            (Some(one), None) => {
                self.add(format!("{place}: recorded {:?}, replayed nothing", cut(one, BRIEF)));
            }
            (None, Some(other)) => {
                self.add(format!("{place}: recorded nothing, replayed {:?}", cut(other, BRIEF)));
            }
        }
    }
}

/// Two texts from shortly before they begin to differ.
fn apart(one: &str, other: &str) -> (String, String) {
    let same = one.chars().zip(other.chars()).take_while(|(one, other)| one == other).count();
    let skip = if same > BRIEF / 2 { same - BRIEF / 4 } else { 0 };
    let from = |text: &str| {
        let rest: String = text.chars().skip(skip).take(BRIEF + 1).collect();
        match skip {
            0 => cut(&rest, BRIEF),
            _ => format!("…{}", cut(&rest, BRIEF)),
        }
    };
    (from(one), from(other))
}
