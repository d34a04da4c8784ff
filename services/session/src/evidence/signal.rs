//! What a pack has of each kind of fact, and why not where it has not.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::{Deserialize, Serialize};

use super::facts::Fact;

/// How many ids of requests are remembered to be compared with the request log.
const MOST_REQUESTS: usize = 100_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It is in the pack.
    Exported,
    /// There was nothing of this kind.
    NotApplicable,
    /// This version cannot export it.
    Unsupported,
    /// There should be something, and it cannot be found or joined.
    MissingCorrelation,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Signal {
    pub signal: String,
    pub state: State,
    /// How many there are.
    pub count: u64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

impl Signal {
    pub fn new(signal: &str, state: State, count: u64, reason: impl Into<String>) -> Signal {
        Signal { signal: signal.to_owned(), state, count, reason: reason.into() }
    }

    /// Exported if there is some.
    pub fn of(signal: &str, count: u64, otherwise: &str) -> Signal {
        match count {
            0 => Signal::new(signal, State::NotApplicable, 0, otherwise),
            count => Signal::new(signal, State::Exported, count, ""),
        }
    }

    /// Not whole, if some are missing.
    pub fn unless_missing(self, missing: u64, what: &str) -> Signal {
        match missing {
            0 => self,
            missing => Signal {
                state: State::MissingCorrelation,
                reason: format!("{missing} {what}"),
                ..self
            },
        }
    }
}

/// What is noticed while events go by.
#[derive(Debug, Default)]
pub struct Tally {
    pub events: u64,
    types: BTreeMap<String, u64>,
    pub references: BTreeMap<String, u64>,
    /// Calls that somebody may have decided about, and are under way.
    evaluated: HashSet<String>,
    /// Calls that have a result and nobody's permission.
    pub unpermitted: u64,
    /// Requests to models that are told of, and where first.
    pub requests: HashMap<String, i64>,
    /// Those that the cost of is told: a provider was asked, so the request log has them.
    charged_requests: HashSet<String>,
    answered: u64,
    charged: u64,
    /// A model was asked, and routing is still to be told.
    asked: bool,
    unrouted: u64,
}

impl Tally {
    pub fn note(&mut self, fact: &Fact) {
        self.events += 1;
        *self.types.entry(fact.r#type.clone()).or_default() += 1;
        if let Some(id) = &fact.model_request_id
            && self.requests.len() < MOST_REQUESTS
        {
            self.requests.entry(id.clone()).or_insert(fact.sequence);
        }
        match (fact.r#type.as_str(), &fact.tool_call_id) {
            ("permission.evaluated", Some(id)) => drop(self.evaluated.insert(id.clone())),
            ("tool.result", Some(id)) if !self.evaluated.remove(id) => self.unpermitted += 1,
            ("tool.failed", Some(id)) => drop(self.evaluated.remove(id)),
            ("evidence.changed", _) => {
                *self.references.entry(fact.text("change").to_owned()).or_default() += 1;
            }
            ("model.requested", _) => {
                self.unrouted += u64::from(std::mem::replace(&mut self.asked, true));
            }
            ("model.completed", _) => self.answered += 1,
            ("cost.recorded", _) => {
                self.charged += 1;
                if self.charged_requests.len() < MOST_REQUESTS {
                    self.charged_requests.extend(fact.model_request_id.clone());
                }
            }
            (name, _) if name.starts_with("routing.") => self.asked = false,
            _ => {}
        }
    }

    /// How many events have one of these names.
    pub fn count(&self, names: &[&str]) -> u64 {
        let matches = |name: &str, pattern: &str| match pattern.strip_suffix('%') {
            Some(prefix) => name.starts_with(prefix),
            None => name == pattern,
        };
        let of = |name: &String| names.iter().any(|pattern| matches(name, pattern));
        self.types.iter().filter(|(name, _)| of(name)).map(|(_, count)| count).sum()
    }

    pub fn charged_requests(&self) -> &HashSet<String> {
        &self.charged_requests
    }

    /// Steps in which a model was asked and nobody told how it was chosen.
    pub fn unrouted(&self) -> u64 {
        self.unrouted + u64::from(self.asked)
    }

    /// Answers that nobody told the cost of.
    pub fn uncharged(&self) -> u64 {
        self.answered.saturating_sub(self.charged)
    }
}
