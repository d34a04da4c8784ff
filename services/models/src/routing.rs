//! Which model answers. No I/O and no protobuf: a task and a catalogue in, a decision out.

use std::{cmp::Reverse, collections::BTreeSet};

use crate::catalogue::{Capability, Catalogue, Model, Tier};

/// What kind of work it is.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// A model by name or alias; `None`: whichever suits the profile.
    pub model: Option<String>,
    pub profile: String,
    pub capabilities: BTreeSet<Capability>,
    /// The size of the prompt.
    pub tokens: i32,
}

/// Who could serve and who could not.
#[derive(Debug, PartialEq)]
pub struct Candidates<'a> {
    /// Best first.
    pub candidates: Vec<Candidate<'a>>,
    pub excluded: Vec<Exclusion<'a>>,
}

#[derive(Debug, PartialEq)]
pub struct Candidate<'a> {
    pub model: &'a Model,
    /// 1 for the best there could be, 0 for the worst.
    pub score: f64,
    /// What it lacks of what was asked for.
    pub gap: Vec<Capability>,
}

#[derive(Debug, PartialEq)]
pub struct Exclusion<'a> {
    pub model: &'a Model,
    pub reason: Reason,
    pub detail: String,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reason {
    NotRequested,
    Capability,
    Context,
}

impl Task {
    /// How able a model the work wants.
    pub fn tier(&self) -> Tier {
        match self.profile.as_str() {
            "summary" | "title" | "explore" => Tier::Cheap,
            "code" => Tier::Strong,
            _ => Tier::Balanced,
        }
    }

    /// Sorts the catalogue into those who can do this and those who cannot.
    pub fn candidates<'a>(&self, catalogue: &'a Catalogue) -> Candidates<'a> {
        let asked_for = self.model.as_deref().and_then(|name| catalogue.find(name));
        let (mut candidates, mut excluded) = (Vec::new(), Vec::new());
        for model in catalogue.models() {
            let gap = model.gap(&self.capabilities);
            match self.exclusion(model, asked_for, &gap) {
                Some((reason, detail)) => excluded.push(Exclusion { model, reason, detail }),
                None => candidates.push(Candidate { model, score: self.score(model), gap }),
            }
        }
        candidates.sort_by(|one, other| {
            let cost = |candidate: &Candidate<'_>| candidate.model.price.output_micros;
            other.score.total_cmp(&one.score).then(cost(one).cmp(&cost(other)))
        });
        Candidates { candidates, excluded }
    }

    fn exclusion(
        &self,
        model: &Model,
        asked_for: Option<&Model>,
        gap: &[Capability],
    ) -> Option<(Reason, String)> {
        if asked_for.is_some_and(|asked_for| asked_for != model) {
            return Some((Reason::NotRequested, "another model was asked for".to_owned()));
        }
        // Whoever names a model knows what it lacks; the gap goes on record instead.
        if asked_for.is_none() && !gap.is_empty() {
            return Some((Reason::Capability, format!("lacks {}", join(gap))));
        }
        if self.tokens > model.context_tokens {
            let Model { context_tokens, .. } = model;
            let detail = format!("{} tokens do not fit into {context_tokens}", self.tokens);
            return Some((Reason::Context, detail));
        }
        None
    }

    /// The nearer to the wanted tier the better.
    fn score(&self, model: &Model) -> f64 {
        let distance = (self.tier() as i32 - model.tier as i32).abs();
        1.0 - f64::from(distance) / 2.0
    }

    /// One sentence that says why `chosen` is the first of the candidates.
    pub fn why(&self, chosen: &Candidate<'_>) -> String {
        let tier = chosen.model.tier.as_str();
        match &self.model {
            Some(name) => format!("{name} was asked for"),
            None => format!("best for {}: a {tier} model, score {:.1}", self.profile, chosen.score),
        }
    }
}

impl<'a> Candidates<'a> {
    /// With nobody left: the roomiest of those who were too small, so that a caller
    /// knows that a shorter prompt would do.
    pub fn roomiest_too_small(&self) -> Option<&'a Model> {
        let too_small = self.excluded.iter().filter(|one| one.reason == Reason::Context);
        too_small.map(|one| one.model).min_by_key(|model| Reverse(model.context_tokens))
    }
}

impl Reason {
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::NotRequested => "not_requested",
            Reason::Capability => "capability",
            Reason::Context => "context",
        }
    }
}

fn join(capabilities: &[Capability]) -> String {
    capabilities.iter().map(|capability| capability.as_str()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use expect_test::{Expect, expect};

    use super::*;

    fn check(
        model: Option<&str>,
        profile: &str,
        capabilities: &[Capability],
        tokens: i32,
        expect: Expect,
    ) {
        let catalogue = Catalogue::built_in().unwrap();
        let task = Task {
            model: model.map(str::to_owned),
            profile: profile.to_owned(),
            capabilities: capabilities.iter().copied().collect(),
            tokens,
        };
        let Candidates { candidates, excluded } = task.candidates(&catalogue);
        let mut table = String::new();
        if let Some(chosen) = candidates.first() {
            writeln!(table, "{}", task.why(chosen)).unwrap();
        }
        for one in candidates {
            writeln!(table, "+ {} {:.1} lacks {:?}", one.model.name(), one.score, one.gap).unwrap();
        }
        for one in excluded {
            writeln!(table, "- {} {}: {}", one.model.name(), one.reason.as_str(), one.detail)
                .unwrap();
        }
        expect.assert_eq(&table);
    }

    #[test]
    fn a_model_that_is_named_is_the_only_candidate() {
        check(
            Some("scripted"),
            "chat",
            &[],
            10,
            expect![[r#"
            scripted was asked for
            + scripted/demo 1.0 lacks []
            - scripted/small not_requested: another model was asked for
        "#]],
        );
    }

    #[test]
    fn whoever_names_a_model_gets_it_with_its_gaps() {
        check(
            Some("scripted/small"),
            "chat",
            &[Capability::Images],
            10,
            expect![[r#"
            scripted/small was asked for
            + scripted/small 0.5 lacks [Images]
            - scripted/demo not_requested: another model was asked for
        "#]],
        );
    }

    #[test]
    fn a_profile_prefers_its_tier() {
        check(
            None,
            "chat",
            &[],
            10,
            expect![[r#"
            best for chat: a balanced model, score 1.0
            + scripted/demo 1.0 lacks []
            + scripted/small 0.5 lacks []
        "#]],
        );
        check(
            None,
            "title",
            &[],
            10,
            expect![[r#"
            best for title: a cheap model, score 1.0
            + scripted/small 1.0 lacks []
            + scripted/demo 0.5 lacks []
        "#]],
        );
        check(
            None,
            "code",
            &[],
            10,
            expect![[r#"
            best for code: a balanced model, score 0.5
            + scripted/demo 0.5 lacks []
            + scripted/small 0.0 lacks []
        "#]],
        );
    }

    #[test]
    fn a_model_that_cannot_serve_says_why() {
        check(
            None,
            "title",
            &[Capability::Images, Capability::Reasoning],
            10,
            expect![[r#"
            best for title: a balanced model, score 0.5
            + scripted/demo 0.5 lacks []
            - scripted/small capability: lacks images, reasoning
        "#]],
        );
        check(
            None,
            "title",
            &[],
            10_000,
            expect![[r#"
            best for title: a balanced model, score 0.5
            + scripted/demo 0.5 lacks []
            - scripted/small context: 10000 tokens do not fit into 8000
        "#]],
        );
        check(
            Some("scripted/small"),
            "chat",
            &[],
            10_000,
            expect![[r#"
            - scripted/demo not_requested: another model was asked for
            - scripted/small context: 10000 tokens do not fit into 8000
        "#]],
        );
    }
}
