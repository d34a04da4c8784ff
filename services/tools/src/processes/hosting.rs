//! What a server does for all of its processes: it shows that it lives, ends those that are not
//! wanted any more, and says of others' that they are lost.

use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{Processes, told};
use crate::{
    call::ProcessId,
    error::Result,
    store::processes::{self, End},
};

/// How long a server is believed to live after it last said so, and how often it says so.
pub const LEASE: Duration = Duration::from_secs(20);
const BEAT: Duration = Duration::from_secs(2);

/// How many beats pass between looks for what dead servers ran, and for what is old.
const ORPHANS: u64 = 2;
const OLD: u64 = 30;

/// How much one look takes on.
const AT_ONCE: i64 = 200;

/// How long processes get to be ended when the server stops.
const SHUTDOWN: Duration = Duration::from_secs(15);

impl Processes {
    /// Beats until `stop`.
    pub async fn host(self, retention: Duration, stop: CancellationToken) {
        let mut ticks = interval(BEAT);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut count = 0;
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            if let Err(error) = self.beat(count, retention).await {
                warn!(%error, "cannot look after processes, trying again");
            }
            count += 1;
        }
    }

    async fn beat(&self, count: u64, retention: Duration) -> Result<()> {
        let inner = &self.0;
        processes::beat(&inner.db, inner.host_id, LEASE).await?;
        self.look().await?;
        if count.is_multiple_of(ORPHANS) {
            self.find_lost().await?;
        }
        if count.is_multiple_of(OLD) {
            processes::forget(&inner.db, retention, AT_ONCE).await?;
        }
        Ok(())
    }

    /// Ends what is not wanted any more of what runs here.
    pub(super) async fn look(&self) -> Result<()> {
        let ids: Vec<ProcessId> = self.running().keys().copied().collect();
        if ids.is_empty() {
            return Ok(());
        }
        for (id, reason) in processes::unwanted(&self.0.db, self.0.host_id, &ids).await? {
            let running = self.running().get(&id).cloned();
            if let Some(running) = running {
                running.terminate(&reason).await;
            }
        }
        Ok(())
    }

    /// What a server ran that is gone is gone with it.
    async fn find_lost(&self) -> Result<()> {
        let db = &self.0.db;
        for key in processes::orphans(db, AT_ONCE).await? {
            let reason = "the server that ran it is gone".to_owned();
            let end = End { status: "lost", reason, ..End::default() };
            let event = told::about(&key, told::ended(&end));
            if processes::end(db, &key, &end, &[event]).await? {
                let id = key.process_id;
                info!(process.id = %id, host.id = %key.host_id, "process {id} is lost");
                self.0.news.notify_waiters();
            }
        }
        Ok(())
    }

    /// Ends everything that runs here, and says so, because it would end with us.
    pub async fn shut_down(&self) {
        let begun = Instant::now();
        while begun.elapsed() < SHUTDOWN {
            let running: Vec<_> = self.running().values().cloned().collect();
            if running.is_empty() {
                break;
            }
            for running in running {
                running.terminate("the server stopped").await;
            }
            sleep(Duration::from_millis(20)).await;
        }
        if let Err(error) = processes::leave(&self.0.db, self.0.host_id).await {
            warn!(%error, "cannot say that this server is gone; others will notice");
        }
    }
}
