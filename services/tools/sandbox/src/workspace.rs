//! The directory that a sandbox works in, which outlives it.

use std::{
    fs::{File, OpenOptions, Permissions},
    io,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, chown},
    path::Path,
};

use nix::{
    fcntl::{AT_FDCWD, RenameFlags, renameat2},
    libc,
    unistd::geteuid,
};
use serde::{Deserialize, Serialize};

/// The host user that commands run as when the service is root.
const NOBODY: u32 = 65_534;

/// A workspace that was found, whatever becomes of its name.
#[derive(Debug)]
pub struct Workspace {
    pub directory: File,
    /// Who commands in it run as, where the service is root and could choose.
    pub owner: Option<Owner>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
}

impl Workspace {
    pub fn open(path: &Path) -> io::Result<Workspace> {
        let flags = libc::O_PATH | libc::O_DIRECTORY;
        let directory = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        let metadata = directory.metadata()?;
        let owner = Owner { uid: metadata.uid(), gid: metadata.gid() };
        let owner = (geteuid().is_root() && owner.uid != 0).then_some(owner);
        Ok(Workspace { directory, owner })
    }
}

/// Makes a directory that a sandbox can work in, if it is not there: private, and when we are
/// root, owned by nobody in particular, because commands run as the owner of their workspace.
///
/// It appears with its owner or not at all, so that no command can run as root in between.
pub fn create_workspace(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let new = tempfile::Builder::new()
        .prefix(".new-")
        .permissions(Permissions::from_mode(0o700))
        .tempdir_in(parent)?;
    if geteuid().is_root() {
        match chown(new.path(), Some(NOBODY), Some(NOBODY)) {
            // Root of a container that has no other users, or no right to become one. The
            // report of the user namespace says who commands really are.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EPERM)) => (),
            done => done?,
        }
    }
    match renameat2(AT_FDCWD, new.path(), AT_FDCWD, path, RenameFlags::RENAME_NOREPLACE) {
        Ok(()) => {
            // What would be cleaned up has moved.
            let _ = new.keep();
            Ok(())
        }
        Err(nix::Error::EEXIST) if path.is_dir() => Ok(()),
        Err(error) => Err(error.into()),
    }
}
