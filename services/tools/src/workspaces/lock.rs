//! Who may be in a workspace at the same time.
//!
//! Calls, processes and writers hold it shared; whoever replaces all of it has it alone. The
//! locks are the kernel's, on a file that no command can reach, so they hold between all
//! processes that share a disk, and nobody keeps one beyond his death.

use std::{
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use nix::fcntl::{Flock, FlockArg};
use tokio::time::{Instant, sleep};

/// How long to wait for somebody who replaces all of a workspace, or for those in it to leave.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// How often to look again.
const PERIOD: Duration = Duration::from_millis(25);

#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    _held: Flock<File>,
}

#[derive(Debug, Clone, Copy)]
pub enum Share {
    WithOthers,
    Alone,
}

impl Lock {
    /// Waits for a lock. `None`: others had it all the time.
    pub async fn wait(path: &Path, share: Share, patience: Duration) -> io::Result<Option<Lock>> {
        let until = Instant::now() + patience;
        loop {
            match Lock::take(path, share) {
                Ok(None) if Instant::now() < until => sleep(PERIOD).await,
                taken => return taken,
            }
        }
    }

    /// Takes a lock if it is free.
    pub fn take(path: &Path, share: Share) -> io::Result<Option<Lock>> {
        let file = match open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
                DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
                open(path)?
            }
            opened => opened?,
        };
        let inode = file.metadata()?.ino();
        let how = match share {
            Share::WithOthers => FlockArg::LockSharedNonblock,
            Share::Alone => FlockArg::LockExclusiveNonblock,
        };
        let held = match Flock::lock(file, how) {
            Ok(held) => held,
            Err((_, nix::Error::EWOULDBLOCK)) => return Ok(None),
            Err((_, errno)) => return Err(errno.into()),
        };
        // Whoever removed the file had it alone, and others may lock a new one by now.
        match fs::metadata(path) {
            Ok(metadata) if metadata.ino() == inode => {
                Ok(Some(Lock { path: path.to_owned(), _held: held }))
            }
            Ok(_) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes the file of a lock that is held alone, together with what it was for.
    pub fn remove(self) -> io::Result<()> {
        fs::remove_file(&self.path)
    }
}

fn open(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).create(true).truncate(false).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_share_and_one_is_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("locks/one");
        let take = |share| Lock::take(&path, share).unwrap();
        let first = take(Share::WithOthers).unwrap();
        let second = take(Share::WithOthers).unwrap();
        assert!(take(Share::Alone).is_none());
        drop((first, second));
        let alone = take(Share::Alone).unwrap();
        assert!(take(Share::WithOthers).is_none());
        alone.remove().unwrap();
        assert!(take(Share::WithOthers).is_some());
    }

    #[tokio::test]
    async fn waiting_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("one");
        let held = Lock::take(&path, Share::Alone).unwrap().unwrap();
        let short = Duration::from_millis(50);
        assert!(Lock::wait(&path, Share::WithOthers, short).await.unwrap().is_none());
        let waiting = tokio::spawn({
            let path = path.clone();
            async move { Lock::wait(&path, Share::WithOthers, PATIENCE).await.unwrap().is_some() }
        });
        drop(held);
        assert!(waiting.await.unwrap());
    }
}
