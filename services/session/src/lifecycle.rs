//! How the turns of a whole tenant are getting on: told live through Redis, and looked up
//! in Postgres while Redis is away. A hint either way.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use chassis::Tenant;
use futures::Stream;
use jiff::Timestamp;
use proto::{
    event::v1::{Event, Payload},
    session::v1::{WatchTenantResponse, watch_tenant_response::Kind},
};
use sqlx::PgPool;
use tokio::{
    sync::{broadcast, mpsc, oneshot, watch},
    time::{MissedTickBehavior, interval, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::{
    bus::{Bus, Want},
    error::{Error, Result},
    store, time,
};

/// How far a watcher may fall behind before it is cut off: as far as one look can be ahead of them.
const TAIL: usize = 1024;

/// How much of what was told is remembered, so that a look tells nothing twice.
const TOLD: usize = 4096;

/// How often to look while nobody tells.
const POLL: Duration = Duration::from_secs(1);

/// How far back a look goes beyond the one before: commits and clocks may be late, and so may we in
/// finding out that nobody tells any more (`bus::PULSE` and `bus::ANSWER`).
const OVERLAP: Duration = Duration::from_secs(10);

/// How long a new watcher waits for news to flow.
const FLOWING: Duration = Duration::from_millis(500);

/// What an event means to those who watch the whole tenant.
pub fn news(event: &Event) -> Option<WatchTenantResponse> {
    let kind = match event.payload.as_ref()? {
        Payload::TurnStarted(_) => Kind::TurnStarted,
        Payload::TurnCompleted(_) => Kind::TurnCompleted,
        Payload::TurnFailed(_) => Kind::TurnFailed,
        Payload::ActionRequired(_) => Kind::AttentionNeeded,
        _ => return None,
    };
    Some(WatchTenantResponse {
        session_id: event.session_id.clone(),
        turn_id: event.turn_id.clone(),
        kind: kind.into(),
        sequence: event.sequence,
        time: event.timestamp,
    })
}

#[derive(Clone)]
pub struct Lifecycle {
    topics: Arc<Mutex<HashMap<Tenant, Topic>>>,
    wants: mpsc::UnboundedSender<Want<Tenant>>,
}

struct Topic {
    news: broadcast::Sender<WatchTenantResponse>,
    watchers: usize,
    /// Nothing from before is news.
    since: Timestamp,
    told: HashSet<(String, i64)>,
    order: VecDeque<(String, i64)>,
}

impl Topic {
    fn tell(&mut self, news: WatchTenantResponse) {
        let key = (news.session_id.clone(), news.sequence);
        if !self.told.insert(key.clone()) {
            return;
        }
        self.order.push_back(key);
        if self.order.len() > TOLD
            && let Some(oldest) = self.order.pop_front()
        {
            self.told.remove(&oldest);
        }
        let _ = self.news.send(news);
    }
}

/// A watcher's ear; gone when dropped.
struct Watcher {
    tenant: Tenant,
    news: broadcast::Receiver<WatchTenantResponse>,
    lifecycle: Lifecycle,
}

impl Lifecycle {
    pub fn start(bus: &Bus, db: PgPool, stop: CancellationToken) -> Lifecycle {
        let (wants, wanted) = mpsc::unbounded_channel();
        let lifecycle = Lifecycle { topics: Arc::default(), wants };
        let watchers = lifecycle.clone();
        let deliver = move |tenant: Tenant, news| watchers.tell(&tenant, [news]);
        let flows = bus.follow(wanted, deliver, stop.clone());
        tokio::spawn(stop.run_until_cancelled_owned(lifecycle.clone().poll(db, flows)));
        lifecycle
    }

    /// Everything that happens to a tenant's turns from here on.
    pub async fn watch(
        &self,
        tenant: &Tenant,
        stop: CancellationToken,
    ) -> impl Stream<Item = Result<WatchTenantResponse>> + Send + use<> {
        let mut watcher = self.listen(tenant).await;
        async_stream::try_stream! {
            loop {
                match stop.run_until_cancelled(watcher.news.recv()).await {
                    Some(Ok(news)) => yield news,
                    Some(Err(broadcast::error::RecvError::Lagged(_))) => Err(Error::WatcherTooSlow)?,
                    Some(Err(broadcast::error::RecvError::Closed)) | None => Err(Error::Stopping)?,
                }
            }
        }
    }

    async fn listen(&self, tenant: &Tenant) -> Watcher {
        let (news, first) = {
            let mut topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
            let topic = topics.entry(tenant.clone()).or_insert_with(|| Topic {
                news: broadcast::Sender::new(TAIL),
                watchers: 0,
                since: time::now(),
                told: HashSet::new(),
                order: VecDeque::new(),
            });
            topic.watchers += 1;
            (topic.news.subscribe(), topic.watchers == 1)
        };
        let watcher = Watcher { tenant: tenant.clone(), news, lifecycle: self.clone() };
        if first {
            let (flowing, flows) = oneshot::channel();
            let _ = self.wants.send(Want::Start(tenant.clone(), flowing));
            let _ = timeout(FLOWING, flows).await;
        }
        watcher
    }

    fn tell(&self, tenant: &Tenant, news: impl IntoIterator<Item = WatchTenantResponse>) {
        let mut topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(topic) = topics.get_mut(tenant) {
            news.into_iter().for_each(|news| topic.tell(news));
        }
    }

    /// Looks while nobody tells, and once more afterwards for what was said in between.
    async fn poll(self, db: PgPool, mut flows: watch::Receiver<bool>) {
        let mut ticks = interval(POLL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut told = false;
        loop {
            ticks.tick().await;
            // It may have stopped and begun again since we looked.
            let same = !flows.has_changed().unwrap_or(false);
            let was_told = std::mem::replace(&mut told, *flows.borrow_and_update()) && same;
            let now = time::now();
            let watched: Vec<(Tenant, Timestamp)> = {
                let mut topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
                let watched = topics.iter().map(|(tenant, topic)| (tenant.clone(), topic.since));
                let watched = watched.collect();
                if told {
                    topics
                        .values_mut()
                        .for_each(|topic| topic.since = topic.since.max(now - OVERLAP));
                }
                watched
            };
            if told && was_told {
                continue;
            }
            for (tenant, since) in watched {
                match store::watch::since(&db, &tenant, since).await {
                    Ok(events) => self.tell(&tenant, events.iter().filter_map(news)),
                    Err(error) => {
                        warn!(%error, "cannot look how the turns of {tenant} are getting on")
                    }
                }
                self.looked(&tenant, now - OVERLAP);
            }
        }
    }

    fn looked(&self, tenant: &Tenant, at: Timestamp) {
        let mut topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(topic) = topics.get_mut(tenant) {
            topic.since = topic.since.max(at);
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let mut topics = self.lifecycle.topics.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(topic) = topics.get_mut(&self.tenant) else { return };
        topic.watchers -= 1;
        if topic.watchers == 0 {
            topics.remove(&self.tenant);
            let _ = self.lifecycle.wants.send(Want::Stop(self.tenant.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use chassis::Redis;
    use futures::StreamExt as _;

    use super::*;
    use crate::{
        ids::ReplicaId,
        pending::Owner,
        testing::{World, completed, pending, started},
        turn::Ending,
    };

    #[sqlx::test(migrator = "crate::MIGRATIONS")]
    async fn without_redis_a_watcher_hears_of_turns_too(db: PgPool) {
        let world = World::new(db).await;
        let stop = CancellationToken::new();
        let _stop = stop.clone().drop_guard();
        let args = chassis::redis::Args { redis_url: "redis://127.0.0.1:1".into() };
        let bus = Bus::start(Redis::new(&args).unwrap(), ReplicaId::new(), stop.clone());
        let lifecycle = Lifecycle::start(&bus, world.db.clone(), stop.clone());
        let mut news = std::pin::pin!(lifecycle.watch(&world.tenant, stop.clone()).await);

        let claim = world.claimed().await;
        let owner = Owner::from(&claim);
        let rows = pending(|pending, now| {
            pending.append(started(), now);
            pending.append(completed(), now);
            pending.end(Ending::Completed);
        });
        world.flush(&owner, &rows).await.unwrap();
        for (kind, sequence) in [(Kind::TurnStarted, 4), (Kind::TurnCompleted, 5)] {
            let told = news.next().await.unwrap().unwrap();
            assert_eq!((told.kind(), told.sequence), (kind, sequence));
            assert_eq!(told.turn_id, claim.turn_id.to_string());
        }
        // Another look finds the same, which is no news.
        let more = timeout(POLL * 3, news.next()).await;
        assert!(more.is_err(), "{more:?}");
    }
}
