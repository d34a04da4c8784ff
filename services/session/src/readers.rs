//! The readers on this replica, by session.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use prost::Message as _;
use proto::event::v1::Event;
use tokio::sync::broadcast;

use crate::ids::SessionId;

/// How far a reader may fall behind the live tail before it reads from Postgres.
const TAIL: usize = 128;

/// More than this is not kept for readers.
const LARGE: usize = 64 * 1024;

/// What a reader hears. Whatever it is, the reader checks it against its own count.
#[derive(Debug, Clone)]
pub enum Notice {
    Events(Arc<[Event]>),
    /// The log reaches this far.
    Reached(i64),
    /// The session was deleted.
    Gone,
}

#[derive(Clone, Default)]
pub struct Readers(Arc<Mutex<HashMap<SessionId, Topic>>>);

struct Topic {
    notices: broadcast::Sender<Notice>,
    /// Counted here and not by the channel, where a reader that is being dropped still counts.
    readers: usize,
}

impl Readers {
    /// One more, and whether it is the first.
    pub fn enter(&self, id: SessionId) -> (broadcast::Receiver<Notice>, bool) {
        let mut topics = self.topics();
        let topic = topics
            .entry(id)
            .or_insert_with(|| Topic { notices: broadcast::Sender::new(TAIL), readers: 0 });
        topic.readers += 1;
        (topic.notices.subscribe(), topic.readers == 1)
    }

    /// One less. For the last one `last` runs before anybody else can be the first.
    pub fn leave(&self, id: SessionId, last: impl FnOnce()) {
        let mut topics = self.topics();
        let Some(topic) = topics.get_mut(&id) else { return };
        topic.readers -= 1;
        if topic.readers == 0 {
            topics.remove(&id);
            last();
        }
    }

    /// The sessions that somebody reads.
    pub fn sessions(&self) -> Vec<SessionId> {
        self.topics().keys().copied().collect()
    }

    pub fn tell(&self, id: SessionId, notice: Notice) {
        if let Some(topic) = self.topics().get(&id) {
            let _ = topic.notices.send(notice);
        }
    }

    /// Tells what was committed. A lot of it readers get from Postgres, each when it can take it, so
    /// that one that does not keep up holds up to 8 MiB and not as much as was said.
    pub fn show(&self, id: SessionId, events: &Arc<[Event]>) {
        let topics = self.topics();
        let (Some(last), Some(topic)) = (events.last(), topics.get(&id)) else { return };
        let bytes: usize = events.iter().map(Event::encoded_len).sum();
        let _ = topic.notices.send(match bytes > LARGE {
            true => Notice::Reached(last.sequence),
            false => Notice::Events(events.clone()),
        });
    }

    fn topics(&self) -> MutexGuard<'_, HashMap<SessionId, Topic>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
