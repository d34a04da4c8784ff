//! Brings live events to the readers on this replica.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use prost::Message as _;
use proto::{event::v1::Event, session::v1::ListEventsResponse};
use sqlx::PgPool;
use tokio::{
    sync::{broadcast, mpsc, oneshot},
    time::{MissedTickBehavior, interval, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::{
    bus::{Bus, Want},
    ids::SessionId,
    store,
};

/// How far a reader may fall behind the live tail before it reads from Postgres.
const TAIL: usize = 128;

/// More than this is not kept for readers.
const LARGE: usize = 64 * 1024;

/// A lost publication costs a reader this long and never an event.
const POLL: Duration = Duration::from_secs(1);

/// How long a new reader waits for live events to flow before it relies on the poll.
const FLOWING: Duration = Duration::from_millis(500);

/// What a reader hears. Whatever it is, the reader checks it against its own count.
#[derive(Debug, Clone)]
pub enum Notice {
    Events(Arc<[Event]>),
    /// The log reaches this far.
    Reached(i64),
    /// The session was deleted.
    Gone,
}

#[derive(Clone)]
pub struct Hub {
    topics: Arc<Mutex<HashMap<SessionId, Topic>>>,
    wants: mpsc::UnboundedSender<Want<SessionId>>,
}

struct Topic {
    notices: broadcast::Sender<Notice>,
    /// Counted here and not by the channel, where a reader that is being dropped still counts.
    readers: usize,
}

/// A reader's ear; gone when dropped.
pub struct Listener {
    id: SessionId,
    pub notices: broadcast::Receiver<Notice>,
    hub: Hub,
}

impl Hub {
    pub fn start(bus: &Bus, db: PgPool, stop: CancellationToken) -> Hub {
        let (wants, wanted) = mpsc::unbounded_channel();
        let hub = Hub { topics: Arc::default(), wants };
        let readers = hub.clone();
        let deliver = move |id, said: ListEventsResponse| readers.tell(id, notice(said));
        bus.follow(wanted, deliver, stop.clone());
        tokio::spawn(stop.run_until_cancelled_owned(hub.clone().poll(db)));
        hub
    }

    /// Hears everything that happens to a session from here on.
    pub async fn listen(&self, id: SessionId) -> Listener {
        let (notices, first) = {
            let mut topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
            let topic = topics
                .entry(id)
                .or_insert_with(|| Topic { notices: broadcast::Sender::new(TAIL), readers: 0 });
            topic.readers += 1;
            (topic.notices.subscribe(), topic.readers == 1)
        };
        let listener = Listener { id, notices, hub: self.clone() };
        if first {
            let (flowing, flows) = oneshot::channel();
            let _ = self.wants.send(Want::Start(id, flowing));
            let _ = timeout(FLOWING, flows).await;
        }
        listener
    }

    fn tell(&self, id: SessionId, notice: Notice) {
        let topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(topic) = topics.get(&id) {
            let _ = topic.notices.send(notice);
        }
    }

    async fn poll(self, db: PgPool) {
        let mut ticks = interval(POLL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let ids: Vec<_> = {
                let topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
                topics.keys().copied().collect()
            };
            if ids.is_empty() {
                continue;
            }
            match store::sessions::last_sequences(&db, &ids).await {
                Ok(reached) => {
                    let reached: HashMap<_, _> = reached.into_iter().collect();
                    for id in ids {
                        let last = reached.get(&id);
                        self.tell(id, last.map_or(Notice::Gone, |last| Notice::Reached(*last)));
                    }
                }
                Err(error) => warn!(%error, "cannot look for events that were not published"),
            }
        }
    }
}

/// What readers are told of a publication. A large one they read from Postgres, each when it can
/// take it, so that one that does not keep up holds up to 8 MiB and not as much as was said.
fn notice(said: ListEventsResponse) -> Notice {
    match said.events.last() {
        Some(last) if said.encoded_len() > LARGE => Notice::Reached(last.sequence),
        _ => Notice::Events(said.events.into()),
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut topics = self.hub.topics.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(topic) = topics.get_mut(&self.id) else { return };
        topic.readers -= 1;
        if topic.readers == 0 {
            topics.remove(&self.id);
            let _ = self.hub.wants.send(Want::Stop(self.id));
        }
    }
}

#[cfg(test)]
mod tests;
