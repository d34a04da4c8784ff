//! Keeps output that is too large for the log, and lets it be read in pieces.

use std::{
    fs::File,
    io,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use chassis::Tenant;
use futures::StreamExt as _;
use object_store::{ObjectStore, ObjectStoreExt as _, buffered::BufWriter, local::LocalFileSystem};
use sqlx::PgPool;
use tokio::{
    io::AsyncWriteExt as _,
    time::{MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::{
    call::{Call, OutputRef},
    error::{Error, Result},
    spool::{Spool, Whole},
    store::outputs::{self, Owner, Stored},
    workspace,
};

/// How often somebody looks for what has expired, and how much of it goes at a time.
const SWEEP: Duration = Duration::from_secs(60);
const AT_ONCE: i64 = 200;

/// Where agents find outputs: the tool `read` opens paths that begin so.
const FOLDER: &str = "/outputs";

pub struct Outputs {
    db: PgPool,
    store: Arc<dyn ObjectStore>,
    spool: PathBuf,
    most: u64,
    retention: Duration,
}

/// The output that a path of the tool `read` means.
pub fn named(path: &str) -> Option<OutputRef> {
    path.strip_prefix(FOLDER)?.strip_prefix('/')?.parse().ok()
}

/// An output as the log speaks of it.
#[derive(Debug)]
pub struct Kept {
    pub output_ref: OutputRef,
    pub bytes: u64,
    pub digest: String,
}

impl Kept {
    /// For the tool `read`.
    pub fn path(&self) -> String {
        format!("{FOLDER}/{}", self.output_ref)
    }
}

impl Outputs {
    /// Keeps outputs in a directory, of each at most `most` bytes.
    pub fn open(
        db: PgPool,
        folder: &Path,
        most: u64,
        retention: Duration,
    ) -> anyhow::Result<Outputs> {
        let problem = || format!("cannot make OUTPUTS_DIR {}", folder.display());
        let (kept, spool) = (folder.join("kept"), folder.join("spool"));
        workspace::create_root(&kept).with_context(problem)?;
        workspace::create_root(&spool).with_context(problem)?;
        let store = Arc::new(LocalFileSystem::new_with_prefix(kept)?.with_automatic_cleanup(true));
        Ok(Outputs { db, store, spool, most, retention })
    }

    /// What a command prints goes here. Up to `little` it stays in memory.
    pub fn spool(&self, little: usize) -> Spool {
        Spool::new(self.spool.clone(), little, self.most)
    }

    /// Where what is printed is while it grows, and how much of it may be kept.
    pub fn folder(&self) -> &Path {
        &self.spool
    }

    pub fn most(&self) -> u64 {
        self.most
    }

    /// Keeps an output for as long as outputs are kept.
    pub async fn keep(&self, owner: impl Into<Owner<'_>>, whole: Whole) -> Result<Kept> {
        let owner = owner.into();
        let Whole { mut file, bytes, digest } = whole;
        let (db, tenant, output_ref) = (&self.db, owner.tenant, OutputRef::new());
        let size = i64::try_from(bytes).unwrap_or(i64::MAX);
        outputs::begin(db, owner, output_ref, &digest, size, self.retention).await?;
        let mut alone = outputs::alone_with(db, tenant, &digest).await?;
        let mut writer = BufWriter::new(self.store.clone(), place(tenant, &digest));
        tokio::io::copy(&mut file, &mut writer).await?;
        writer.shutdown().await?;
        outputs::finish(&mut *alone, tenant, output_ref).await?;
        alone.commit().await?;
        Ok(Kept { output_ref, bytes, digest })
    }

    /// A piece of an output; none behind its end.
    pub async fn read(
        &self,
        tenant: &Tenant,
        output_ref: OutputRef,
        offset: u64,
        limit: u64,
    ) -> Result<(Vec<u8>, Stored)> {
        let stored = outputs::get(&self.db, tenant, output_ref).await?;
        let stored = stored.ok_or(Error::OutputNotFound(output_ref))?;
        let end = u64::try_from(stored.bytes).unwrap_or_default();
        let range = Range { start: offset.min(end), end: offset.saturating_add(limit).min(end) };
        if range.is_empty() {
            return Ok((vec![], stored));
        }
        let piece = self.store.get_range(&place(tenant, &stored.digest), range).await;
        Ok((piece.map_err(io::Error::from)?.into(), stored))
    }

    /// All of an output in a file, and how much it is. Agents read what their own session
    /// printed, and nothing else.
    pub async fn copy(&self, call: &Call, output_ref: OutputRef) -> Result<(File, u64)> {
        let stored = outputs::get(&self.db, &call.tenant, output_ref).await?;
        let stored = stored.filter(|stored| stored.session_id == call.session_id);
        let stored = stored.ok_or(Error::OutputNotFound(output_ref))?;
        let object = self.store.get(&place(&call.tenant, &stored.digest)).await;
        let mut pieces = object.map_err(io::Error::from)?.into_stream();
        let mut copy = self.spool(0);
        while let Some(piece) = pieces.next().await {
            copy.push(&piece.map_err(io::Error::from)?).await?;
        }
        let Whole { file, bytes, .. } = copy.finish().await?;
        Ok((file.into_std().await, bytes))
    }

    /// Removes what has expired, until `stop`.
    pub async fn sweep(&self, stop: CancellationToken) {
        let mut ticks = interval(SWEEP);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            if let Err(error) = self.expire().await {
                warn!(%error, "cannot remove outputs that have expired, trying again");
            }
        }
    }

    async fn expire(&self) -> Result<()> {
        for (tenant, digest) in outputs::expired(&self.db, AT_ONCE).await? {
            let mut alone = outputs::alone_with(&self.db, &tenant, &digest).await?;
            if !outputs::forget(&mut *alone, &tenant, &digest).await? {
                match self.store.delete(&place(&tenant, &digest)).await {
                    // It was never stored, or somebody removed it by hand.
                    Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
                    // Its row stays, and the others must not wait for it.
                    Err(error) => {
                        warn!(%error, digest, "an output that has expired cannot be removed");
                        continue;
                    }
                }
            }
            alone.commit().await?;
        }
        Ok(())
    }
}

/// Both names are plain words, so the path cannot lead elsewhere.
fn place(tenant: &Tenant, digest: &str) -> object_store::path::Path {
    object_store::path::Path::from_iter([tenant.as_str(), &digest[..2], digest])
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proto::tools::v1::Permissions;

    use super::*;
    use crate::call::{SessionId, ToolCallId, WorkspaceId};

    fn call(tenant: &str) -> Call {
        Call {
            tenant: tenant.parse().unwrap(),
            session_id: SessionId::new(),
            epoch: 1,
            turn_id: String::new(),
            step_id: String::new(),
            tool_call_id: ToolCallId::new(),
            tool: "bash".into(),
            input_json: "{}".into(),
            workspace_id: WorkspaceId::new(),
            permissions: Permissions::default(),
            headless: false,
        }
    }

    async fn keep(outputs: &Outputs, call: &Call, text: &str) -> Kept {
        let mut spool = outputs.spool(4);
        spool.push(text.as_bytes()).await.unwrap();
        outputs.keep(call, spool.finish().await.unwrap()).await.unwrap()
    }

    fn files(folder: &Path) -> usize {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.map(|path| if path.is_dir() { files(&path) } else { 1 }).sum()
    }

    #[sqlx::test]
    async fn the_same_output_is_kept_once_per_tenant_and_read_by_its_own_only(db: PgPool) {
        let folder = tempfile::tempdir().unwrap();
        let outputs = Outputs::open(db, folder.path(), 100, Duration::from_secs(60)).unwrap();
        let (acme, other) = (call("acme"), call("other"));
        let first = keep(&outputs, &acme, "a long text").await;
        let second = keep(&outputs, &acme, "a long text").await;
        assert_ne!(first.output_ref, second.output_ref);
        assert_eq!(files(&folder.path().join("kept")), 1);
        keep(&outputs, &other, "a long text").await;
        assert_eq!(files(&folder.path().join("kept")), 2);

        let (piece, stored) = outputs.read(&acme.tenant, first.output_ref, 2, 4).await.unwrap();
        assert_eq!((piece.as_slice(), stored.bytes), (&b"long"[..], 11));
        let (piece, _) = outputs.read(&acme.tenant, first.output_ref, 11, 4).await.unwrap();
        assert!(piece.is_empty());
        let stolen = outputs.read(&other.tenant, first.output_ref, 0, 4).await.unwrap_err();
        assert!(matches!(stolen, Error::OutputNotFound(_)));
    }

    #[sqlx::test]
    async fn what_has_expired_is_removed_unless_somebody_else_has_it(db: PgPool) {
        let folder = tempfile::tempdir().unwrap();
        let short = Outputs::open(db.clone(), folder.path(), 100, Duration::ZERO).unwrap();
        let long = Outputs::open(db, folder.path(), 100, Duration::from_secs(60)).unwrap();
        let acme = call("acme");
        let gone = keep(&short, &acme, "only here").await;
        let over = keep(&short, &acme, "in two places").await;
        let kept = keep(&long, &acme, "in two places").await;
        long.expire().await.unwrap();
        for over in [gone, over] {
            let read = long.read(&acme.tenant, over.output_ref, 0, 100).await;
            assert!(matches!(read, Err(Error::OutputNotFound(_))));
        }
        let (piece, _) = long.read(&acme.tenant, kept.output_ref, 0, 100).await.unwrap();
        assert_eq!(piece, b"in two places");
        assert_eq!(files(&folder.path().join("kept")), 1);
    }
}
