//! Claims turns that are ready and runs them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep, timeout},
};
use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};
use tracing::{info, warn};

use crate::{
    driver::{self, Known, Start},
    host::Host,
    ids::SessionId,
    store::{
        self,
        turns::{Claim, Context},
    },
};

/// A wake-up that was lost costs this long.
const SWEEP: Duration = Duration::from_secs(1);

/// How often to look while nobody can wake us.
const ALONE: Duration = Duration::from_millis(100);

/// How many sessions are claimed in one round trip.
const CLAIMS: usize = 64;

/// How long turns that are cut off have to say so.
const FAREWELL: Duration = Duration::from_secs(5);

/// The room there is for turns on this replica.
pub struct Places {
    most: usize,
    room: Arc<Semaphore>,
    turns: TaskTracker,
    /// Ends the turns that last longer than a drain may take.
    cut: CancellationToken,
    /// How many sessions the last sweep found ready.
    ready: AtomicUsize,
}

/// Room for one turn, until it is dropped.
pub struct Place {
    _room: OwnedSemaphorePermit,
    _turn: TaskTrackerToken,
}

impl Places {
    pub fn new(turns: usize) -> Places {
        let room = Arc::new(Semaphore::new(turns));
        Places {
            most: turns,
            room,
            turns: TaskTracker::new(),
            cut: CancellationToken::new(),
            ready: AtomicUsize::new(0),
        }
    }

    /// How many turns run here.
    pub fn running(&self) -> usize {
        self.turns.len()
    }

    /// How many sessions waited for a worker when this process last looked. It counts no further
    /// than it could have claimed, and does not look while it has no room.
    pub fn ready(&self) -> usize {
        self.ready.load(Relaxed)
    }

    /// None, where turns had better run elsewhere: it is full here, or about to stop.
    pub fn take(&self) -> Option<Place> {
        let room = self.room.clone().try_acquire_owned().ok()?;
        Some(Place { _room: room, _turn: self.turns.token() })
    }

    /// For how many turns that nobody waits for: half of the room is kept for those that somebody
    /// does.
    pub fn spare(&self) -> usize {
        self.room.available_permits().saturating_sub(self.most / 2)
    }

    /// Waits until there is some, and says for how many turns, up to `most`.
    async fn free(&self, most: usize) -> usize {
        // Closed when we stop, and then nobody asks again.
        drop(self.room.acquire().await);
        self.room.available_permits().clamp(1, most)
    }
}

/// Runs a turn that was claimed.
pub async fn work(
    host: Arc<Host>,
    _place: Place,
    claim: Claim,
    context: Context,
    known: Option<Known>,
) {
    let cut = host.places.cut.clone();
    driver::run(host, claim, context, known, Start::Claimed, cut).await;
}

/// Runs turns until `stop`, then lets those under way finish for as long as a drain may take.
pub async fn run(host: Arc<Host>, stop: CancellationToken) {
    stop.run_until_cancelled(claim(&host)).await;

    let Places { room, turns, cut, .. } = &host.places;
    room.close();
    turns.close();
    if timeout(host.config.chassis.server.drain, turns.wait()).await.is_err() {
        info!(turns = turns.len(), "turns still run, cutting them off");
        cut.cancel();
        let _ = timeout(FAREWELL, turns.wait()).await;
    }
}

async fn claim(host: &Arc<Host>) {
    let mut swept = Instant::now() - SWEEP;
    let mut connection = None;
    loop {
        // Whoever has no room leaves the turns to others.
        let limit = host.places.free(CLAIMS).await;

        let mut ids = match &mut connection {
            Some(open) => match host.bus.ready(open, limit).await {
                Ok(ids) => ids,
                Err(error) => {
                    warn!(%error, "nobody wakes the workers, looking for turns instead");
                    connection = None;
                    vec![]
                }
            },
            None => {
                connection = host.bus.blocking().await.ok();
                if connection.is_none() {
                    sleep(ALONE).await;
                }
                vec![]
            }
        };
        if connection.is_none() || swept.elapsed() >= SWEEP {
            swept = Instant::now();
            ids.extend(sweep(host, limit - ids.len().min(limit)).await);
        }
        if ids.is_empty() {
            continue;
        }
        // Somebody may have been faster; what there is no place for any more, a sweep finds.
        let places: Vec<_> = ids.iter().map_while(|_| host.places.take()).collect();
        ids.truncate(places.len());
        match store::turns::claim(&host.db, host.replica, &ids).await {
            Ok(claims) => {
                for ((claim, context), place) in claims.into_iter().zip(places) {
                    tokio::spawn(work(host.clone(), place, claim, context, None));
                }
            }
            Err(error) => {
                warn!(%error, "cannot claim turns");
                sleep(ALONE).await;
            }
        }
    }
}

/// What is ready although nobody told us.
async fn sweep(host: &Host, limit: usize) -> Vec<SessionId> {
    match store::turns::ready(&host.db, limit as i64).await {
        Ok(ids) => {
            host.places.ready.store(ids.len(), Relaxed);
            ids
        }
        Err(error) => {
            warn!(%error, "cannot look for turns");
            vec![]
        }
    }
}
