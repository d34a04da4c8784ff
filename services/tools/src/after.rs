//! What hooks say when a tool has run.

use serde_json::{Map, Value, json};

use crate::{
    call::Call,
    facts::Facts,
    hook::Event,
    hooks::{Hooks, Occasion, Place, Record},
    outcome::{Failure, Kind, Outcome},
    policies::Policy,
};

/// Lets hooks look at an outcome. They add to it, or withhold it.
pub async fn after(
    hooks: &Hooks,
    policy: &Policy,
    call: &Call,
    input: &Value,
    mut outcome: Outcome,
    facts: &Facts<'_>,
) -> Outcome {
    let event = match &outcome.result {
        Ok(_) => Event::PostToolUse,
        Err(_) => Event::PostToolFailure,
    };
    if policy.asked(event, &call.tool).next().is_none() {
        return outcome;
    }
    let mut details = Map::from_iter([("input".to_owned(), input.clone())]);
    match &outcome.result {
        Ok(data) => details.insert("output".to_owned(), data.clone()),
        Err(Failure { kind, text }) => {
            details.insert("error".to_owned(), json!({ "kind": kind.name(), "text": text }))
        }
    };
    let place = Place::from(call);
    let occasion = Occasion { event, place: &place, policy, details };
    let verdict = hooks.all(&occasion, &mut Record::Told(facts)).await;
    if let Some(reason) = verdict.block {
        let tool = &call.tool;
        let (kind, text) = match outcome.result {
            Ok(_) => (Kind::Denied, format!("{tool} ran, and its result is withheld: {reason}")),
            Err(failure) => {
                (failure.kind, format!("{tool} failed, and what it said is withheld: {reason}"))
            }
        };
        outcome.result = Err(Failure::new(kind, text));
        // Whoever may not see the beginning may not see the rest.
        (outcome.metadata.truncated, outcome.metadata.kept) = (false, None);
    }
    outcome.metadata.hook_context = verdict.context;
    outcome
}
