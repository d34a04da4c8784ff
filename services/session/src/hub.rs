//! Brings to the readers on this replica what happens elsewhere, and what nobody told.

use std::{collections::HashMap, sync::Arc, time::Duration};

use proto::session::v1::ListEventsResponse;
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
    readers::{Notice, Readers},
    store,
};

/// A lost publication costs a reader this long and never an event.
const POLL: Duration = Duration::from_secs(1);

/// How long a new reader waits for live events to flow before it relies on the poll.
const FLOWING: Duration = Duration::from_millis(500);

#[derive(Clone)]
pub struct Hub {
    readers: Readers,
    wants: mpsc::UnboundedSender<Want<SessionId>>,
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
        let readers = bus.readers().clone();
        let deliver = {
            let readers = readers.clone();
            move |id, said: ListEventsResponse| readers.show(id, &Arc::from(said.events))
        };
        bus.follow(wanted, deliver, stop.clone());
        tokio::spawn(stop.run_until_cancelled_owned(poll(readers.clone(), db)));
        Hub { readers, wants }
    }

    /// Hears everything that happens to a session from here on.
    pub async fn listen(&self, id: SessionId) -> Listener {
        let (notices, first) = self.readers.enter(id);
        let listener = Listener { id, notices, hub: self.clone() };
        if first {
            let (flowing, flows) = oneshot::channel();
            let _ = self.wants.send(Want::Start(id, flowing));
            let _ = timeout(FLOWING, flows).await;
        }
        listener
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let Listener { id, hub, .. } = self;
        hub.readers.leave(*id, || {
            let _ = hub.wants.send(Want::Stop(*id));
        });
    }
}

async fn poll(readers: Readers, db: PgPool) {
    let mut ticks = interval(POLL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let ids = readers.sessions();
        if ids.is_empty() {
            continue;
        }
        match store::sessions::last_sequences(&db, &ids).await {
            Ok(reached) => {
                let reached: HashMap<_, _> = reached.into_iter().collect();
                for id in ids {
                    let last = reached.get(&id);
                    readers.tell(id, last.map_or(Notice::Gone, |last| Notice::Reached(*last)));
                }
            }
            Err(error) => warn!(%error, "cannot look for events that were not published"),
        }
    }
}

#[cfg(test)]
mod tests;
