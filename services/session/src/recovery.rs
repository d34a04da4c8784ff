//! Takes over from replicas that are dead.

use std::{collections::HashSet, mem, sync::Arc};

use chassis::Caller;
use proto::tools::v1::RaiseEpochRequest;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::{
    driver::{self, Start},
    error::Result,
    host::{ANSWER, Host},
    ids::{ReplicaId, SessionId},
    store::replicas::{self, Adopted, Orphan},
};

/// Looks after each heartbeat, which says who is dead and still owns sessions; how long that
/// takes does not keep the next heartbeat.
pub async fn run(
    host: Arc<Host>,
    mut dead: watch::Receiver<Vec<ReplicaId>>,
    done: CancellationToken,
) {
    let mut unknown = HashSet::new();
    while dead.changed().await.is_ok() {
        let owners = dead.borrow_and_update().clone();
        for id in owners {
            if let Err(error) = take_over(&host, id, &done).await {
                warn!(%error, replica.id = %id, "cannot take over from replica {id}, trying again");
            }
        }
        if let Err(error) = find_lost_claims(&host, &mut unknown, &done).await {
            warn!(%error, "cannot look for claims whose answer was lost");
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
            Adopted::Begun(claim, context) => {
                let host = host.clone();
                tokio::spawn(driver::run(
                    host,
                    claim,
                    *context,
                    None,
                    Start::Orphaned,
                    done.clone(),
                ));
            }
            Adopted::Ready => {
                host.bus.publish(&orphan.tenant, orphan.session_id, vec![], true);
            }
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
