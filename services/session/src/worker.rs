//! Claims turns that are ready and runs them.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{info, warn};

use crate::{
    driver::{self, Start},
    host::Host,
    ids::SessionId,
    store,
};

/// A wake-up that was lost costs this long.
const SWEEP: Duration = Duration::from_secs(1);

/// How often to look while nobody can wake us.
const ALONE: Duration = Duration::from_millis(100);

/// How many sessions are claimed in one round trip.
const CLAIMS: usize = 64;

/// How long turns that are cut off have to say so.
const FAREWELL: Duration = Duration::from_secs(5);

/// Runs turns until `stop`, then lets those under way finish for as long as a drain may take.
pub async fn run(host: Arc<Host>, stop: CancellationToken) {
    let turns = TaskTracker::new();
    let cut = CancellationToken::new();
    stop.run_until_cancelled(claim(&host, &turns, &cut)).await;

    turns.close();
    if timeout(host.config.chassis.server.drain, turns.wait()).await.is_err() {
        info!(turns = turns.len(), "turns still run, cutting them off");
        cut.cancel();
        let _ = timeout(FAREWELL, turns.wait()).await;
    }
}

async fn claim(host: &Arc<Host>, turns: &TaskTracker, cut: &CancellationToken) {
    let room = Arc::new(Semaphore::new(host.config.max_turns));
    let mut swept = Instant::now() - SWEEP;
    let mut connection = None;
    loop {
        // Whoever has no room leaves the turns to others.
        let Ok(permit) = room.acquire().await else { return };
        drop(permit);
        let limit = CLAIMS.min(room.available_permits());

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
        match store::turns::claim(&host.db, host.replica, &ids).await {
            Ok(claims) => {
                for (claim, context) in claims {
                    let permit = room.clone().try_acquire_owned();
                    let run =
                        driver::run(host.clone(), claim, context, Start::Claimed, cut.clone());
                    turns.spawn(async move {
                        run.await;
                        drop(permit);
                    });
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
        Ok(ids) => ids,
        Err(error) => {
            warn!(%error, "cannot look for turns");
            vec![]
        }
    }
}
