//! Fills an empty workspace with what somebody sends, of whom nobody knows what they want.
//!
//! An archive is received whole, unpacked in a private directory, and put into the place of the
//! empty workspace by one call of the kernel.

mod bundle;
mod names;
mod unpack;

use std::{
    fs::{self, File, Permissions},
    io::{self, Seek as _, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::Path,
};

use chassis::{Place, Tenant};
use nix::unistd::syncfs;
use sandbox::{Profile, Sandbox};
use tokio::task::spawn_blocking;

use super::{
    Stage, Workspaces,
    snapshots::{Broken, is_empty, prepare, swap},
};
use crate::{
    call::WorkspaceId,
    error::{Error, Result},
    files::{Used, Workspace},
};

/// What an archive is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    GitBundle,
    Tar,
    TarGzip,
    TarZstd,
}

/// An archive as far as it has come.
pub struct Received {
    stage: Stage,
    file: File,
    pub bytes: u64,
    place: Place,
}

/// What git runs in.
pub struct Git<'a> {
    pub sandbox: &'a Sandbox,
    pub profile: &'a Profile,
}

impl Received {
    pub async fn append(mut self, data: Vec<u8>) -> Result<Received> {
        let writing = spawn_blocking(move || {
            self.file.write_all(&data)?;
            self.bytes += data.len() as u64;
            io::Result::Ok(self)
        });
        Ok(writing.await.map_err(io::Error::from)??)
    }
}

impl Workspaces {
    /// A place for a file that a client sends as slowly as it likes.
    pub fn upload(&self, tenant: &Tenant) -> Result<Place> {
        self.uploads.try_take(tenant).ok_or(Error::Overloaded)
    }

    /// Gets ready to receive an archive for a workspace that is empty now.
    pub async fn receive(&self, tenant: &Tenant, id: WorkspaceId) -> Result<Received> {
        let place = self.archives.try_take(tenant).ok_or(Error::Overloaded)?;
        // One that was created through another replica has no directory before it is used.
        self.known(tenant, id, false).await?;
        let entered = self.enter(tenant, id).await?;
        let folder = self.of(tenant);
        let opening = spawn_blocking(move || {
            if !is_empty(&entered.path)? {
                return Err(Error::WorkspaceNotEmpty(entered.id));
            }
            let stage = Stage::new(&folder)?;
            let path = stage.path.join("archive");
            let file = File::options().read(true).write(true).create_new(true).open(path)?;
            Ok(Received { stage, file, bytes: 0, place })
        });
        opening.await.map_err(io::Error::from)?
    }

    /// Fills the workspace with what was received, or leaves it empty. Says what it takes.
    pub async fn import(
        &self,
        tenant: &Tenant,
        id: WorkspaceId,
        format: Format,
        received: Received,
        git: Git<'_>,
    ) -> Result<Used> {
        let limits = self.known(tenant, id, false).await?.gauge.limits;
        let Received { stage, file, place, .. } = received;
        let turns = if format == Format::GitBundle { &self.clones } else { &self.copies };
        let turn = turns.take(tenant).await.map_err(io::Error::other)?;
        // Taken for as long as there is work, whoever waits for it.
        let places = (turn, place);
        let (stage, (turn, place)) = match format {
            Format::GitBundle => (bundle::clone(stage, limits, id, git).await?, places),
            Format::Tar | Format::TarGzip | Format::TarZstd => {
                self.work(id, limits, move |most, _| {
                    let tree = stage.path.join("tree");
                    prepare(&tree)?;
                    let mut file = file;
                    file.rewind()?;
                    let done = unpack::unpack(format, file, &Workspace::at(&tree)?, most);
                    done.map_err(|problem| problem.into_broken(id, limits))?;
                    Ok((stage, places))
                })
                .await?
            }
        };
        // Whoever is in there may wait for it.
        drop(turn);
        let alone = self.alone(tenant, id).await?;
        // Whatever becomes of whoever asked, nobody comes in before it is done.
        let publishing = self.work(id, limits, move |most, stop| {
            let tree = stage.path.join("tree");
            let used = Workspace::at(&tree)?.measure(stop)?;
            if used.hidden || used.bytes > most.bytes || used.files > most.files {
                return Err(Broken::Refused(Error::WorkspaceFull { id, limits }));
            }
            if !is_empty(&alone.path)? {
                return Err(Broken::Refused(Error::WorkspaceNotEmpty(id)));
            }
            publish(&tree, &alone.path)?;
            alone.known.gauge.forget();
            drop((stage, place));
            Ok(used)
        });
        publishing.await
    }
}

/// Puts a tree into the place of an empty workspace.
fn publish(tree: &Path, path: &Path) -> Result<(), Broken> {
    fs::set_permissions(tree, Permissions::from_mode(0o700))?;
    syncfs(File::open(tree)?).map_err(io::Error::from)?;
    swap(tree, path)
}

#[cfg(test)]
mod tests {
    use sqlx::PgPool;

    use super::*;
    use crate::workspaces::Limits;

    #[sqlx::test]
    async fn archives_that_wait_keep_no_file_from_being_uploaded(db: PgPool) {
        let folder = tempfile::tempdir().unwrap();
        let limits = Limits { bytes: 1 << 30, files: 100_000 };
        let workspaces = Workspaces::new(db, folder.path().to_owned(), limits, 5, None);
        let (tenant, id) = ("acme".parse().unwrap(), WorkspaceId::new());
        workspaces.enter(&tenant, id).await.unwrap();

        // Each is on the disk, and there is an end to that.
        let mut waiting = Vec::new();
        let refused = loop {
            match workspaces.receive(&tenant, id).await {
                Ok(received) => waiting.push(received),
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, Error::Overloaded), "{refused:?}");
        workspaces.upload(&tenant).unwrap();
        drop(waiting);
        assert!(workspaces.receive(&tenant, id).await.is_ok());
    }
}
