//! Looks for what people want of running turns: that they stop, or that they wait no longer.

use std::sync::Arc;

use proto::event::v1::ActionResolved;
use tokio::{
    sync::mpsc,
    time::{MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::{
    error::{Error, Result},
    host::Host,
    store::{
        self,
        actions::{Answer, Due},
        turns::Stamp,
    },
};

/// How many questions expire in one round; the rest do in the next.
const EXPIRE: i64 = 100;

/// Looks with every heartbeat, and at once when somebody says that there is something.
pub async fn run(host: Arc<Host>, mut nudges: mpsc::Receiver<()>, done: CancellationToken) {
    let mut ticks = interval(host.config.heartbeat);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let beat = tokio::select! {
            () = done.cancelled() => return,
            _ = ticks.tick() => true,
            Some(()) = nudges.recv() => false,
        };
        if let Err(error) = stop(&host).await {
            warn!(%error, "cannot look for turns that somebody wants stopped");
        }
        if beat {
            host.lanes.tidy();
            if let Err(error) = expire(&host).await {
                warn!(%error, "cannot look for questions that expired");
            }
        }
    }
}

async fn stop(host: &Host) -> Result<()> {
    for (id, interrupt) in store::turns::interrupts(&host.db, host.replica).await? {
        host.flusher.interrupt(id, interrupt);
    }
    Ok(())
}

async fn expire(host: &Host) -> Result<()> {
    let resolution = ActionResolved { status: "expired".to_owned(), ..ActionResolved::default() };
    let stamp = Stamp::of(host.replica);
    for Due { tenant, session_id, id, kind } in store::actions::due(&host.db, EXPIRE).await? {
        let answer = Answer {
            tenant: &tenant,
            session_id,
            action_id: id,
            kind: if kind == "approval" { "approval" } else { "question" },
            resolution: &resolution,
            rule: None,
        };
        match store::actions::resolve(&host.db, answer, &stamp).await {
            Ok(resolved) => {
                host.bus.publish(&tenant, session_id, resolved.events, resolved.ready);
            }
            // Somebody answered at the last moment, or another replica was faster.
            Err(Error::ActionResolved { .. } | Error::ActionNotFound { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
