//! Which model answers, and who does when it cannot. No I/O and no protobuf: a task, what
//! a tenant is offered and how everybody is in, a decision out.

use std::{cmp::Reverse, collections::BTreeSet, time::Duration};

use crate::{
    catalogue::{AfterFirstToken, Capability, Model, Offer, Policy, Tier},
    health::Vitals,
    provider::Failure,
    tokens::Size,
};

/// What kind of work it is.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// A model by name or alias; `None`: whichever suits the profile.
    pub model: Option<String>,
    pub profile: String,
    pub capabilities: BTreeSet<Capability>,
    /// The size of the prompt.
    pub size: Size,
    /// The model that answered before in the same session tree, whose cache may be warm.
    pub previous: Option<String>,
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
    /// 1 for a model of the tier that is wanted, less for others; a little more for one
    /// whose cache is warm, a little less for one that is slow.
    pub score: f64,
    /// What it lacks of what was asked for.
    pub gap: Vec<Capability>,
    warm: bool,
}

#[derive(Debug, PartialEq)]
pub struct Exclusion<'a> {
    pub model: &'a Model,
    pub reason: Reason,
    pub detail: String,
    /// When it may be otherwise, if waiting helps.
    pub again_in: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reason {
    NotRequested,
    Policy,
    Region,
    Price,
    Capability,
    Context,
    Health,
    Limit,
}

/// Never enough to prefer another tier.
const WARM: f64 = 0.2;
const SLOW: f64 = -0.1;

/// Whoever takes longer to the first word is slow.
const PATIENCE: Duration = Duration::from_secs(5);

impl Task {
    /// How able a model the work wants.
    pub fn tier(&self) -> Tier {
        match self.profile.as_str() {
            "summary" | "title" | "explore" => Tier::Cheap,
            "code" => Tier::Strong,
            _ => Tier::Balanced,
        }
    }

    /// Sorts what is offered into those who can do this and those who cannot.
    pub fn candidates<'a>(
        &self,
        offer: &'a Offer,
        vitals: impl Fn(&Model) -> Vitals,
    ) -> Candidates<'a> {
        let asked_for = self.model.as_deref().and_then(|name| offer.find(name));
        let (mut candidates, mut excluded) = (Vec::new(), Vec::new());
        for model in &offer.models {
            let gap = model.gap(&self.capabilities);
            let vitals = vitals(model);
            match self.exclusion(model, &offer.policy, asked_for, &gap, &vitals) {
                Some((reason, detail)) => {
                    let again_in = match reason {
                        Reason::Health => vitals.rests,
                        Reason::Limit => vitals.limited,
                        _ => None,
                    };
                    excluded.push(Exclusion { model, reason, detail, again_in });
                }
                None => candidates.push(self.candidate(model, gap, &vitals)),
            }
        }
        candidates.sort_by(|one, other| {
            let cost = |candidate: &Candidate<'_>| candidate.model.price.output_micros;
            other.score.total_cmp(&one.score).then(cost(one).cmp(&cost(other)))
        });
        Candidates { candidates, excluded }
    }

    /// Why a model cannot serve; what lasts is told before what passes.
    fn exclusion(
        &self,
        model: &Model,
        policy: &Policy,
        asked_for: Option<&Model>,
        gap: &[Capability],
        vitals: &Vitals,
    ) -> Option<(Reason, String)> {
        if asked_for.is_some_and(|asked_for| asked_for != model) {
            return Some((Reason::NotRequested, "another model was asked for".to_owned()));
        }
        if let Some(denial) = policy.denial(model) {
            return Some((Reason::Policy, denial.to_owned()));
        }
        if !policy.has_region(model) {
            let regions = policy.regions.iter().cloned().collect::<Vec<_>>().join(", ");
            return Some((Reason::Region, format!("does not run in {regions}")));
        }
        if !policy.affords(model) {
            return Some((Reason::Price, "costs more than the tenant's ceiling".to_owned()));
        }
        // Whoever names a model knows what it lacks; the gap goes on record instead.
        if asked_for.is_none() && !gap.is_empty() {
            return Some((Reason::Capability, format!("lacks {}", join(gap))));
        }
        let (tokens, context) = (self.size.tokens(model.tokenizer), model.context_tokens);
        if tokens > context {
            return Some((Reason::Context, format!("{tokens} tokens do not fit into {context}")));
        }
        if let Some(rest) = vitals.rests {
            let detail = format!("{} failed too often, tried again in {rest:.0?}", model.provider);
            return Some((Reason::Health, detail));
        }
        let limited = vitals.limited?;
        Some((Reason::Limit, format!("asked us to wait for {limited:.0?}")))
    }

    fn candidate<'a>(
        &self,
        model: &'a Model,
        gap: Vec<Capability>,
        vitals: &Vitals,
    ) -> Candidate<'a> {
        // The nearer to the wanted tier the better.
        let distance = (self.tier() as i32 - model.tier as i32).abs();
        let warm = self.previous.as_ref().is_some_and(|previous| *previous == model.name())
            && model.price.rewards_cache();
        let slow = vitals.first_token.is_some_and(|wait| wait > PATIENCE);
        let score = 1.0 - f64::from(distance) / 2.0
            + if warm { WARM } else { 0.0 }
            + if slow { SLOW } else { 0.0 };
        Candidate { model, score, gap, warm }
    }

    /// One sentence that says why `chosen` is the first of the candidates.
    pub fn why(&self, chosen: &Candidate<'_>) -> String {
        let tier = chosen.model.tier.as_str();
        let warm = if chosen.warm { " that answered before" } else { "" };
        match &self.model {
            Some(name) => format!("{name} was asked for"),
            None => {
                let (profile, score) = (&self.profile, chosen.score);
                format!("best for {profile}: a {tier} model{warm}, score {score:.1}")
            }
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

    /// With nobody left: who is back first, so that a caller knows when to come again.
    pub fn back_first(&self) -> Option<&Exclusion<'a>> {
        let passing = self.excluded.iter().filter(|one| one.again_in.is_some());
        passing.min_by_key(|one| one.again_in)
    }
}

/// What was said before somebody failed.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Said {
    pub text: String,
    /// Whether anything at all was passed on.
    pub begun: bool,
    /// Whether a tool call was begun, which nobody else can end.
    pub called: bool,
}

/// What to do about a failure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fallback {
    /// Somebody else answers, and nobody notices.
    Restart,
    /// Somebody else goes on where this one stopped.
    Continue,
    /// The failure is the answer, after what was said.
    None,
}

/// Decides whether the next candidate may try.
pub fn fallback(failure: &Failure, said: &Said, policy: &Policy) -> Fallback {
    match (failure.passes_on(), said.begun, policy.after_first_token) {
        (true, false, _) => Fallback::Restart,
        (true, true, AfterFirstToken::Continue) if !said.called && !said.text.is_empty() => {
            Fallback::Continue
        }
        _ => Fallback::None,
    }
}

impl Reason {
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::NotRequested => "not_requested",
            Reason::Policy => "policy",
            Reason::Region => "region",
            Reason::Price => "price",
            Reason::Capability => "capability",
            Reason::Context => "context",
            Reason::Health => "health",
            Reason::Limit => "limit",
        }
    }
}

fn join(capabilities: &[Capability]) -> String {
    capabilities.iter().map(|capability| capability.as_str()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
