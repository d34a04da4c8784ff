//! Keeps output that is too large for the log, and lets it be read in pieces.

mod bucket;

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
use futures::{StreamExt as _, stream::FuturesUnordered};
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt as _, local::LocalFileSystem};
use sqlx::PgPool;
use tokio::{
    io::{AsyncReadExt as _, AsyncSeekExt as _},
    time::{MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;
use tracing::warn;

pub use bucket::Args;

use crate::{
    call::{Call, OutputRef},
    error::{Error, Result},
    spool::{Spool, Whole},
    store::outputs::{self, Stored},
    workspace,
};

/// How often somebody looks for what has expired, and how much of it goes at a time.
const SWEEP: Duration = Duration::from_secs(60);
const AT_ONCE: i64 = 200;

/// What goes to the store at once: a store takes no smaller parts than 5 MiB, and at most 10,000.
const PART: u64 = 8 * 1024 * 1024;
const AT_A_TIME: usize = 3;

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
        let kept = create(folder, "kept")?;
        let store = Arc::new(LocalFileSystem::new_with_prefix(kept)?.with_automatic_cleanup(true));
        Ok(Outputs { db, store, spool: create(folder, "spool")?, most, retention })
    }

    /// Keeps outputs in a store elsewhere, and in a directory only while they are printed.
    pub fn remote(
        db: PgPool,
        store: Arc<dyn ObjectStore>,
        folder: &Path,
        most: u64,
        retention: Duration,
    ) -> anyhow::Result<Outputs> {
        Ok(Outputs { db, store, spool: create(folder, "spool")?, most, retention })
    }

    /// What a command prints goes here. Up to `little` it stays in memory.
    pub fn spool(&self, little: usize) -> Spool {
        Spool::new(self.spool.clone(), little, self.most)
    }

    /// Keeps an output for as long as outputs are kept.
    pub async fn keep(&self, call: &Call, whole: Whole) -> Result<Kept> {
        let Whole { mut file, bytes, digest } = whole;
        let (db, tenant, output_ref) = (&self.db, &call.tenant, OutputRef::new());
        let size = i64::try_from(bytes).unwrap_or(i64::MAX);
        outputs::begin(db, call, output_ref, &digest, size, self.retention).await?;
        let place = place(tenant, &digest);
        // Storing takes as long as the store does, and a lock is a connection to the database. So
        // it happens before, and again only if a sweep was faster that did not know of us yet.
        self.store_once(&place, &mut file, bytes).await?;
        let mut alone = outputs::alone_with(db, tenant, &digest).await?;
        self.store_once(&place, &mut file, bytes).await?;
        outputs::finish(&mut *alone, tenant, output_ref).await?;
        alone.commit().await?;
        Ok(Kept { output_ref, bytes, digest })
    }

    /// Stores a file unless its content is there already.
    async fn store_once(
        &self,
        place: &object_store::path::Path,
        file: &mut tokio::fs::File,
        bytes: u64,
    ) -> Result<()> {
        match self.store.head(place).await {
            Ok(found) if found.size == bytes => return Ok(()),
            Ok(_) | Err(object_store::Error::NotFound { .. }) => (),
            Err(error) => return Err(io::Error::from(error).into()),
        }
        file.rewind().await?;
        if bytes <= PART {
            let whole = read_part(file).await?;
            self.store.put(place, whole.into()).await.map_err(io::Error::from)?;
            return Ok(());
        }
        let upload = self.store.put_multipart(place).await;
        let mut upload = upload.map_err(io::Error::from)?;
        if let Err(error) = store_in_parts(&mut *upload, file).await {
            // What has arrived of it would be kept, and paid for, for ever.
            let _ = upload.abort().await;
            return Err(error.into());
        }
        Ok(())
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
        let Whole { file, bytes, digest } = copy.finish().await?;
        if digest != stored.digest {
            return Err(io::Error::other(format!("output {output_ref} is damaged")).into());
        }
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

async fn store_in_parts(
    upload: &mut dyn MultipartUpload,
    file: &mut tokio::fs::File,
) -> io::Result<()> {
    let mut under_way = FuturesUnordered::new();
    loop {
        let part = read_part(file).await?;
        if part.is_empty() {
            break;
        }
        if under_way.len() >= AT_A_TIME {
            under_way.next().await.transpose()?;
        }
        under_way.push(upload.put_part(part.into()));
    }
    while under_way.next().await.transpose()?.is_some() {}
    upload.complete().await?;
    Ok(())
}

async fn read_part(file: &mut tokio::fs::File) -> io::Result<Vec<u8>> {
    let mut part = Vec::new();
    file.take(PART).read_to_end(&mut part).await?;
    Ok(part)
}

fn create(folder: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let path = folder.join(name);
    let problem = || format!("cannot make OUTPUTS_DIR {}", folder.display());
    workspace::create_root(&path).with_context(problem)?;
    Ok(path)
}

/// Both names are plain words, so the path cannot lead elsewhere.
fn place(tenant: &Tenant, digest: &str) -> object_store::path::Path {
    object_store::path::Path::from_iter([tenant.as_str(), &digest[..2], digest])
}

#[cfg(test)]
mod tests;
