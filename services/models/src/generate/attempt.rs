//! One candidate that is asked: its stream, its span, its place in the records of health,
//! what it holds of limits and budgets, and what it came to.

use std::{
    future::poll_fn,
    sync::{Arc, LazyLock},
    task::{Context, Poll},
};

use futures::{StreamExt as _, stream};
use opentelemetry::{KeyValue, global, metrics::Counter};
use tokio_util::sync::CancellationToken;
use tracing::Span;

use super::{gathered::Gathered, span, unless_stopping};
use crate::{
    admission::{Remaining, Reservation},
    catalogue::{Model, live::Served},
    error::{Error, Result},
    health::{self, Health},
    provider::{Broken, Chunk, Failure, FinishReason, Request},
    usage::Usage,
};

static ENDED: LazyLock<Counter<u64>> = LazyLock::new(|| {
    global::meter("models")
        .u64_counter("models.attempts")
        .with_description("Requests to providers that ended, by provider and how")
        .build()
});

fn count(model: &Model, outcome: &'static str) {
    let provider = KeyValue::new("provider", model.provider.clone());
    ENDED.add(1, &[provider, KeyValue::new("outcome", outcome)]);
}

/// Dropped in this order: its place is free when nobody answers any more.
pub struct Attempt<'a> {
    model: &'a Model,
    span: Span,
    chunks: Gathered,
    record: Option<health::Attempt>,
    reservation: Reservation,
}

/// What an attempt came to.
#[derive(Debug)]
pub struct Spent {
    pub usage: Usage,
    /// Whether the provider counted or we estimate.
    pub counted: bool,
    /// What is left to pay with.
    pub budget: Option<Remaining>,
}

impl<'a> Attempt<'a> {
    pub fn open(
        served: &Served,
        health: &Arc<Health>,
        model: &'a Model,
        reservation: Reservation,
        request: Request,
        span: Span,
    ) -> Result<Attempt<'a>> {
        let provider = served.providers.get(&model.provider);
        let provider = provider.ok_or_else(|| Error::ModelNotFound(model.name()))?;
        let record = health.begin(model);
        let chunks = match &record {
            Some(_) => provider.generate(request),
            // Somebody else came first to see whether it is well again.
            None => {
                let problem = "it failed too often and is being tried".to_owned();
                stream::iter([Err(Failure::Transient(problem).into())]).boxed()
            }
        };
        Ok(Attempt { model, span, chunks: Gathered::new(chunks), record, reservation })
    }

    /// What it says next. `committed`: people have seen some of the answer.
    pub async fn next(
        &mut self,
        stop: &CancellationToken,
        committed: bool,
    ) -> Result<Result<Chunk, Broken>> {
        let Attempt { span, chunks, record, reservation, .. } = self;
        let mut poll =
            |context: &mut Context<'_>| span.in_scope(|| chunks.poll_next_unpin(context));
        // What is there already needs nobody to wait for it.
        let next = match poll_fn(|context| Poll::Ready(poll(context))).await {
            Poll::Ready(next) => next,
            Poll::Pending => {
                unless_stopping(stop, committed, reservation.within(poll_fn(poll))).await??
            }
        };
        let next = next.unwrap_or_else(|| Err(Failure::Cut.into()));
        if let Ok(Chunk::Delta(delta)) = &next {
            if !reservation.has_begun() {
                record.iter_mut().for_each(health::Attempt::answered);
            }
            reservation.count(delta);
        }
        Ok(next)
    }

    /// It said everything.
    pub fn finished(self, finish_reason: FinishReason, usage: Option<Usage>) -> Spent {
        let Attempt { model, span, chunks, record, mut reservation } = self;
        drop(chunks);
        count(model, "ok");
        let counted = usage.is_some();
        let usage = usage.unwrap_or_else(|| reservation.usage());
        span::finished(&span, model, finish_reason, &usage);
        if let Some(record) = record {
            record.finished();
        }
        Spent { usage, counted, budget: reservation.settle(usage, counted) }
    }

    /// It said no more. Returns what it came to as far as anybody can tell, if it said or
    /// counted anything.
    pub fn failed(self, Broken { failure, usage }: &Broken) -> Option<Spent> {
        let Attempt { model, span, chunks, record, mut reservation } = self;
        drop(chunks);
        count(model, failure.kind());
        span::failed(&span, failure);
        if let Some(record) = record {
            record.failed(failure);
        }
        let counted = usage.is_some();
        let usage = usage.or_else(|| reservation.has_begun().then(|| reservation.usage()));
        let budget = reservation.fail(failure.kind(), usage.unwrap_or_default(), counted);
        usage.map(|usage| Spent { usage, counted, budget })
    }
}
