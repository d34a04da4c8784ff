//! A live reader of one session: snapshot, backlog, live tail.
//!
//! It listens first and reads second, counts for itself, and reads from Postgres whatever
//! it was not told. So there is neither gap nor duplicate, whoever publishes what when.

use std::{future::Future, pin::pin, time::Duration};

use futures::{Stream, StreamExt as _};
use proto::{
    event::v1::Event,
    session::v1::{self as pb, subscribe_response::Item},
};
use sqlx::PgPool;
use tokio::{
    sync::{broadcast::error::RecvError, mpsc, oneshot},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::{
    error::{Error, Result},
    hub::Listener,
    ids::SessionId,
    readers::Notice,
    store,
};

/// How many events one read takes from the log.
const PAGE: i64 = 1000;

/// How many events wait for a reader; beyond that the log waits.
const BUFFER: usize = 16;

/// What a reader begins with.
pub struct Opening {
    pub snapshot: pb::SubscribeSnapshot,
    /// Says that events are missing before `after`.
    pub repaired: Option<Event>,
    /// The reader has everything up to here.
    pub after: i64,
    /// The log reaches this far.
    pub reached: i64,
}

/// Yields the opening, then every event after it, until the reader or the server leaves.
pub fn read(
    db: PgPool,
    id: SessionId,
    opening: Opening,
    mut listener: Listener,
    stop: CancellationToken,
) -> impl Stream<Item = Result<pb::SubscribeResponse>> + Send {
    async_stream::try_stream! {
        let Opening { snapshot, repaired, mut after, mut reached } = opening;
        yield pb::SubscribeResponse { item: Some(Item::Snapshot(snapshot.into())) };
        // Who was told that events are missing may begin in the middle of joined deltas.
        let mut told = repaired.is_some();
        if let Some(event) = repaired {
            yield response(event);
        }
        loop {
            while after < reached {
                let events = store::events::after(&db, id, after, PAGE).await?;
                if events.is_empty() {
                    break;
                }
                for event in events {
                    // Retention removed what comes in between while we were on our way to it.
                    if store::events::first_of(&event) != after + 1 && !told {
                        Err(Error::CursorExpired { id, after, first: event.sequence })?;
                    }
                    told = false;
                    after = event.sequence;
                    yield response(event);
                }
            }
            let Some(notice) = stop.run_until_cancelled(listener.notices.recv()).await else {
                Err(Error::Stopping)?
            };
            match notice {
                Ok(Notice::Events(events)) => {
                    for event in events.iter() {
                        if event.sequence == after + 1 {
                            after = event.sequence;
                            yield response(event.clone());
                        }
                    }
                    reached = events.last().map_or(after, |event| event.sequence);
                }
                Ok(Notice::Reached(last)) => reached = last,
                Ok(Notice::Gone) => Err(Error::SessionNotFound(id))?,
                // It fell behind the live tail: the log has what it missed.
                Err(RecvError::Lagged(_)) => reached = i64::MAX,
                Err(RecvError::Closed) => Err(Error::Stopping)?,
            }
        }
    }
}

/// Why a reader is no longer served, in the words of `channel.disconnected`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    Closed,
    Lost,
    TooSlow,
    Stopping,
}

impl Left {
    pub fn as_str(self) -> &'static str {
        match self {
            Left::Closed => "closed",
            Left::Lost => "lost",
            Left::TooSlow => "too_slow",
            Left::Stopping => "stopping",
        }
    }
}

/// Serves a reader from a task of its own, so that one that does not read is noticed: it is dropped
/// when an event has waited `patience` for it. What was handed over until then still
/// arrives, and the error behind it says how far that is. `left` has run before the stream ends.
pub fn serve<F: Future<Output = ()> + Send>(
    id: SessionId,
    items: impl Stream<Item = Result<pb::SubscribeResponse>> + Send + 'static,
    patience: Duration,
    left: impl FnOnce(Left) -> F + Send + 'static,
) -> impl Stream<Item = Result<pb::SubscribeResponse>> + Send {
    let (sender, mut receiver) = mpsc::channel(BUFFER);
    let (end, last_words) = oneshot::channel();
    tokio::spawn(async move {
        let error = tokio::select! {
            () = sender.closed() => None,
            error = feed(id, items, &sender, patience) => error,
        };
        drop(sender);
        left(match &error {
            None => Left::Closed,
            Some(Error::Stopping) => Left::Stopping,
            Some(Error::ReaderTooSlow { .. }) => Left::TooSlow,
            Some(_) => Left::Lost,
        })
        .await;
        if let Some(error) = error {
            let _ = end.send(error);
        }
    });
    async_stream::try_stream! {
        while let Some(item) = receiver.recv().await {
            yield item;
        }
        if let Ok(error) = last_words.await {
            Err(error)?;
        }
    }
}

/// Hands everything over until that is no longer possible. `None`: the reader went away.
async fn feed(
    id: SessionId,
    items: impl Stream<Item = Result<pb::SubscribeResponse>>,
    reader: &mpsc::Sender<pb::SubscribeResponse>,
    patience: Duration,
) -> Option<Error> {
    let mut items = pin!(items);
    let mut last = 0;
    while let Some(item) = items.next().await {
        let item = match item {
            Ok(item) => item,
            Err(error) => return Some(error),
        };
        let reached = match &item.item {
            Some(Item::Event(event)) => event.sequence,
            _ => last,
        };
        match timeout(patience, reader.send(item)).await {
            Ok(Ok(())) => last = reached,
            Ok(Err(_)) => return None,
            Err(_) => return Some(Error::ReaderTooSlow { id, last }),
        }
    }
    None
}

fn response(event: Event) -> pb::SubscribeResponse {
    pb::SubscribeResponse { item: Some(Item::Event(event.into())) }
}
