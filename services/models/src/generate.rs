//! One request: routed, asked, streamed and paid for, in this order on record.

mod attempt;
mod gathered;
mod span;

use std::sync::Arc;

use async_stream::try_stream;
use futures::Stream;
use proto::{
    event::v1::event::Payload,
    models::v1::{self as pb, generate_response::Item},
};
use tokio_util::sync::CancellationToken;

use self::attempt::Attempt;
pub use self::attempt::Spent;
use crate::{
    admission::{Account, Admission, Refused, Wanted},
    catalogue::{AfterFirstToken, Model, live::Served},
    error::{Error, Result},
    facts::{self, Correlation, ModelRequestId},
    health::Health,
    prompt::Prompt,
    provider::{Chunk, Delta, Effort, FinishReason, Request},
    routing::{Candidates, Fallback, Reason, Said, Task, fallback},
    tokens::Size,
    usage::Usage,
};

/// What the caller wants, checked.
#[derive(Debug)]
pub struct Generation {
    pub correlation: Correlation,
    pub account: Account,
    pub task: Task,
    pub prompt: Prompt,
    pub options: Options,
    pub attempt: u32,
}

/// How to answer.
#[derive(Debug, Clone)]
pub struct Options {
    /// `None`: as much as the model can say.
    pub max_output_tokens: Option<i32>,
    pub temperature: Option<f64>,
    /// `None`: as the model likes.
    pub effort: Option<Effort>,
    /// The JSON Schema that the answer must match.
    pub output_schema_json: Option<String>,
}

/// Streams the answer. Dropping the stream drops the provider's, which ends its work.
///
/// Nobody is asked twice: a caller who comes back is somebody who waited. But who fails is
/// followed by the next candidate, as far as [`fallback`] allows, and so is who may not be
/// asked because of a limit of its own. Each is admitted and paid for by itself and has an
/// id of its own, under which the ledger has a row for it if it was asked.
///
/// When the server stops, an answer that has begun goes on until the drain ends;
/// one that has not is better begun elsewhere.
pub fn generate(
    served: Arc<Served>,
    health: Arc<Health>,
    admission: Admission,
    generation: Generation,
    stop: CancellationToken,
) -> impl Stream<Item = Result<Item>> + Send {
    try_stream! {
        let Generation { correlation, account, task, prompt, options, attempt } = generation;
        let fact = |id: ModelRequestId, payload: Payload| -> Item {
            Item::Fact(correlation.fact(&id.to_string(), payload).into())
        };

        let mut id = ModelRequestId::new();
        let offer = served.catalogue.of(account.tenant.as_str());
        let found = task.candidates(offer, |model| health.of(model));
        // Told together with what comes of it: whoever is told twice is woken up twice.
        let mut routed: Vec<Item> =
            facts::routing(&task, &found).into_iter().map(|payload| fact(id, payload)).collect();
        let chain = match chain(&task, &found) {
            Ok(chain) => chain,
            Err(error) => {
                for item in routed {
                    yield item;
                }
                Err(error)?;
                return;
            }
        };

        let original = Arc::new(prompt);
        let (mut prompt, mut size) = (original.clone(), task.size);
        let keeps_text = offer.policy.after_first_token == AfterFirstToken::Continue;
        let (mut said, mut bill) = (Said::default(), Bill::default());
        let mut broke_off = None;
        for (place, model) in chain.iter().copied().enumerate() {
            let next = chain.get(place + 1).copied();
            let input = size.tokens(model.tokenizer);
            let request = request(model, prompt.clone(), &task, &options, attempt);
            let output = request.max_output_tokens;

            let wanted = wanted(id, &account, &correlation, model, input, output);
            let admitted = unless_stopping(&stop, said.begun, admission.admit(&wanted)).await?;
            routed.extend(admission.news(&wanted).await.into_iter().map(|payload| fact(id, payload)));
            for item in routed.drain(..) {
                yield item;
            }
            let mut reservation = match admitted {
                Ok(reservation) => reservation,
                Err(Refused { facts, error, elsewhere }) => {
                    yield fact(id, facts::cost_estimated(model, input, output, None));
                    for payload in facts {
                        yield fact(id, payload);
                    }
                    let Some(next) = next.filter(|_| elsewhere) else {
                        // Whoever saw a beginning is told that it has no end.
                        Err(broke_off.take().unwrap_or(error))?;
                        return;
                    };
                    yield fact(id, facts::fallback(model, next, "limit", &error, said.begun));
                    id = ModelRequestId::new();
                    continue;
                }
            };
            yield fact(id, facts::cost_estimated(model, input, output, reservation.remaining()));
            for payload in reservation.facts() {
                yield fact(id, payload);
            }

            let span = span::chat(model, &correlation, &request);
            let mut asked = Attempt::open(&served, &health, model, reservation, request, span)?;
            let broken = loop {
                match asked.next(&stop, said.begun).await? {
                    Ok(Chunk::Delta(delta)) => {
                        said.note(&delta, keeps_text);
                        yield delta.into();
                    }
                    Ok(Chunk::Finished { finish_reason, usage }) => {
                        let spent = asked.finished(finish_reason, usage);
                        bill.add(model, &spent);
                        yield fact(id, facts::cost_recorded(model, &spent));
                        yield finished(model, id, finish_reason, &bill);
                        return;
                    }
                    Err(broken) => break broken,
                }
            };

            let spent = asked.failed(&broken);
            let failure = broken.failure;
            if let Some(payload) = facts::failed(&failure) {
                yield fact(id, payload);
            }
            if let Some(spent) = spent {
                bill.add(model, &spent);
                yield fact(id, facts::cost_recorded(model, &spent));
            }
            let fallback = fallback(&failure, &said, &offer.policy);
            let Some(next) = next.filter(|_| fallback != Fallback::None) else {
                Err(Error::of(failure, model, input, !said.begun))?;
                return;
            };
            if fallback == Fallback::Continue {
                prompt = Arc::new(original.continued(&said.text));
                size = Size::of(&prompt);
            }
            yield fact(id, facts::fallback(model, next, failure.kind(), &failure, said.begun));
            broke_off = said.begun.then(|| Error::of(failure, model, input, false));
            id = ModelRequestId::new();
        }
    }
}

/// Waits for something, unless the server stops. `committed`: people have seen some of the
/// answer, so that a server that stops lets it go on.
async fn unless_stopping<T>(
    stop: &CancellationToken,
    committed: bool,
    work: impl Future<Output = T>,
) -> Result<T> {
    match committed {
        true => Ok(work.await),
        false => stop.run_until_cancelled(work).await.ok_or(Error::Stopping),
    }
}

fn wanted(
    id: ModelRequestId,
    account: &Account,
    correlation: &Correlation,
    model: &Model,
    input: i32,
    output: i32,
) -> Wanted {
    Wanted {
        id,
        account: account.clone(),
        correlation: correlation.clone(),
        provider: model.provider.clone(),
        model: model.model.clone(),
        price: model.price.clone(),
        input,
        output,
    }
}

/// Everybody who is asked, one after the other, or what to tell a caller who has nobody.
fn chain<'a>(task: &Task, found: &Candidates<'a>) -> Result<Vec<&'a Model>> {
    if !found.candidates.is_empty() {
        return Ok(found.candidates.iter().map(|candidate| candidate.model).collect());
    }
    if let Some(back) = found.back_first() {
        let (provider, model) = (back.model.provider.clone(), back.model.model.clone());
        let retry_after = back.again_in.unwrap_or_default();
        return Err(match back.reason {
            Reason::Limit => Error::RateLimited { provider, model, retry_after },
            _ => Error::ProviderRests { provider, model, retry_after },
        });
    }
    if let Some(model) = found.roomiest_too_small() {
        let (context, tokens) = (model.context_tokens, task.size.tokens(model.tokenizer));
        return Err(Error::ContextOverflow { model: model.name(), tokens, context });
    }
    let excluded = found.excluded.iter().take(MOST_TOLD);
    let excluded = excluded.map(|one| format!("{} {}", one.model.name(), one.detail));
    let mut excluded: Vec<_> = excluded.collect();
    if let more @ 1.. = found.excluded.len() - excluded.len() {
        excluded.push(format!("and {more} more"));
    }
    Err(Error::RoutingNotPossible { profile: task.profile.clone(), excluded: excluded.join("; ") })
}

/// An error is told in a header, where there is not much room.
const MOST_TOLD: usize = 20;

fn request(
    model: &Model,
    prompt: Arc<Prompt>,
    task: &Task,
    options: &Options,
    attempt: u32,
) -> Request {
    let most = options.max_output_tokens.unwrap_or(i32::MAX);
    Request {
        model: model.model.clone(),
        prompt,
        profile: task.profile.clone(),
        max_output_tokens: most.min(model.output_tokens),
        temperature: options.temperature,
        effort: options.effort,
        thinking: model.thinking,
        output_schema_json: options.output_schema_json.clone(),
        attempt,
    }
}

/// What everybody came to who was asked.
#[derive(Debug, Default)]
struct Bill {
    usage: Usage,
    cost_micros: i64,
}

impl Bill {
    fn add(&mut self, model: &Model, spent: &Spent) {
        self.usage = self.usage.plus(spent.usage);
        self.cost_micros = self.cost_micros.saturating_add(model.price.cost_micros(&spent.usage));
    }
}

impl Said {
    fn note(&mut self, delta: &Delta, keeps_text: bool) {
        self.begun = true;
        match delta {
            Delta::Text(text) if keeps_text => self.text.push_str(text),
            Delta::Text(_) | Delta::Reasoning { .. } => (),
            Delta::ToolCallStarted { .. }
            | Delta::ToolCallInput { .. }
            | Delta::ToolCallCompleted { .. } => self.called = true,
        }
    }
}

fn finished(model: &Model, id: ModelRequestId, finish_reason: FinishReason, bill: &Bill) -> Item {
    Item::Finished(pb::Finished {
        finish_reason: finish_reason.as_str().to_owned(),
        usage: Some(bill.usage.into()),
        cost_micros: bill.cost_micros,
        provider: model.provider.clone(),
        model: model.model.clone(),
        model_request_id: id.to_string(),
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
