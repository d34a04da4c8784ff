//! Where trees are made before anybody sees them, and where they go when nobody should.

use std::{
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
};
use tracing::warn;

use crate::files;

chassis::id!(StageId, "stage");

/// In the directory of a tenant, where no workspace has such a name.
const FOLDER: &str = ".staging";

/// A sweep may take a stage for left over in the moment before it is locked. Then there is another.
const TRIES: usize = 10;

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
        for _ in 0..TRIES {
            let path = folder.join(StageId::new().to_string());
            DirBuilder::new().mode(0o700).create(&path)?;
            let held = lock(&path)?;
            if held.is_some() && path.try_exists()? {
                return Ok(Stage { path, held });
            }
        }
        Err(io::Error::other("stages are swept as fast as they are made"))
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
        let path = stage?.path();
        if let Ok(Some(_held)) = lock(&path) {
            remove(&path);
        }
    }
    Ok(())
}

/// The lock on a stage, unless somebody else has it, or has removed the stage.
fn lock(path: &Path) -> io::Result<Option<Flock<File>>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(held) => Ok(Some(held)),
        Err((_, Errno::EWOULDBLOCK)) => Ok(None),
        Err((_, errno)) => Err(errno.into()),
    }
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
    use std::{
        sync::atomic::{AtomicBool, Ordering::Relaxed},
        thread,
    };

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

    #[test]
    fn a_stage_is_its_makers_however_often_is_swept() {
        let tenant = tempfile::tempdir().unwrap();
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    sweep(tenant.path()).unwrap();
                }
            });
            let stages: Vec<Stage> =
                (0..200).map_while(|_| Stage::new(tenant.path()).ok()).collect();
            over.store(true, Relaxed);
            assert_eq!(stages.len(), 200);
            assert!(stages.iter().all(|stage| stage.path.exists()));
        });
    }
}
