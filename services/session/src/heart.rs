//! Proves that this replica lives, and buries those that do not.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use crate::{host::Host, judge::Judge, recovery, store::replicas};

/// Dead replicas are forgotten every so many heartbeats.
const TIDY: u64 = 1000;

/// Beats until `done`. If this replica was declared dead, everything it owns belongs to
/// others: it stops, and whoever runs it starts a new one.
pub async fn beat(host: Arc<Host>, stop: CancellationToken, done: CancellationToken) {
    let mut judge = Judge::new(Duration::from_secs_f64(host.config.lease));
    // Beside the heartbeat: whoever waits for the tools service must not seem dead itself.
    let (dead, buried) = watch::channel(vec![]);
    tokio::spawn(done.clone().run_until_cancelled_owned(recovery::run(
        host.clone(),
        buried,
        done.clone(),
    )));
    let mut ticks = interval(Duration::from_secs_f64(host.config.heartbeat));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for beats in 1_u64.. {
        if done.run_until_cancelled(ticks.tick()).await.is_none() {
            return;
        }
        let peers = match replicas::beat(&host.db, host.replica).await {
            Ok(Some(peers)) => peers,
            Ok(None) => {
                error!(replica.id = %host.replica, "this process was taken for dead and its sessions were taken over, stopping");
                stop.cancel();
                return;
            }
            Err(error) => {
                warn!(%error, "cannot tell others that this process lives");
                continue;
            }
        };
        for peer in judge.observe(Instant::now(), &peers) {
            match replicas::bury(&host.db, peer.id, peer.counter).await {
                Ok(true) => warn!(replica.id = %peer.id, "replica {} is dead", peer.id),
                Ok(false) => {}
                Err(error) => warn!(%error, "cannot mark replica {} as dead", peer.id),
            }
        }
        if stop.is_cancelled() {
            continue;
        }
        let owners = peers.iter().filter(|peer| peer.dead && peer.owns);
        dead.send_replace(owners.map(|peer| peer.id).collect());
        if beats % TIDY == 0
            && let Err(error) = replicas::forget(&host.db).await
        {
            warn!(%error, "cannot forget dead replicas");
        }
    }
}
