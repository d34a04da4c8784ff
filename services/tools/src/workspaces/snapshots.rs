//! Workspaces as they once were.
//!
//! A snapshot appears on disk all at once, under the name that its row has. Of a row that does
//! not say `stored`, nobody knows whether it has files, and nobody needs to: whoever asks for the
//! same snapshot again takes it if it is there, and makes it if it is not.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use chassis::{Place, Tenant};
use nix::{
    fcntl::{AT_FDCWD, RenameFlags, renameat2},
    unistd::syncfs,
};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, warn};

use super::{Entered, Limits, Stage, Workspaces, workspace};
use crate::{
    call::{SnapshotId, WorkspaceId},
    error::{Error, Result},
    files::{CopyProblem, Most, Used, Workspace, copy},
    store::snapshots::{self as store, Snapshot, Which},
};

/// What came of putting a workspace back.
#[derive(Debug)]
pub struct Restored {
    pub snapshot_id: SnapshotId,

    /// What was there before.
    pub replaced_snapshot_id: SnapshotId,
    pub used: Used,
}

impl Workspaces {
    /// Keeps a workspace as it is now, or finds what the same request kept. One that nobody has
    /// used yet is made if that is wanted.
    pub async fn snapshot(
        self: &Arc<Workspaces>,
        tenant: &Tenant,
        id: WorkspaceId,
        request_id: &str,
        make: bool,
    ) -> Result<Snapshot> {
        self.known(tenant, id, make).await?;
        let begun = store::begin(&self.db, tenant, id, SnapshotId::new(), request_id).await?;
        let begun = begun.ok_or(Error::WorkspaceNotFound(id))?;
        if begun.stored {
            return Ok(begun);
        }
        // Whoever is in there goes on; only those who replace all of it have to wait.
        let entered = self.enter(tenant, id).await?;
        let turn = self.turn(tenant).await?;
        let (workspaces, tenant) = (self.clone(), tenant.clone());
        to_its_end(async move { workspaces.keep(&tenant, &entered, begun, turn).await }).await
    }

    async fn keep(
        &self,
        tenant: &Tenant,
        entered: &Arc<Entered>,
        begun: Snapshot,
        _turn: Place,
    ) -> Result<Snapshot> {
        let id = entered.id;
        let place = self.snapshots(tenant, id).join(begun.snapshot_id.to_string());
        let (inside, folder) = (entered.clone(), self.of(tenant));
        let most = generous(entered.known.gauge.limits);
        self.work(id, most, move |most, stop| {
            // Whoever asked for the same one may have had its turn before us.
            if place.try_exists()? {
                return Ok(());
            }
            let stage = Stage::new(&folder)?;
            let tree = copy_of(&inside.path, &stage, most, stop)?;
            publish(&tree, &place)
        })
        .await?;
        match self.record(tenant, id, begun.snapshot_id).await? {
            true => Ok(Snapshot { stored: true, ..begun }),
            false => Err(Error::Overloaded),
        }
    }

    /// Puts a workspace back as a snapshot holds it.
    pub async fn restore(
        self: &Arc<Workspaces>,
        tenant: &Tenant,
        id: WorkspaceId,
        which: &Which,
    ) -> Result<Restored> {
        let missing = Error::SnapshotNotFound { workspace_id: id, which: which.clone() };
        let found = store::find(&self.db, tenant, id, which).await?;
        let Some(found) = found.filter(|found| found.stored) else { return Err(missing) };
        // So that it is not deleted meanwhile.
        let entered = self.enter(tenant, id).await?;
        let turn = self.turn(tenant).await?;
        let (workspaces, tenant) = (self.clone(), tenant.clone());
        let found = found.snapshot_id;
        let given_up = CancellationToken::new();
        let _waiting = given_up.clone().drop_guard();
        let putting = async move {
            workspaces.put_back(&tenant, entered, found, missing, turn, given_up).await
        };
        to_its_end(putting).await
    }

    /// The copy of the snapshot gets the name of a new one, and is then exchanged with the
    /// workspace. That is one call of the kernel, so whenever we are killed, the workspace is
    /// as it was or as the snapshot has it.
    async fn put_back(
        &self,
        tenant: &Tenant,
        entered: Arc<Entered>,
        found: SnapshotId,
        missing: Error,
        turn: Place,
        given_up: CancellationToken,
    ) -> Result<Restored> {
        let id = entered.id;
        let from = self.snapshots(tenant, id).join(found.to_string());
        if !tokio::fs::try_exists(&from).await? {
            return Err(missing);
        }
        let replaced = SnapshotId::new();
        let request_id = format!("replaced-{replaced}");
        store::begin(&self.db, tenant, id, replaced, &request_id).await?;
        let place = self.snapshots(tenant, id).join(replaced.to_string());
        let most = generous(entered.known.gauge.limits);
        let (folder, copied) = (self.of(tenant), place.clone());
        let copying = self.work(id, most, move |most, stop| {
            let stage = Stage::new(&folder)?;
            let tree = copy_of(&from, &stage, most, stop)?;
            // One that gives way to others is moved first and removed then, so the copy is whole.
            if !from.exists() {
                return Err(Broken::Refused(missing));
            }
            publish(&tree, &copied)?;
            drop(entered);
            Ok(Workspace::at(&copied)?.measure(stop)?)
        });
        let used = copying.await?;
        // Whoever is in there may wait for it.
        drop(turn);

        let alone = match self.alone(tenant, id).await {
            Ok(alone) => alone,
            Err(error) => {
                self.drop_snapshot(tenant, id, replaced).await?;
                return Err(error);
            }
        };
        let swapping = self.work(id, most, move |_, _| {
            // A change that nobody waits for any more must not happen: others may have written
            // since.
            if given_up.is_cancelled() {
                return Ok(None);
            }
            swap(&place, &alone.path)?;
            Ok(Some(alone))
        });
        let Some(alone) = swapping.await? else {
            self.drop_snapshot(tenant, id, replaced).await?;
            return Err(io::Error::from(io::ErrorKind::Interrupted).into());
        };
        alone.known.gauge.forget();
        // What was replaced may have had to give way meanwhile; the workspace is put back all the same.
        self.record(tenant, id, replaced).await?;
        drop(alone);
        Ok(Restored { snapshot_id: found, replaced_snapshot_id: replaced, used })
    }

    async fn turn(&self, tenant: &Tenant) -> Result<Place> {
        Ok(self.copies.take(tenant).await.map_err(io::Error::other)?)
    }

    /// Says that a snapshot is whole, unless it had to give way before it was.
    async fn record(&self, tenant: &Tenant, id: WorkspaceId, new: SnapshotId) -> Result<bool> {
        let kept = store::stored(&self.db, tenant, id, new).await?;
        if !kept {
            self.drop_snapshot(tenant, id, new).await?;
        }
        self.drop_surplus(tenant, id).await;
        Ok(kept)
    }

    /// Copies trees where that harms nobody. It goes on when nobody waits for it any more,
    /// because what is begun is the quickest way to an end.
    pub(super) async fn work<T: Send + 'static>(
        &self,
        id: WorkspaceId,
        limits: Limits,
        work: impl FnOnce(Most, &CancellationToken) -> Result<T, Broken> + Send + 'static,
    ) -> Result<T> {
        let most = Most { bytes: limits.bytes, files: limits.files };
        let working = spawn_blocking(move || work(most, &CancellationToken::new()));
        working.await.map_err(io::Error::from)?.map_err(|broken| match broken {
            Broken::Files(error) => Error::Files(error),
            Broken::Refused(error) => error,
            Broken::Copy(CopyProblem::TooMuch | CopyProblem::TooDeep) => {
                Error::WorkspaceFull { id, limits: self.limits }
            }
            Broken::Copy(problem) => Error::Files(io::Error::other(problem.to_string())),
        })
    }

    /// The directory of a workspace's snapshots.
    pub(super) fn snapshots(&self, tenant: &Tenant, id: WorkspaceId) -> PathBuf {
        self.of(tenant).join(".snapshots").join(id.to_string())
    }

    async fn drop_snapshot(&self, tenant: &Tenant, id: WorkspaceId, old: SnapshotId) -> Result<()> {
        let place = self.snapshots(tenant, id).join(old.to_string());
        let folder = self.of(tenant);
        let moving = move || Stage::new(&folder)?.take_away(&place);
        spawn_blocking(moving).await.map_err(io::Error::from)??;
        store::forget(&self.db, tenant, id, old).await
    }

    /// Lets the oldest snapshots give way. A failure is for the next time.
    async fn drop_surplus(&self, tenant: &Tenant, id: WorkspaceId) {
        let dropping = async {
            let keep = self.most_snapshots.into();
            for old in store::surplus(&self.db, tenant, id, keep).await? {
                self.drop_snapshot(tenant, id, old).await?;
            }
            Ok::<_, Error>(())
        };
        if let Err(error) = dropping.await {
            warn!(%error, workspace.id = %id, "old snapshots of {id} cannot be removed");
        }
    }
}

/// Goes on when nobody waits for it any more, so that whatever is on the disk comes on record.
async fn to_its_end<T: Send + 'static>(
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    tokio::spawn(work.in_current_span()).await.map_err(io::Error::from)?
}

/// What goes wrong with whole trees.
#[derive(Debug)]
pub enum Broken {
    Files(io::Error),
    Copy(CopyProblem),
    Refused(Error),
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Broken {
        Broken::Files(error)
    }
}

/// What is there fits, and may still grow a little before somebody notices.
fn generous(limits: Limits) -> Limits {
    Limits { bytes: limits.bytes.saturating_mul(2), files: limits.files.saturating_mul(2) }
}

fn copy_of(
    from: &Path,
    stage: &Stage,
    most: Most,
    stop: &CancellationToken,
) -> Result<PathBuf, Broken> {
    let tree = stage.path.join("tree");
    DirBuilder::new().mode(0o700).create(&tree)?;
    let (from, to) = (Workspace::at(from)?.top()?, Workspace::at(&tree)?.top()?);
    copy(from, to, most, stop).map_err(Broken::Copy)?;
    Ok(tree)
}

/// Gives a tree its name, once all of it is safe on disk.
pub fn publish(tree: &Path, place: &Path) -> Result<(), Broken> {
    let folder = place.parent().ok_or(io::ErrorKind::InvalidInput).map_err(io::Error::from)?;
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    syncfs(fs::File::open(tree)?).map_err(io::Error::from)?;
    match renameat2(AT_FDCWD, tree, AT_FDCWD, place, RenameFlags::RENAME_NOREPLACE) {
        // Somebody made the same at the same time.
        Ok(()) | Err(nix::Error::EEXIST) => (),
        Err(errno) => return Err(io::Error::from(errno).into()),
    }
    Ok(fs::File::open(folder)?.sync_all()?)
}

/// Puts each in the place of the other.
pub fn swap(one: &Path, other: &Path) -> Result<(), Broken> {
    renameat2(AT_FDCWD, one, AT_FDCWD, other, RenameFlags::RENAME_EXCHANGE)
        .map_err(io::Error::from)?;
    for path in [one, other] {
        let folder = path.parent().ok_or(io::ErrorKind::InvalidInput).map_err(io::Error::from)?;
        fs::File::open(folder)?.sync_all()?;
    }
    Ok(())
}

/// Whether there is nothing in a workspace.
pub fn is_empty(path: &Path) -> io::Result<bool> {
    Ok(fs::read_dir(path)?.next().is_none())
}

/// A directory as workspaces are, for something that will become one.
pub fn prepare(path: &Path) -> io::Result<()> {
    workspace::create(path)
}

#[cfg(test)]
mod tests {
    use std::{iter, pin::pin, time::Duration};

    use futures::future::join_all;
    use sqlx::PgPool;
    use tokio::{
        task::yield_now,
        time::{sleep, timeout},
    };

    use super::*;

    #[sqlx::test]
    async fn a_copy_that_nobody_waits_for_keeps_its_place(db: PgPool) {
        let folder = tempfile::tempdir().unwrap();
        let limits = Limits { bytes: 1 << 30, files: 100_000 };
        let workspaces = Arc::new(Workspaces::new(db, folder.path().to_owned(), limits, 5, None));
        let (tenant, id) = ("acme".parse().unwrap(), WorkspaceId::new());
        let entered = workspaces.enter(&tenant, id).await.unwrap();
        for number in 0..5_000 {
            fs::write(entered.path.join(number.to_string()), "a file").unwrap();
        }
        drop(entered);

        let begun = async {
            while workspaces.copies.taken() == 0 {
                yield_now().await;
            }
        };
        tokio::select! {
            () = begun => (),
            done = workspaces.snapshot(&tenant, id, "one", false) => panic!("too quick: {done:?}"),
        }
        assert_eq!(workspaces.copies.taken(), 1, "who hung up may copy as often as they like");
        while workspaces.copies.taken() > 0 {
            sleep(Duration::from_millis(10)).await;
        }
        assert!(workspaces.snapshot(&tenant, id, "one", false).await.unwrap().stored);
    }

    #[sqlx::test]
    async fn a_restore_whose_caller_hung_up_changes_nothing(db: PgPool) {
        let folder = tempfile::tempdir().unwrap();
        let limits = Limits { bytes: 1 << 30, files: 100_000 };
        let workspaces = Arc::new(Workspaces::new(db, folder.path().to_owned(), limits, 5, None));
        let (tenant, id) = ("acme".parse().unwrap(), WorkspaceId::new());
        let entered = workspaces.enter(&tenant, id).await.unwrap();
        let file = entered.path.join("file");
        fs::write(&file, "old").unwrap();
        let kept = workspaces.snapshot(&tenant, id, "one", false).await.unwrap();
        fs::write(&file, "new").unwrap();

        // The copy is made, and waits for whoever is in there.
        let copies = || fs::read_dir(workspaces.snapshots(&tenant, id)).unwrap().count();
        let copied = async {
            while copies() < 2 {
                sleep(Duration::from_millis(10)).await;
            }
        };
        let which = Which::Id(kept.snapshot_id);
        tokio::select! {
            () = copied => (),
            done = workspaces.restore(&tenant, id, &which) => panic!("too quick: {done:?}"),
        }
        drop(entered);
        let read = || fs::read_to_string(&file).unwrap();
        while copies() > 1 && read() == "new" {
            sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(read(), "new");

        workspaces.restore(&tenant, id, &which).await.unwrap();
        assert_eq!(read(), "old");
    }

    #[sqlx::test]
    async fn whoever_waits_to_be_counted_is_in_nobodys_way(db: PgPool) {
        let folder = tempfile::tempdir().unwrap();
        let limits = Limits { bytes: 1 << 30, files: 100_000 };
        let workspaces = Arc::new(Workspaces::new(db, folder.path().to_owned(), limits, 5, None));
        let (tenant, id) = ("acme".parse().unwrap(), WorkspaceId::new());
        let entered = workspaces.enter(&tenant, id).await.unwrap();
        fs::write(entered.path.join("file"), "a file").unwrap();
        drop(entered);
        let kept = workspaces.snapshot(&tenant, id, "one", false).await.unwrap();

        let counted: Vec<_> = iter::from_fn(|| workspaces.counts.try_take(&tenant)).collect();
        let mut waiting = pin!(workspaces.used(&tenant, id));
        assert!(timeout(Duration::from_millis(100), &mut waiting).await.is_err());
        let which = Which::Id(kept.snapshot_id);
        let restored = workspaces.restore(&tenant, id, &which).await.unwrap();
        drop(counted);
        assert_eq!(waiting.await.unwrap(), restored.used);
        assert_eq!(restored.used.files, 1);
    }

    #[sqlx::test]
    async fn whatever_is_on_the_disk_is_on_record(db: PgPool) {
        let folder = tempfile::tempdir().unwrap();
        let limits = Limits { bytes: 1 << 30, files: 100_000 };
        let workspaces = Arc::new(Workspaces::new(db, folder.path().to_owned(), limits, 1, None));
        let (tenant, id) = ("acme".parse().unwrap(), WorkspaceId::new());
        let names: Vec<String> = (0..8).map(|number| format!("at once {number}")).collect();
        let taking = names.iter().map(|name| workspaces.snapshot(&tenant, id, name, true));
        // Some have to give way to others before they are whole.
        join_all(taking).await;
        let last = workspaces.snapshot(&tenant, id, "last", true).await.unwrap();
        let there = fs::read_dir(workspaces.snapshots(&tenant, id)).unwrap();
        let there: Vec<_> = there.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(there, [last.snapshot_id.to_string().as_str()]);
    }
}
