//! What a tree takes on disk.

use std::{
    collections::HashSet, ffi::CStr, fs, os::fd::OwnedFd, os::unix::fs::PermissionsExt as _,
};

use nix::{
    dir::Dir,
    errno::Errno,
    fcntl::{AtFlags, OFlag, openat2},
    libc,
    sys::stat::{FileStat, fstatat},
};
use tokio_util::sync::CancellationToken;

use super::how;

/// How deep directories may be nested. What is deeper is neither counted nor copied, so a
/// workspace that has it counts as full.
pub const DEEPEST: usize = 128;

/// What stat counts in, whatever the file system does.
const BLOCK: u64 = 512;

/// What a tree takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Used {
    /// On disk: a file with holes takes what is not a hole, and one with several names counts
    /// once.
    pub bytes: u64,

    /// Everything that has a name.
    pub files: u64,

    /// There is more, where nobody can look.
    pub hidden: bool,
}

/// Counts a tree. Links are not followed, and nothing that commands do to it meanwhile leads
/// elsewhere. One that is `stopped` has counted what it saw.
pub fn measure(top: OwnedFd, stop: &CancellationToken) -> Used {
    let mut measuring = Measuring { used: Used::default(), seen: HashSet::new(), stop };
    measuring.directory(&top, 0);
    measuring.used
}

struct Measuring<'a> {
    used: Used,
    seen: HashSet<(u64, u64)>,
    stop: &'a CancellationToken,
}

impl Measuring<'_> {
    fn directory(&mut self, directory: &OwnedFd, depth: usize) {
        let Ok(mut listing) = listing(directory) else { return self.used.hidden = true };
        for entry in listing.iter() {
            let Ok(entry) = entry else { return self.used.hidden = true };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            if self.stop.is_cancelled() {
                return;
            }
            // What is gone takes nothing.
            let Ok(stat) = stat(directory, name) else { continue };
            self.count(&stat);
            if kind(&stat) != libc::S_IFDIR {
                continue;
            }
            match open_directory(directory, name) {
                Ok(_) if depth == DEEPEST => self.used.hidden = true,
                Ok(child) => self.directory(&child, depth + 1),
                Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => (),
                Err(_) => self.used.hidden = true,
            }
        }
    }

    fn count(&mut self, stat: &FileStat) {
        self.used.files += 1;
        let shared = kind(stat) != libc::S_IFDIR && stat.st_nlink > 1;
        if !shared || self.seen.insert((stat.st_dev, stat.st_ino)) {
            self.used.bytes += stat.st_blocks as u64 * BLOCK;
        }
    }
}

pub fn listing(directory: &OwnedFd) -> nix::Result<Dir> {
    Dir::from_fd(directory.try_clone().map_err(|_| Errno::EMFILE)?)
}

pub fn stat(directory: &OwnedFd, name: &CStr) -> nix::Result<FileStat> {
    fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW)
}

pub fn kind(stat: &FileStat) -> u32 {
    stat.st_mode & libc::S_IFMT
}

/// Opens a directory by its name, also one that its owner, whom we work as, has locked: what
/// cannot be looked into could hold anything.
pub fn open_directory(parent: &OwnedFd, name: &CStr) -> nix::Result<OwnedFd> {
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
    match openat2(parent, name, how(OFlag::O_RDONLY | flags)) {
        Err(Errno::EACCES) => (),
        opened => return opened,
    }
    let locked = openat2(parent, name, how(OFlag::O_PATH | flags))?;
    // Not by its path, in whose place there may be a link by now.
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&locked));
    fs::set_permissions(path, fs::Permissions::from_mode(0o700)).map_err(|_| Errno::EACCES)?;
    openat2(parent, name, how(OFlag::O_RDONLY | flags))
}
