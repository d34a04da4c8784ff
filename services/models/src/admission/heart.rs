//! Tells others that this process lives, and ends what is left of those that do not.
//!
//! A process is given up when neither Postgres nor Redis has heard of it for a lease, by the clock
//! of whoever watches it. One that reached neither for as long ends its own calls: their
//! reservations may be somebody else's by then. One that reaches Redis and not Postgres is in the way of
//! all that are counted anew, and is sent away by those who wait for it.

use std::{
    collections::{HashMap, HashSet},
    sync::atomic::Ordering::Relaxed,
    time::Duration,
};

use opentelemetry::{KeyValue, global};
use serde_json::{Value, json};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::{Admission, Without, lock};
use crate::{
    bus::Settled,
    limit::Worst,
    request::ReplicaId,
    store::{replicas, replicas::Replica, requests},
};

/// Beats in a lease.
pub const BEATS: u32 = 15;

/// The counters of how many tenants are counted anew at once for calls that are to be settled.
const AT_ONCE: usize = 16;

/// When each process was last seen to have counted, and how far it had come.
#[derive(Default)]
struct Watch(HashMap<ReplicaId, (i64, Instant)>);

/// Runs until it is dropped. What takes its time must not delay a beat.
pub async fn run(admission: Admission) {
    tokio::join!(beats(&admission), rounds(&admission), warn_of_redis(&admission));
}

async fn beats(admission: &Admission) {
    let mut ticks = ticks(admission);
    let mut registered = true;
    loop {
        ticks.tick().await;
        if !registered {
            let replica = admission.0.here().replica;
            registered = replicas::register(&admission.0.db, replica).await.is_ok();
            if !registered {
                continue;
            }
            admission.0.here().heard = Some(Instant::now());
        }
        if !admission.beat().await {
            admission.give_up();
            registered = false;
        }
    }
}

async fn rounds(admission: &Admission) {
    let mut ticks = ticks(admission);
    let (mut watch, mut tidied) = (Watch::default(), Instant::now());
    loop {
        ticks.tick().await;
        admission.release_all().await;
        admission.watch(&mut watch).await;
        if tidied.elapsed() > admission.0.lease {
            admission.tidy().await;
            tidied = Instant::now();
        }
    }
}

/// Once, when it answers.
async fn warn_of_redis(admission: &Admission) {
    let mut ticks = ticks(admission);
    loop {
        ticks.tick().await;
        match admission.0.bus.tells_lives().await {
            Ok(true) => return,
            Ok(false) => break,
            Err(_) => continue,
        }
    }
    warn!(
        "what Redis has from before a restart is believed, and budgets may be overspent by it: \
         allow `+info` to its user, and have it show master_replid"
    );
}

fn ticks(admission: &Admission) -> Interval {
    let mut ticks = interval((admission.0.lease / BEATS).max(Duration::from_millis(20)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

impl Admission {
    /// Says that we live. `false`: others do not think so, or might not.
    async fn beat(&self) -> bool {
        let replica = self.0.here().replica;
        let on_record = async {
            // Whoever asks Redis now tells the ledger before this beat counts.
            drop(self.0.asking.write().await);
            self.0.ledger.flush().await;
            replicas::beat(&self.0.db, replica).await
        };
        let tenants = self.0.tenants();
        let patience = self.0.lease / 3;
        let (postgres, redis) = tokio::join!(
            timeout(patience, on_record),
            timeout(patience, self.0.bus.live(replica, &tenants, self.0.lease)),
        );
        let mut here = self.0.here();
        // Who slept longer than the lease does not know what became of it meanwhile.
        let slept = here.heard.is_some_and(|heard| heard.elapsed() > self.0.lease);
        let (postgres, redis) =
            (postgres.ok().and_then(Result::ok), redis.ok().and_then(Result::ok));
        if slept || postgres == Some(false) || redis == Some(false) {
            return false;
        }
        if postgres.or(redis).is_some() {
            here.heard = Some(Instant::now());
        }
        true
    }

    /// Goes on as another process, and without the calls of this one.
    fn give_up(&self) {
        let mut here = self.0.here();
        warn!(replica.id = %here.replica, "this process was silent for too long, its calls end");
        here.given_up.cancel();
        here.given_up = CancellationToken::new();
        here.replica = ReplicaId::new();
        here.heard = None;
    }

    /// Looks after the others.
    async fn watch(&self, watch: &mut Watch) {
        let here = self.0.here().replica;
        let Ok(all) = replicas::all(&self.0.db).await else {
            // What was not seen all the time was not seen to stand still.
            watch.0.clear();
            return;
        };
        let count = all.iter().filter(|replica| !replica.dead).count();
        self.0.here().replicas = count;
        watch.0.retain(|id, _| all.iter().any(|replica| replica.id == *id));
        for replica in all.into_iter().filter(|replica| replica.id != here) {
            if !watch.is_still(&replica, self.0.lease) {
                // It may have left something behind between being given up and being looked at.
                if replica.dead {
                    self.clear_away(&replica, false).await;
                }
                continue;
            }
            if replica.dead {
                self.clear_away(&replica, true).await;
            } else if let Ok(false) = self.0.bus.is_alive(replica.id).await
                && let Ok(true) = replicas::give_up(&self.0.db, replica.id, replica.beat).await
            {
                warn!(replica.id = %replica.id, "process {} is gone, its calls are ended", replica.id);
                watch.0.remove(&replica.id);
                self.clear_away(&replica, false).await;
            }
        }
    }

    /// Ends the calls of a process that is gone, in the ledger and in Redis.
    async fn clear_away(&self, replica: &Replica, for_good: bool) {
        if let Err(error) = self.try_clear_away(replica.id, for_good).await {
            debug!(%error, replica.id = %replica.id, "not everything of {} is cleared away yet", replica.id);
            return;
        }
        if for_good {
            let _ = replicas::remove(&self.0.db, replica.id).await;
        }
    }

    async fn try_clear_away(&self, replica: ReplicaId, for_good: bool) -> anyhow::Result<()> {
        let mut names = replicas::close(&self.0.db, replica).await?;
        self.0.counts.abandoned.fetch_add(names.len() as u64, Relaxed);
        names.extend(replicas::governed(&self.0.db).await?);
        let served = self.0.bus.served(replica).await?;
        let mut tenants: Vec<_> =
            names.into_iter().filter_map(|name| name.try_into().ok()).collect();
        tenants.extend(served);
        tenants.sort();
        tenants.dedup();
        for tenant in tenants {
            for (id, held) in self.0.bus.held(&tenant).await? {
                if held.replica != replica {
                    continue;
                }
                // It may never have come to the ledger, or have ended there with what it really took.
                let mut row = held.row;
                row.abandon();
                requests::write(&self.0.db, std::slice::from_ref(&row)).await?;
                let taken = requests::get(&self.0.db, id).await?.taken();
                self.0.bus.settle(&tenant, id, taken).await?;
            }
            // It may have had a share, and what it admitted by that is on record and not in Redis.
            if for_good && self.0.without == Without::Share {
                self.0.bus.invalidate(&tenant).await?;
            }
        }
        Ok(())
    }

    /// Settles what ended while Redis could not be told.
    async fn release_all(&self) {
        let ended: Vec<_> = lock(&self.0.calls)
            .iter()
            .filter(|(_, call)| call.ended.is_some())
            .map(|(id, call)| (*id, call.tenant.clone()))
            .collect();
        let mut lost = HashSet::new();
        for (id, tenant) in ended {
            if !self.0.bus.is_up() {
                return;
            }
            // What is lost for one is lost for all of the tenant's.
            if !lost.contains(&tenant) && self.release(&tenant, id).await == Some(Settled::Lost) {
                lost.insert(tenant);
            }
        }
        // Whoever calls next would have it counted, but perhaps nobody does.
        for tenant in lost.iter().take(AT_ONCE) {
            drop(self.count_anew(tenant));
        }
        self.leave_shares().await;
    }

    /// Gives back what is reserved in our name and belongs to no call of ours.
    async fn tidy(&self) {
        let here = self.0.here().replica;
        for tenant in self.0.tenants() {
            let Ok(held) = self.0.bus.held(&tenant).await else { return };
            for (id, _) in held.into_iter().filter(|(_, held)| held.replica == here) {
                if lock(&self.0.calls).contains_key(&id) {
                    continue;
                }
                let nothing = Worst { tokens: 0, micros: 0 };
                if let Ok(Settled::Done) = self.0.bus.settle(&tenant, id, nothing).await {
                    warn!(request.id = %id, "request {id} had left a reservation");
                }
            }
        }
    }

    /// What `/health` shows.
    pub fn health(&self) -> Value {
        let counts = &self.0.counts;
        json!({
            "in_use": lock(&self.0.calls).len(),
            "admitted": counts.admitted.load(Relaxed),
            "blocked": counts.blocked.load(Relaxed),
            "rebuilt": counts.rebuilt.load(Relaxed),
            "abandoned": counts.abandoned.load(Relaxed),
            "ledger_waiting": self.0.ledger.waiting(),
            "replicas": self.0.here().replicas,
            "redis": self.0.bus.is_up(),
        })
    }
}

impl Watch {
    /// Whether a process has not counted for a lease while we looked.
    fn is_still(&mut self, replica: &Replica, lease: Duration) -> bool {
        let (beat, since) = self.0.entry(replica.id).or_insert((replica.beat, Instant::now()));
        if *beat != replica.beat {
            (*beat, *since) = (replica.beat, Instant::now());
        }
        since.elapsed() >= lease
    }
}

/// Shows the same as metrics.
pub fn observe(admission: &Admission) {
    let meter = global::meter("models");
    for (name, description, key) in [
        ("models.calls.in_use", "Calls that hold a reservation", "in_use"),
        ("models.calls.admitted", "Calls that were admitted since the start", "admitted"),
        (
            "models.calls.blocked",
            "Calls that a limit or a budget refused since the start",
            "blocked",
        ),
        ("models.counters.rebuilt", "How often a tenant's counters were counted anew", "rebuilt"),
        ("models.ledger.waiting", "Rows that wait to be written", "ledger_waiting"),
    ] {
        let admission = admission.clone();
        meter
            .u64_observable_gauge(name)
            .with_description(description)
            .with_callback(move |gauge| {
                let value = admission.health()[key].as_u64().unwrap_or_default();
                gauge.observe(value, &[] as &[KeyValue]);
            })
            .build();
    }
}
