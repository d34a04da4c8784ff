//! One candidate that is asked: its stream, its span, its place in the records of health,
//! and what it came to.

use std::{future::poll_fn, sync::Arc};

use futures::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use tokio_util::sync::CancellationToken;
use tracing::Span;

use super::span;
use crate::{
    catalogue::{Model, live::Served},
    error::{Error, Result},
    health::{self, Health},
    provider::{Chunk, Failure, FinishReason, Request},
    usage::{Meter, Usage},
};

pub struct Attempt<'a> {
    model: &'a Model,
    /// How large its prompt is.
    input: i32,
    span: Span,
    chunks: BoxStream<'static, Result<Chunk, Failure>>,
    record: Option<health::Attempt>,
    meter: Meter,
    begun: bool,
}

impl<'a> Attempt<'a> {
    pub fn open(
        served: &Served,
        health: &Arc<Health>,
        model: &'a Model,
        input: i32,
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
                stream::iter([Err(Failure::Transient(problem))]).boxed()
            }
        };
        Ok(Attempt { model, input, span, chunks, record, meter: Meter::default(), begun: false })
    }

    /// What it says next. `committed`: people have seen some of the answer, so that a
    /// server that stops lets it go on.
    pub async fn next(
        &mut self,
        stop: &CancellationToken,
        committed: bool,
    ) -> Result<Result<Chunk, Failure>> {
        let Attempt { span, chunks, .. } = self;
        let next = poll_fn(|context| span.in_scope(|| chunks.poll_next_unpin(context)));
        let next = match committed {
            true => next.await,
            false => stop.run_until_cancelled(next).await.ok_or(Error::Stopping)?,
        };
        let next = next.unwrap_or(Err(Failure::Cut));
        if let Ok(Chunk::Delta(delta)) = &next {
            self.meter.count(delta);
            if !self.begun {
                self.begun = true;
                self.record.iter_mut().for_each(health::Attempt::answered);
            }
        }
        Ok(next)
    }

    /// It said everything. Returns what it came to, and whether somebody counted that.
    pub fn finished(self, finish_reason: FinishReason, usage: Option<Usage>) -> (Usage, bool) {
        let counted = usage.is_some();
        let usage = usage.unwrap_or_else(|| self.meter.usage(self.input));
        span::finished(&self.span, self.model, finish_reason, &usage);
        if let Some(record) = self.record {
            record.finished();
        }
        (usage, counted)
    }

    /// It said no more. Returns what it came to as far as anybody can tell, if it said
    /// anything.
    pub fn failed(self, failure: &Failure) -> Option<Usage> {
        span::failed(&self.span, failure);
        if let Some(record) = self.record {
            record.failed(failure);
        }
        self.begun.then(|| self.meter.usage(self.input))
    }
}
