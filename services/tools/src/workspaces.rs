//! The workspaces on this disk: where they are, who is in them, how full they are, and what
//! happens to them as a whole.
//!
//! Beside the workspaces of a tenant, in directories whose names no workspace has, are the locks
//! on them, their snapshots, and what is being made or removed.

mod gauge;
mod lock;
mod staging;
mod snapshots;
mod import;
mod sweep;

use std::{
    collections::HashMap,
    future::pending,
    io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, Weak},
    time::Duration,
};

use chassis::{Place, Places, Tenant};
use sqlx::PgPool;
use tokio::{task::spawn_blocking, time::sleep};
use tokio_util::sync::CancellationToken;

pub use gauge::{Gauge, Limits};
pub use import::{Format, Git, Received};

use self::{
    lock::{Lock, PATIENCE, Share},
    staging::Stage,
};
use crate::{
    call::{ReplicaId, WorkspaceId},
    error::{Error, Result},
    files::{Used, Workspace},
    store::workspaces as store,
    workspace,
};

pub struct Workspaces {
    pub db: PgPool,
    pub root: PathBuf,

    /// What a workspace may hold, and the most that one can be given.
    pub limits: Limits,

    /// How many snapshots are kept of each.
    pub most_snapshots: u32,

    /// Whose disk this is. Absent: all replicas have it.
    pub replica: Option<ReplicaId>,

    known: moka::sync::Cache<Key, Arc<Known>>,

    /// Those that somebody is in, whether or not they are remembered.
    in_use: Mutex<HashMap<Key, Weak<Known>>>,

    /// How many trees are copied or unpacked at a time.
    copies: Places,

    /// How many bundles are cloned, which may take as long as whoever made them wants.
    clones: Places,

    /// How many files are on their way here, each of which is on the disk meanwhile.
    uploads: Places,

    /// How many archives are on the disk, from their first byte until they are unpacked: that may
    /// take long, and files must not have to wait for it.
    archives: Places,

    /// How many clients may have a workspace counted, which takes a thread for as long as that takes.
    counts: Places,
}

type Key = (Tenant, WorkspaceId);

/// How many workspaces are remembered, and for how long: another process on the same disk may
/// delete them.
const MOST_KNOWN: usize = 10_000;
const KNOWN: Duration = Duration::from_secs(60);

/// How often a guest looks whether the workspace is still the same.
const LOOK: Duration = Duration::from_millis(500);

/// A workspace, remembered.
#[derive(Debug)]
struct Known {
    gauge: Gauge,

    /// Cancelled when it is deleted.
    gone: CancellationToken,
}

/// Somebody is in a workspace, which stays as it is as a whole until this is dropped.
#[derive(Debug)]
pub struct Entered {
    pub id: WorkspaceId,
    pub path: PathBuf,
    known: Arc<Known>,

    hold: Hold,
}

#[derive(Debug)]
enum Hold {
    Lock(#[expect(dead_code, reason = "held until it is dropped")] Lock),
    /// Keeps nobody out, and has to go when the workspace is not this directory any more.
    Guest(Option<(u64, u64)>),
}

/// Somebody has a workspace alone.
struct Alone {
    path: PathBuf,
    known: Arc<Known>,
    _lock: Lock,
}

impl Workspaces {
    pub fn new(
        db: PgPool,
        root: PathBuf,
        limits: Limits,
        most_snapshots: u32,
        replica: Option<ReplicaId>,
    ) -> Workspaces {
        let known = moka::sync::Cache::builder().max_capacity(MOST_KNOWN as u64);
        let known = known.time_to_live(KNOWN).build();
        Workspaces {
            db,
            root,
            limits,
            most_snapshots,
            replica,
            known,
            in_use: Mutex::default(),
            // Copying is the disk's work, and more at a time only make each take longer.
            copies: Places::new(4, 2),
            clones: Places::new(4, 2),
            uploads: Places::new(32, 16),
            archives: Places::new(32, 16),
            counts: Places::new(16, 4),
        }
    }

    /// Enters a workspace, which is made on first use.
    pub async fn enter(&self, tenant: &Tenant, id: WorkspaceId) -> Result<Arc<Entered>> {
        let known = self.known(tenant, id, true).await?;
        let lock = self.lock(tenant, id, Share::WithOthers).await?;
        if known.gone.is_cancelled() {
            return Err(Error::WorkspaceNotFound(id));
        }
        let path = workspace::open(&self.root, tenant, id).await?;
        Ok(Arc::new(Entered { id, path, known, hold: Hold::Lock(lock) }))
    }

    /// Enters a workspace that was made before.
    pub async fn find(&self, tenant: &Tenant, id: WorkspaceId) -> Result<Arc<Entered>> {
        // Most that are looked for and not there are of sessions that never ran a tool, and
        // nobody should have to ask the database about those.
        let path = workspace::path(&self.root, tenant, id);
        let is_there = tokio::fs::try_exists(&path);
        if !is_there.await? {
            return Err(Error::WorkspaceNotFound(id));
        }
        let known = self.known(tenant, id, false).await?;
        let lock = self.lock(tenant, id, Share::WithOthers).await?;
        if known.gone.is_cancelled() {
            return Err(Error::WorkspaceNotFound(id));
        }
        Ok(Arc::new(Entered { id, path, known, hold: Hold::Lock(lock) }))
    }

    /// Waits until nobody else is in a workspace.
    async fn alone(&self, tenant: &Tenant, id: WorkspaceId) -> Result<Alone> {
        let known = self.known(tenant, id, false).await?;
        let lock = self.lock(tenant, id, Share::Alone).await?;
        if known.gone.is_cancelled() {
            return Err(Error::WorkspaceNotFound(id));
        }
        let path = workspace::open(&self.root, tenant, id).await?;
        Ok(Alone { path, known, _lock: lock })
    }

    /// What is known of a workspace. One that nobody knows is made, or not found.
    async fn known(&self, tenant: &Tenant, id: WorkspaceId, make: bool) -> Result<Arc<Known>> {
        let key = (tenant.clone(), id);
        let in_use = || self.in_use().get(&key).and_then(Weak::upgrade);
        if let Some(known) = self.known.get(&key).or_else(in_use) {
            return Ok(known);
        }
        let found = store::get(&self.db, tenant, id).await?;
        let found = match found {
            Some(found) if found.replica_id.is_some() || self.replica.is_none() => found,
            // Nobody has it yet.
            Some(_) => store::claim(&self.db, tenant, id, self.replica).await?,
            None if make => store::claim(&self.db, tenant, id, self.replica).await?,
            None => return Err(Error::WorkspaceNotFound(id)),
        };
        if found.deleting || found.replica_id != self.replica && found.replica_id.is_some() {
            return Err(Error::WorkspaceNotFound(id));
        }
        let known =
            || Arc::new(Known { gauge: self.gauge(&found), gone: CancellationToken::new() });
        let known = self.known.get_with(key.clone(), known);
        let mut in_use = self.in_use();
        if in_use.len() >= 2 * MOST_KNOWN {
            in_use.retain(|_, known| known.strong_count() > 0);
        }
        in_use.insert(key, Arc::downgrade(&known));
        Ok(known)
    }

    fn in_use(&self) -> MutexGuard<'_, HashMap<Key, Weak<Known>>> {
        self.in_use.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Whoever is in there, leave.
    fn dismiss(&self, tenant: &Tenant, id: WorkspaceId) {
        let key = (tenant.clone(), id);
        let in_use = self.in_use().remove(&key).and_then(|known| known.upgrade());
        for known in [self.known.remove(&key), in_use].into_iter().flatten() {
            known.gone.cancel();
        }
    }

    fn gauge(&self, found: &store::Workspace) -> Gauge {
        Gauge::new(self.limits_of(found))
    }

    pub fn limits_of(&self, found: &store::Workspace) -> Limits {
        let bytes = found.quota_bytes.map_or(self.limits.bytes, |bytes| bytes as u64);
        Limits { bytes, ..self.limits }
    }

    async fn lock(&self, tenant: &Tenant, id: WorkspaceId, share: Share) -> Result<Lock> {
        let path = self.of(tenant).join(".locks").join(id.to_string());
        Lock::wait(&path, share, PATIENCE).await?.ok_or(Error::WorkspaceBusy(id))
    }

    /// The directory of a tenant.
    fn of(&self, tenant: &Tenant) -> PathBuf {
        self.root.join(tenant.as_str())
    }

    /// Deletes a workspace with its snapshots. Calls in it end, and so must processes.
    pub async fn delete(&self, tenant: &Tenant, id: WorkspaceId) -> Result<()> {
        store::mark_deleting(&self.db, tenant, id).await?;
        self.finish_deleting(tenant, id).await
    }

    /// Removes what is left of a workspace that is gone for everybody.
    async fn finish_deleting(&self, tenant: &Tenant, id: WorkspaceId) -> Result<()> {
        self.dismiss(tenant, id);
        let folder = self.of(tenant);
        if !tokio::fs::try_exists(&folder).await? {
            return store::forget(&self.db, tenant, id).await;
        }
        let lock = self.lock(tenant, id, Share::Alone).await?;
        let files = workspace::path(&self.root, tenant, id);
        let snapshots = self.snapshots(tenant, id);
        let moving = move || {
            let stage = Stage::new(&folder)?;
            stage.take_away(&files)?;
            stage.take_away(&snapshots)?;
            io::Result::Ok(stage)
        };
        let stage = spawn_blocking(moving).await.map_err(io::Error::from)??;
        store::forget(&self.db, tenant, id).await?;
        // Somebody may have come by between the mark and the lock.
        self.dismiss(tenant, id);
        lock.remove()?;
        drop(stage);
        Ok(())
    }

    /// What a workspace takes on disk.
    pub async fn used(&self, tenant: &Tenant, id: WorkspaceId) -> Result<Used> {
        // Whoever waits for a place keeps nobody from having the workspace alone.
        let counting = self.counts.take(tenant).await.map_err(io::Error::other)?;
        let entered = match self.find(tenant, id).await {
            // It was created and not used yet.
            Err(Error::WorkspaceNotFound(_)) => return Ok(Used::default()),
            entered => entered?,
        };
        entered.count(Duration::from_secs(1), Some(counting)).await
    }
}

/// Which directory it is, by the kernel's account.
fn directory(path: &Path) -> Option<(u64, u64)> {
    let found = std::fs::metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

impl Entered {
    /// Makes room for what is to be written.
    pub fn take(&self, bytes: u64, files: u64) -> Result<()> {
        match self.known.gauge.take(&Workspace::at(&self.path)?, bytes, files)? {
            true => Ok(()),
            false => Err(self.full()),
        }
    }

    fn full(&self) -> Error {
        Error::WorkspaceFull { id: self.id, limits: self.known.gauge.limits }
    }

    /// What it takes on disk, as of a moment ago. The place is taken for as long as that is counted,
    /// whoever waits for it.
    async fn count(&self, at_least: Duration, place: Option<Place>) -> Result<Used> {
        let (known, path) = (self.known.clone(), self.path.clone());
        let counting = spawn_blocking(move || {
            let _place = place;
            known.gauge.recent(&Workspace::at(&path)?, at_least)
        });
        Ok(counting.await.map_err(io::Error::from)??)
    }

    async fn used(&self) -> Result<Used> {
        self.count(Duration::ZERO, None).await
    }

    /// Stays in the workspace without keeping others from replacing or deleting all of it, and has
    /// to go when [`Entered::overflow`] says so.
    pub fn guest(&self) -> Entered {
        let (path, known) = (self.path.clone(), self.known.clone());
        let hold = Hold::Guest(directory(&path));
        Entered { id: self.id, path, known, hold }
    }

    /// Whether there is room for a command to begin, and what was there when it did.
    pub async fn admit(&self) -> Result<Used> {
        let mut used = self.used().await?;
        if !self.known.gauge.admits(&used) {
            // What was deleted since is not known yet.
            self.forget_used();
            used = self.used().await?;
        }
        match self.known.gauge.admits(&used) {
            true => Ok(used),
            false => Err(self.full()),
        }
    }

    /// Returns when a command that began with `before` has to end, because it has filled the
    /// workspace or because that was deleted, or replaced while a guest was there. What it has
    /// written stays.
    pub async fn overflow(&self, before: Used) -> Error {
        loop {
            tokio::select! {
                () = sleep(self.known.gauge.period()) => (),
                () = self.known.gone.cancelled() => return Error::WorkspaceNotFound(self.id),
                () = self.replaced() => return Error::WorkspaceBusy(self.id),
            }
            match self.used().await {
                Ok(now) if self.known.gauge.overflows(&before, &now) => return self.full(),
                Ok(_) => (),
                // Whoever needs the disk notices by himself.
                Err(error) => tracing::warn!(%error, workspace.id = %self.id, "cannot measure"),
            }
        }
    }

    /// Returns when the workspace is another directory than a guest came into.
    async fn replaced(&self) {
        match self.hold {
            Hold::Lock(_) => pending().await,
            Hold::Guest(was) => {
                while directory(&self.path) == was {
                    sleep(LOOK).await;
                }
            }
        }
    }

    /// A command was here, and nobody knows what it left.
    pub fn forget_used(&self) {
        self.known.gauge.forget();
    }
}
