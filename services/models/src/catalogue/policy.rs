//! What one tenant may make of the models.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::Model;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Policy {
    /// Names or patterns; empty: everything.
    pub allow: Vec<Pattern>,
    /// Beats `allow`.
    pub deny: Vec<Pattern>,
    /// Where models may run; empty: anywhere.
    pub regions: BTreeSet<String>,
    pub ceiling: Ceiling,
    pub after_first_token: AfterFirstToken,
}

/// `provider/model`, or a beginning of that and a `*`.
#[derive(Debug, Clone, PartialEq)]
pub struct Pattern(pub String);

/// The most a million tokens may cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ceiling {
    pub input_micros: Option<i64>,
    pub output_micros: Option<i64>,
}

/// What happens to an answer that breaks off after people saw its beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AfterFirstToken {
    /// It ends there, and what was said is kept.
    #[default]
    End,
    /// Another model goes on where it broke off.
    Continue,
}

impl Policy {
    /// Why the tenant may not use `model` by its name, if it may not.
    pub fn denial(&self, model: &Model) -> Option<&'static str> {
        let matches = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.matches(model));
        if matches(&self.deny) {
            return Some("the tenant's policy denies it");
        }
        if !self.allow.is_empty() && !matches(&self.allow) {
            return Some("the tenant's policy does not allow it");
        }
        None
    }

    pub fn has_region(&self, model: &Model) -> bool {
        self.regions.is_empty() || !self.regions.is_disjoint(&model.regions)
    }

    pub fn affords(&self, model: &Model) -> bool {
        let Ceiling { input_micros, output_micros } = self.ceiling;
        let within = |price: i64, most: Option<i64>| most.is_none_or(|most| price <= most);
        within(model.price.input_micros, input_micros)
            && within(model.price.output_micros, output_micros)
    }

    /// Whether the tenant may use `model` at all, whatever the task.
    pub fn permits(&self, model: &Model) -> bool {
        self.denial(model).is_none() && self.has_region(model) && self.affords(model)
    }
}

impl Pattern {
    fn matches(&self, model: &Model) -> bool {
        let name = model.name();
        match self.0.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => name == self.0,
        }
    }
}
