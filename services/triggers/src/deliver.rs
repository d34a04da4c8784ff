//! Brings firings to the session service: exactly one turn for each, whatever dies when.
//!
//! A firing is stored before anybody submits it, with all the bytes of its request, and its id is
//! the request's. So it can be submitted any number of times, by any number of replicas, and is
//! one turn. A lease keeps them from doing that without need.

mod attempt;
mod lines;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use sqlx::PgPool;
use tokio::{
    sync::{Notify, Semaphore, mpsc},
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::{
    clock::Clock,
    config::Config,
    firing::Pending,
    ids::{FiringId, TriggerId},
    metrics,
    sessions::Sessions,
    store::{self, firings::Delivered},
};
use lines::{BACKLOG, Held, Lines};

/// How many results are written at once, and how many may wait for that.
const AT_ONCE: usize = 256;
const WAITING: usize = 1_024;

/// Somebody else may take a firing that has waited this part of its lease.
const FRESH: f64 = 0.5;

/// How long what is under way may take when the process stops, and then what is to be written of it.
const LAST: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub struct Deliverer(Arc<Inner>);

struct Inner {
    db: PgPool,
    sessions: Sessions,
    lease: Duration,
    poll: Duration,
    places: Semaphore,
    lines: Mutex<Lines>,
    /// Somebody has gone.
    gone: Notify,
    results: mpsc::Sender<Delivered>,
    /// Ends when there is nobody who could send one.
    settling: Mutex<Option<JoinHandle<()>>>,
}

impl Deliverer {
    pub fn start(config: &Config, db: PgPool, clock: Clock, sessions: Sessions) -> Deliverer {
        let (results, settled) = mpsc::channel(WAITING);
        let settling = tokio::spawn(settle(db.clone(), clock, settled));
        Deliverer(Arc::new(Inner {
            db,
            sessions,
            lease: config.lease,
            poll: config.poll,
            places: Semaphore::new(config.deliveries.into()),
            lines: Mutex::default(),
            gone: Notify::new(),
            results,
            settling: Mutex::new(Some(settling)),
        }))
    }

    /// For how long a firing belongs to whoever took it.
    pub fn lease(&self) -> Duration {
        self.0.lease
    }

    /// Delivers firings that are stored, and that others leave alone for a lease from now.
    pub fn hand_over(&self, firings: Vec<Pending>) {
        let until = Instant::now() + self.0.lease.mul_f64(FRESH);
        let mut lines = self.lines();
        for pending in firings {
            let id = pending.trigger_id;
            if lines.push(pending, until) {
                tokio::spawn(self.clone().serve(id));
            }
        }
    }

    /// Waits until there is room for more, and says how much.
    pub async fn room(&self) -> usize {
        loop {
            let gone = self.0.gone.notified();
            let room = self.lines().room();
            if room > BACKLOG / 2 {
                return room;
            }
            gone.await;
        }
    }

    /// Looks for firings that nobody delivers, until `stop`.
    pub async fn sweep(self, stop: CancellationToken) {
        while stop.run_until_cancelled(self.look()).await.is_some() {}
    }

    async fn look(&self) {
        let limit = self.room().await.min(AT_ONCE);
        let busy = self.lines().busy();
        match store::firings::take(&self.0.db, limit as i64, self.0.lease, &busy).await {
            Ok(firings) => {
                let more = firings.len() == limit;
                self.hand_over(firings);
                if more {
                    return;
                }
            }
            Err(error) => warn!(%error, "cannot look for undelivered firings, trying again"),
        }
        sleep(self.0.poll).await;
    }

    /// Waits a little for what is under way, and for what became of it to be on record. The rest is
    /// somebody else's after the lease. Nobody may hand over more by then.
    pub async fn finish(self) {
        let settling = lock(&self.0.settling).take();
        let empty = async {
            loop {
                let gone = self.0.gone.notified();
                if self.lines().is_empty() {
                    return;
                }
                gone.await;
            }
        };
        let _ = timeout(LAST, empty).await;
        drop(self);
        if let Some(settling) = settling {
            let _ = timeout(LAST, settling).await;
        }
    }

    /// Delivers the firings of one trigger until there are none left. A firing waits in its line, where
    /// it is counted, until there is a place for it.
    async fn serve(self, trigger_id: TriggerId) {
        while let Ok(_place) = self.0.places.acquire().await {
            let Some(Held { id, until, pending }) = self.next(trigger_id) else { return };
            // What waited for long is somebody else's soon: the database says whose.
            if Instant::now() >= until {
                continue;
            }
            let pending = match pending {
                Some(pending) => Some(*pending),
                None => self.read(id).await,
            };
            if let Some(pending) = pending {
                let outcome = attempt::deliver(&self.0.db, &self.0.sessions, pending).await;
                metrics::delivered(outcome.as_ref());
                if let Some(outcome) = outcome {
                    let _ = self.0.results.send(Delivered { id, outcome }).await;
                }
            }
        }
    }

    fn next(&self, id: TriggerId) -> Option<Held> {
        let held = self.lines().next(id);
        self.0.gone.notify_waiters();
        held
    }

    /// A firing of which only the id waited here. Nothing: the lease decides.
    async fn read(&self, id: FiringId) -> Option<Pending> {
        store::firings::pending(&self.0.db, id).await.unwrap_or_else(|error| {
            warn!(%error, firing.id = %id, "cannot read firing {id}, trying again after its lease");
            None
        })
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        lock(&self.0.lines)
    }
}

/// Writes down what became of firings; while one batch is written the next one grows.
async fn settle(db: PgPool, clock: Clock, mut results: mpsc::Receiver<Delivered>) {
    let mut batch = Vec::with_capacity(AT_ONCE);
    while results.recv_many(&mut batch, AT_ONCE).await > 0 {
        while let Err(error) = store::firings::settle(&db, &batch, clock.now()).await {
            // Should the process end before it succeeds, somebody submits the same again.
            warn!(%error, "cannot record {} deliveries, trying again", batch.len());
            sleep(Duration::from_millis(500)).await;
        }
        batch.clear();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use chassis::Auth;
    use clap::Parser as _;

    use super::*;
    use crate::{
        firing::Status,
        store::{
            firings::Outcome,
            history,
            tests::{candidate, now, record, tenant, trigger},
        },
        trigger::Source,
    };

    #[sqlx::test(migrator = "crate::MIGRATIONS")]
    async fn what_was_delivered_last_is_on_record_before_the_end(db: PgPool) {
        chassis::database::MIGRATIONS.run(&db).await.unwrap();
        let config = Config::parse_from([
            "triggers",
            "--database-url=postgres://unused",
            "--redis-url=redis://unused",
            "--auth-internal-secret=a secret that only tests know about",
        ]);
        let auth = Auth::new("triggers", &config.chassis.auth, db.clone()).await.unwrap();
        let sessions = Sessions::new(&config, &auth).unwrap();
        let deliverer = Deliverer::start(&config, db.clone(), Clock::default(), sessions);
        let firing = candidate(&trigger(Source::Webhook), "a", now());
        record(&db, std::slice::from_ref(&firing), now()).await;

        // Writing it takes a while.
        let mut lock = db.begin().await.unwrap();
        sqlx::raw_sql("lock table triggers.firing").execute(&mut *lock).await.unwrap();
        let outcome = Outcome::Submitted { session_id: "ses_1".into(), turn_id: "turn_1".into() };
        let _ = deliverer.0.results.send(Delivered { id: firing.id, outcome }).await;
        tokio::join!(deliverer.finish(), async {
            sleep(Duration::from_millis(200)).await;
            lock.rollback().await.unwrap();
        });
        let (recorded, ..) = history::get(&db, &tenant(), firing.id).await.unwrap();
        assert_eq!(recorded.status, Status::Submitted);
    }
}
