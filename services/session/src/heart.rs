//! Proves that this replica lives, and takes over from those that do not.

use std::{
    collections::HashSet,
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use chassis::Caller;
use proto::tools::v1::RaiseEpochRequest;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::{
    driver::{self, Start},
    error::Result,
    host::{ANSWER, Host},
    ids::{ReplicaId, SessionId},
    judge::Judge,
    store::replicas::{self, Adopted, Orphan},
};

/// Dead replicas are forgotten every so many heartbeats.
const TIDY: u64 = 1000;

/// Beats until `done`. If this replica was declared dead, everything it owns belongs to
/// others: it stops, and whoever runs it starts a new one.
pub async fn beat(host: Arc<Host>, stop: CancellationToken, done: CancellationToken) {
    let mut judge = Judge::new(Duration::from_secs_f64(host.config.lease));
    let mut unknown = HashSet::new();
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
        for peer in peers.iter().filter(|peer| peer.dead && peer.owns) {
            if let Err(error) = take_over(&host, peer.id, &done).await {
                warn!(%error, replica.id = %peer.id, "cannot take over from replica {}, trying again", peer.id);
            }
        }
        if let Err(error) = find_lost_claims(&host, &mut unknown, &done).await {
            warn!(%error, "cannot look for claims whose answer was lost");
        }
        if beats % TIDY == 0
            && let Err(error) = replicas::forget(&host.db).await
        {
            warn!(%error, "cannot forget dead replicas");
        }
    }
}

/// Brings every turn of a dead replica to its end, one session at a time. Whoever dies in
/// the middle leaves the rest to the next.
async fn take_over(host: &Arc<Host>, dead: ReplicaId, done: &CancellationToken) -> Result<()> {
    let orphans = replicas::orphans(&host.db, dead).await?;
    info!(replica.id = %dead, sessions = orphans.len(), "taking over from replica {dead}");
    adopt(host, dead, orphans, done).await
}

/// Finds sessions that Postgres says are ours and nobody here drives: their claim was
/// committed and its answer lost. Seen twice, because a claim may be just on its way.
async fn find_lost_claims(
    host: &Arc<Host>,
    unknown: &mut HashSet<(SessionId, i64)>,
    done: &CancellationToken,
) -> Result<()> {
    let mut ours = replicas::orphans(&host.db, host.replica).await?;
    ours.retain(|orphan| !host.driven.contains(orphan.session_id, orphan.epoch));
    let before = mem::replace(
        unknown,
        ours.iter().map(|orphan| (orphan.session_id, orphan.epoch)).collect(),
    );
    ours.retain(|orphan| before.contains(&(orphan.session_id, orphan.epoch)));
    if !ours.is_empty() {
        warn!(sessions = ours.len(), "taking over sessions that were claimed without an answer");
    }
    adopt(host, host.replica, ours, done).await
}

async fn adopt(
    host: &Arc<Host>,
    dead: ReplicaId,
    orphans: Vec<Orphan>,
    done: &CancellationToken,
) -> Result<()> {
    for orphan in orphans {
        // A paused owner may wake up: first it must not be able to act, then to write.
        if !raise_epoch(host, &orphan).await {
            continue;
        }
        match replicas::adopt(&host.db, host.replica, orphan.session_id, dead).await? {
            Adopted::Begun(claim) => {
                tokio::spawn(driver::run(host.clone(), claim, Start::Orphaned, done.clone()));
            }
            Adopted::Ready => host.bus.publish(orphan.session_id, vec![], true),
            Adopted::Gone => {}
        }
    }
    Ok(())
}

async fn raise_epoch(host: &Host, orphan: &Orphan) -> bool {
    let (mut client, peer) = host.tools();
    let request =
        RaiseEpochRequest { session_id: orphan.session_id.to_string(), epoch: orphan.epoch + 1 };
    let caller = Caller::service(orphan.tenant.clone(), "system");
    match client.raise_epoch(peer.request_within(ANSWER, &caller, request)).await {
        Ok(_) => true,
        Err(status) => {
            let id = orphan.session_id;
            warn!(%status, session.id = %id, "cannot fence session {id} off at the tools service, trying again");
            false
        }
    }
}
