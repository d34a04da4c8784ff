//! Proves that this replica lives, and buries those that do not.

use std::{sync::Arc, time::Instant};

use sqlx::PgPool;
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use crate::{config::Serve, host::Host, judge::Judge, lanes::Lanes, recovery, store::replicas};

/// Dead replicas are forgotten every so many heartbeats.
const TIDY: u64 = 1000;

/// Beats until `done`. If this replica was declared dead, everything it owns belongs to
/// others: it stops, and whoever runs it starts a new one.
///
/// `lane` is for this alone: whoever had to wait for a connection behind everybody's work would
/// seem dead for being busy, and what it runs would be ended for no reason.
pub async fn beat(host: Arc<Host>, lane: Lanes, stop: CancellationToken, done: CancellationToken) {
    let mut judge = Judge::new(host.config.lease);
    // Beside the heartbeat: whoever waits for the tools service must not seem dead itself.
    let (dead, buried) = watch::channel(vec![]);
    tokio::spawn(done.clone().run_until_cancelled_owned(recovery::run(
        host.clone(),
        buried,
        done.clone(),
    )));
    let mut ticks = interval(host.config.heartbeat);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for beats in 1_u64.. {
        if done.run_until_cancelled(ticks.tick()).await.is_none() {
            return;
        }
        let peers = match lane.run(async |db| replicas::beat(db, host.replica).await).await {
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
            match lane.run(async |db| replicas::bury(db, peer.id, peer.counter).await).await {
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
            && let Err(error) = lane.run(async |db| replicas::forget(db).await).await
        {
            warn!(%error, "cannot forget dead replicas");
        }
    }
}

/// The connection to beat over. One that says nothing for half a lease is given up for another,
/// while there is time to be heard on that.
pub fn lane(db: &PgPool, config: &Serve) -> anyhow::Result<Lanes> {
    Lanes::new(db, 1, config.lease / 2)
}
