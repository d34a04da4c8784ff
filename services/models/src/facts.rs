//! What goes on record about a request, as the events the session's log keeps.

use std::fmt::Display;

use proto::event::v1::{self as pb, Event, event::Payload};

use crate::{
    admission::Remaining,
    catalogue::{Capability, Model},
    generate::Spent,
    provider::Failure,
    routing::{Candidate, Candidates, Exclusion, Task},
    tokens::Tokenizer,
    usage::Usage,
};

chassis::id!(
    /// One request to a model.
    ModelRequestId,
    "mreq"
);

/// What a request belongs to, as its caller told us.
#[derive(Debug, Clone, Default)]
pub struct Correlation {
    pub session_id: String,
    pub turn_id: String,
    pub step_id: String,
}

impl Correlation {
    pub fn fact(&self, model_request_id: &str, payload: Payload) -> Event {
        Event {
            r#type: payload.name().to_owned(),
            model_request_id: model_request_id.to_owned(),
            session_id: self.session_id.clone(),
            turn_id: self.turn_id.clone(),
            step_id: self.step_id.clone(),
            payload: Some(payload),
            ..Event::default()
        }
    }
}

/// How a request was routed, from what was asked to who answers.
pub fn routing(task: &Task, found: &Candidates<'_>) -> Vec<Payload> {
    let Candidates { candidates, excluded } = found;
    let mut payloads = vec![
        Payload::TaskProfileResolved(pb::TaskProfileResolved {
            profile: task.profile.clone(),
            capabilities: names(&task.capabilities),
            tokens: task.size.tokens(Tokenizer::Plain),
            tier: task.tier().as_str().to_owned(),
        }),
        Payload::RoutingCandidatesResolved(pb::CandidatesResolved {
            candidates: candidates.iter().map(Into::into).collect(),
            excluded: excluded.iter().map(Into::into).collect(),
        }),
    ];
    let Some((chosen, others)) = candidates.split_first() else {
        payloads.push(Payload::RoutingNotPossible(pb::RoutingNotPossible {
            reason: "every model of the catalogue is excluded".to_owned(),
            excluded: excluded.iter().map(Into::into).collect(),
        }));
        return payloads;
    };
    let (provider, model) = (chosen.model.provider.clone(), chosen.model.model.clone());
    let reason = task.why(chosen);
    let capability_gap = names(&chosen.gap);
    if others.is_empty() {
        payloads.push(Payload::RoutingSingleCandidate(pb::SingleCandidate {
            provider: provider.clone(),
            model: model.clone(),
            reason: reason.clone(),
            capability_gap: capability_gap.clone(),
        }));
    }
    payloads.push(Payload::RoutingDecided(pb::RoutingDecided {
        provider,
        model,
        reason,
        candidates: i32::try_from(candidates.len()).unwrap_or(i32::MAX),
        capability_gap,
        fallbacks: others.iter().map(|other| other.model.name()).collect(),
    }));
    payloads
}

/// Somebody failed or may not be asked, and somebody else is.
pub fn fallback(
    from: &Model,
    to: &Model,
    kind: &str,
    problem: &impl Display,
    after_first_token: bool,
) -> Payload {
    Payload::RoutingFallbackApplied(pb::FallbackApplied {
        from_provider: from.provider.clone(),
        from_model: from.model.clone(),
        to_provider: to.provider.clone(),
        to_model: to.model.clone(),
        reason: format!("{kind}: {problem}"),
        after_first_token,
    })
}

/// What the request costs if the answer is as long as it may be, and what is then left to pay with.
pub fn cost_estimated(
    model: &Model,
    input: i32,
    max_output_tokens: i32,
    budget: Option<Remaining>,
) -> Payload {
    Payload::CostEstimated(pb::CostEstimated {
        worst_case_micros: model.price.worst_micros(input, max_output_tokens),
        currency: model.price.currency.clone(),
        budget_id: budget.map(|budget| budget.budget_id.to_string()).unwrap_or_default(),
        remaining_micros: budget.map(|budget| budget.micros).unwrap_or_default(),
    })
}

/// What it did cost.
pub fn cost_recorded(model: &Model, spent: &Spent) -> Payload {
    let Spent { usage, counted, budget } = *spent;
    Payload::CostRecorded(pb::CostRecorded {
        usage: Some(usage.into()),
        cost_micros: model.price.cost_micros(&usage),
        currency: model.price.currency.clone(),
        basis: if counted { "exact" } else { "estimated" }.to_owned(),
        budget_id: budget.map(|budget| budget.budget_id.to_string()).unwrap_or_default(),
        remaining_micros: budget.map(|budget| budget.micros).unwrap_or_default(),
    })
}

/// What a failure leaves on record beside the error itself.
pub fn failed(failure: &Failure) -> Option<Payload> {
    match failure {
        Failure::RateLimited { retry_after } => Some(Payload::RateLimitHit(pb::RateLimitHit {
            origin: "provider".to_owned(),
            limit: "requests_per_minute".to_owned(),
            scope: "provider".to_owned(),
            retry_after_ms: i32::try_from(retry_after.as_millis()).unwrap_or(i32::MAX),
        })),
        Failure::Transient(_)
        | Failure::Auth
        | Failure::Overflow
        | Failure::Refused
        | Failure::Invalid(_)
        | Failure::Cut
        | Failure::Script(_) => None,
    }
}

fn names<'a>(capabilities: impl IntoIterator<Item = &'a Capability>) -> Vec<String> {
    capabilities.into_iter().map(|capability| capability.as_str().to_owned()).collect()
}

impl From<&Candidate<'_>> for pb::Candidate {
    fn from(Candidate { model, score, .. }: &Candidate<'_>) -> pb::Candidate {
        let (provider, model) = (model.provider.clone(), model.model.clone());
        pb::Candidate { provider, model, score: *score }
    }
}

impl From<&Exclusion<'_>> for pb::Exclusion {
    fn from(Exclusion { model, reason, detail, .. }: &Exclusion<'_>) -> pb::Exclusion {
        pb::Exclusion {
            provider: model.provider.clone(),
            model: model.model.clone(),
            reason: reason.as_str().to_owned(),
            detail: detail.clone(),
        }
    }
}

impl From<Usage> for pb::Usage {
    fn from(usage: Usage) -> pb::Usage {
        let Usage { input, output, reasoning, cache_read, cache_write } = usage;
        pb::Usage { input, output, reasoning, cache_read, cache_write }
    }
}
