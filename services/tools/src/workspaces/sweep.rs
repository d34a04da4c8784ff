//! Finishes what somebody began who was killed.

use std::{fs, io, time::Duration};

use chassis::Tenant;
use tokio::{
    task::spawn_blocking,
    time::{MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{Workspaces, staging};
use crate::{call::WorkspaceId, error::Result, store::workspaces as store};

/// How often to look for leftovers. The first time is at the start.
const PERIOD: Duration = Duration::from_secs(60);

/// How many deletions are finished at a time.
const AT_ONCE: i64 = 100;

/// How many workspaces are claimed with one statement.
const BATCH: usize = 1_000;

impl Workspaces {
    /// Removes leftovers until `stop`.
    pub async fn sweep(&self, stop: CancellationToken) {
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            if let Err(error) = self.sweep_once().await {
                warn!(%error, "cannot remove what was left of workspaces, trying again");
            }
        }
    }

    async fn sweep_once(&self) -> Result<()> {
        for (tenant, id) in store::unfinished(&self.db, self.replica, AT_ONCE).await? {
            if let Err(error) = self.finish_deleting(&tenant, id).await {
                warn!(%error, workspace.id = %id, "workspace {id} cannot be removed, trying again");
            }
        }
        for tenant in self.tenants().await? {
            let folder = self.of(&tenant);
            spawn_blocking(move || staging::sweep(&folder)).await.map_err(io::Error::from)??;
        }
        Ok(())
    }

    /// Claims what is on this disk and nobody's, before somebody else does.
    pub async fn adopt(&self) -> Result<()> {
        let Some(replica) = self.replica else { return Ok(()) };
        for tenant in self.tenants().await? {
            let folder = self.of(&tenant);
            let listing = move || {
                let names = fs::read_dir(folder)?.flatten().map(|entry| entry.file_name());
                io::Result::Ok(names.filter_map(|name| name.to_str()?.parse().ok()).collect())
            };
            let ids: Vec<WorkspaceId> =
                spawn_blocking(listing).await.map_err(io::Error::from)??;
            for some in ids.chunks(BATCH) {
                store::adopt(&self.db, &tenant, some, replica).await?;
            }
        }
        Ok(())
    }

    /// Whoever has something on this disk.
    async fn tenants(&self) -> io::Result<Vec<Tenant>> {
        let root = self.root.clone();
        let listing = move || {
            let names = fs::read_dir(root)?.flatten().map(|entry| entry.file_name());
            io::Result::Ok(names.filter_map(|name| name.to_str()?.parse().ok()).collect())
        };
        spawn_blocking(listing).await?
    }
}
