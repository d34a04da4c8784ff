//! One request: routed, asked, streamed and paid for, in this order on record.

mod span;

use std::{future::poll_fn, sync::Arc};

use async_stream::try_stream;
use futures::{Stream, StreamExt as _};
use proto::{
    event::v1::event::Payload,
    models::v1::{self as pb, generate_response::Item},
};
use tokio_util::sync::CancellationToken;

use crate::{
    admission::{Account, Admission, Wanted},
    catalogue::{Catalogue, Model},
    error::{Error, Result},
    facts::{self, Correlation, ModelRequestId},
    prompt::Prompt,
    provider::{Chunk, Delta, Failure, FinishReason, Providers, Request},
    routing::{Candidates, Task},
    usage::Usage,
};

/// What the caller wants, checked.
#[derive(Debug)]
pub struct Generation {
    pub correlation: Correlation,
    pub account: Account,
    pub task: Task,
    pub prompt: Prompt,
    /// `None`: as much as the model can say.
    pub max_output_tokens: Option<i32>,
    pub temperature: Option<f64>,
    pub attempt: u32,
}

/// Streams the answer. Dropping the stream drops the provider's, which ends its work.
///
/// When the server stops, an answer that has begun goes on until the drain ends;
/// one that has not is better begun elsewhere.
pub fn generate(
    catalogue: Arc<Catalogue>,
    providers: Providers,
    admission: Admission,
    generation: Generation,
    stop: CancellationToken,
) -> impl Stream<Item = Result<Item>> + Send {
    try_stream! {
        let Generation {
            correlation, account, task, prompt, max_output_tokens, temperature, attempt,
        } = generation;
        let request_id = ModelRequestId::new();
        let id = request_id.to_string();
        let fact = |payload: Payload| -> Item { Item::Fact(correlation.fact(&id, payload).into()) };

        let found = task.candidates(&catalogue);
        for payload in facts::routing(&task, &found) {
            yield fact(payload);
        }
        let model = chosen(&task, &found)?;
        let max_output_tokens =
            max_output_tokens.unwrap_or(i32::MAX).min(model.output_tokens);
        let wanted = Wanted {
            id: request_id,
            account,
            correlation: correlation.clone(),
            provider: model.provider.clone(),
            model: model.model.clone(),
            price: model.price.clone(),
            input: task.tokens,
            output: max_output_tokens,
        };
        let admitted = stop.run_until_cancelled(admission.admit(&wanted)).await;
        let mut reservation = match admitted.ok_or(Error::Stopping)? {
            Ok(reservation) => reservation,
            Err(refused) => {
                yield fact(facts::cost_estimated(model, task.tokens, max_output_tokens, None));
                for payload in refused.facts {
                    yield fact(payload);
                }
                Err(refused.error)?
            }
        };
        let budget = reservation.remaining();
        yield fact(facts::cost_estimated(model, task.tokens, max_output_tokens, budget));
        for payload in reservation.facts() {
            yield fact(payload);
        }

        let span = span::chat(model, &correlation, max_output_tokens, temperature);
        let profile = task.profile.clone();
        let request = Request { prompt: Arc::new(prompt), profile, max_output_tokens, attempt };
        let provider = providers.get(&model.provider).ok_or_else(|| Error::ModelNotFound(model.name()))?;
        let mut chunks = provider.generate(request);
        let mut begun = false;
        loop {
            let next = poll_fn(|context| span.in_scope(|| chunks.poll_next_unpin(context)));
            let next = reservation.within(next);
            let next = match begun {
                true => next.await?,
                false => stop.run_until_cancelled(next).await.ok_or(Error::Stopping)??,
            };
            match next.unwrap_or(Err(Failure::Cut)) {
                Ok(Chunk::Finished { finish_reason, usage }) => {
                    let counted = usage.is_some();
                    let usage = usage.unwrap_or_else(|| reservation.usage());
                    span::finished(&span, model, finish_reason, &usage);
                    let budget = reservation.settle(usage, counted).await;
                    yield fact(facts::cost_recorded(model, usage, counted, budget));
                    yield finished(model, &id, finish_reason, usage);
                    return;
                }
                Ok(Chunk::Delta(delta)) => {
                    begun = true;
                    reservation.count(&delta);
                    yield delta.into();
                }
                Err(failure) => {
                    span::failed(&span, &failure);
                    if let Some(payload) = facts::failed(&failure) {
                        yield fact(payload);
                    }
                    let usage = reservation.usage();
                    let budget = reservation.fail(failure.kind()).await;
                    if begun {
                        yield fact(facts::cost_recorded(model, usage, false, budget));
                    }
                    Err(Error::of(failure, model, task.tokens, !begun))?;
                }
            }
        }
    }
}

/// The best candidate, or what to tell a caller who has none.
fn chosen<'a>(task: &Task, found: &Candidates<'a>) -> Result<&'a Model> {
    if let Some(best) = found.candidates.first() {
        return Ok(best.model);
    }
    if let Some(model) = found.roomiest_too_small() {
        let context = model.context_tokens;
        return Err(Error::ContextOverflow { model: model.name(), tokens: task.tokens, context });
    }
    let excluded = found.excluded.iter().map(|one| format!("{} {}", one.model.name(), one.detail));
    let excluded = excluded.collect::<Vec<_>>().join("; ");
    Err(Error::RoutingNotPossible { profile: task.profile.clone(), excluded })
}

fn finished(model: &Model, id: &str, finish_reason: FinishReason, usage: Usage) -> Item {
    Item::Finished(pb::Finished {
        finish_reason: finish_reason.as_str().to_owned(),
        usage: Some(usage.into()),
        cost_micros: model.price.cost_micros(&usage),
        provider: model.provider.clone(),
        model: model.model.clone(),
        model_request_id: id.to_owned(),
    })
}

impl From<Delta> for Item {
    fn from(delta: Delta) -> Item {
        match delta {
            Delta::Text(text) => Item::Text(pb::TextDelta { text }),
            Delta::Reasoning { text, signature } => {
                Item::Reasoning(pb::ReasoningDelta { text, signature })
            }
            Delta::ToolCallStarted { index, provider_call_id, tool } => {
                Item::ToolCallStarted(pb::ToolCallStarted { index, provider_call_id, tool })
            }
            Delta::ToolCallInput { index, input_json } => {
                Item::ToolCallDelta(pb::ToolCallDelta { index, input_json })
            }
            Delta::ToolCallCompleted { index, input_json } => {
                Item::ToolCallCompleted(pb::ToolCallCompleted { index, input_json })
            }
        }
    }
}
