//! Where trees are made before anybody sees them, and where they go when nobody should.

use std::{
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use nix::fcntl::{Flock, FlockArg};
use tracing::warn;

use crate::files;

chassis::id!(StageId, "stage");

/// In the directory of a tenant, where no workspace has such a name.
const FOLDER: &str = ".staging";

/// How the name of a stage begins that is not locked yet. It is empty.
const NEW: &str = "new_";

/// A private directory on the disk of the workspaces. What is left in it when it is dropped is
/// removed, and what a process that was killed left in it, by the next sweep.
#[derive(Debug)]
pub struct Stage {
    pub path: PathBuf,

    /// Says that somebody is at work here, as long as we live.
    held: Option<Flock<File>>,
}

impl Stage {
    /// `tenant` is the directory of all workspaces of a tenant.
    pub fn new(tenant: &Path) -> io::Result<Stage> {
        let folder = tenant.join(FOLDER);
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        let id = StageId::new();
        let (new, path) = (folder.join(format!("{NEW}{id}")), folder.join(id.to_string()));
        DirBuilder::new().mode(0o700).create(&new)?;
        let held = Flock::lock(File::open(&new)?, FlockArg::LockExclusiveNonblock);
        let held = held.map_err(|(_, errno)| io::Error::from(errno))?;
        fs::rename(&new, &path)?;
        Ok(Stage { path, held: Some(held) })
    }

    /// Takes something out of everybody's sight, if it is there.
    pub fn take_away(&self, path: &Path) -> io::Result<()> {
        match fs::rename(path, self.path.join(StageId::new().to_string())) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let (path, held) = (self.path.clone(), self.held.take());
        // A large tree takes its time, which nobody should wait for.
        let removing = move || {
            remove(&path);
            drop(held);
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(removing)),
            Err(_) => removing(),
        }
    }
}

/// Removes what others have left behind. Whoever still works somewhere holds a lock on it.
pub fn sweep(tenant: &Path) -> io::Result<()> {
    let stages = match fs::read_dir(tenant.join(FOLDER)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        stages => stages?,
    };
    for stage in stages {
        let stage = stage?;
        if stage.file_name().to_string_lossy().starts_with(NEW) {
            continue;
        }
        let path = stage.path();
        // Somebody else may be quicker.
        let Ok(file) = File::open(&path) else { continue };
        if let Ok(_held) = Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            remove(&path);
        }
    }
    Ok(())
}

fn remove(path: &Path) {
    match files::remove(path) {
        Ok(()) => (),
        // The next sweep tries again.
        Err(error) => warn!(%error, path = %path.display(), "leftovers cannot be removed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_nobody_holds_is_swept() {
        let tenant = tempfile::tempdir().unwrap();
        let held = Stage::new(tenant.path()).unwrap();
        let left = Stage::new(tenant.path()).unwrap();
        for stage in [&held, &left] {
            fs::create_dir_all(stage.path.join("a/b/c")).unwrap();
            fs::write(stage.path.join("a/file"), "x").unwrap();
        }
        // As if its process had been killed.
        let path = left.path.clone();
        let mut left = std::mem::ManuallyDrop::new(left);
        left.held = None;
        sweep(tenant.path()).unwrap();
        assert!(held.path.join("a/file").exists());
        assert!(!path.exists());
        let path = held.path.clone();
        drop(held);
        assert!(!path.exists());
    }
}
