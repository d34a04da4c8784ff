//! A live reader of one session: snapshot, backlog, live tail.
//!
//! It listens first and reads second, counts for itself, and reads from Postgres whatever
//! it was not told. So there is neither gap nor duplicate, whoever publishes what when.

use futures::Stream;
use proto::{event::v1::Event, session::v1 as pb};
use sqlx::PgPool;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use crate::{
    error::{Error, Result},
    hub::{Listener, Notice},
    ids::SessionId,
    store,
};

/// How many events one read takes from the log.
const PAGE: i64 = 1000;

/// Yields `first`, then every event after `after`, until the reader or the server leaves.
pub fn read(
    db: PgPool,
    id: SessionId,
    first: pb::SubscribeSnapshot,
    mut after: i64,
    reached: i64,
    mut listener: Listener,
    stop: CancellationToken,
) -> impl Stream<Item = Result<pb::SubscribeResponse>> + Send {
    use pb::subscribe_response::Item;
    async_stream::try_stream! {
        yield pb::SubscribeResponse { item: Some(Item::Snapshot(first.into())) };
        let mut reached = reached;
        loop {
            while after < reached {
                let events = store::events::after(&db, id, after, PAGE).await?;
                if events.is_empty() {
                    break;
                }
                for event in events {
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
                // It fell behind the live tail: the log has what it missed.
                Err(RecvError::Lagged(_)) => reached = i64::MAX,
                Err(RecvError::Closed) => Err(Error::Stopping)?,
            }
        }
    }
}

fn response(event: Event) -> pb::SubscribeResponse {
    pb::SubscribeResponse { item: Some(pb::subscribe_response::Item::Event(event.into())) }
}
