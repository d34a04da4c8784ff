//! The files of a workspace, reached from outside of the sandbox.
//!
//! Commands may be at work in the same directory and are not trusted: between a check of a path
//! and its use they could put a link in its place. So it is the kernel that keeps every path
//! beneath the workspace while it opens it, and whatever is said about a file is said about
//! what was opened.

mod place;
mod draft;
mod delete;
mod measure;
mod copy;
mod nearby;
pub mod walk;
mod ignored;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;

use std::{
    collections::BinaryHeap,
    fs::{File, Metadata},
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::{FileExt as _, MetadataExt as _},
    },
    path::Path,
    sync::Arc,
};

use nix::{
    dir::Dir,
    errno::Errno,
    fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2},
    sys::stat::Mode,
    unistd::{Gid, Uid, geteuid},
};

pub use copy::{Most, Problem as CopyProblem, content, copy};
pub use delete::remove;
pub use draft::Draft;
pub use measure::{DEEPEST, Used};
pub use place::{Parents, Place};

use tokio_util::sync::CancellationToken;

use crate::{
    error::{Error, Result},
    text::shorten,
    workspaces::Entered,
};

/// The directory of a workspace, held open.
pub struct Workspace {
    directory: OwnedFd,

    /// Who owns what we make, where that would not be so by itself: as root we work for the
    /// user that commands run as, which is the owner of the workspace.
    owner: Option<(Uid, Gid)>,

    /// What is written counts there, and whoever writes is in there until it is done. Absent
    /// where nobody else can be.
    entered: Option<Arc<Entered>>,
}

/// A part of a file.
#[derive(Debug)]
pub struct Piece {
    pub data: Vec<u8>,
    pub size_bytes: u64,
}

/// A pipe that nobody writes to would make us wait, and a terminal would become ours.
const TO_READ: OFlag = OFlag::O_RDONLY.union(OFlag::O_NONBLOCK).union(OFlag::O_NOCTTY);

/// How often a path is looked up again that somebody is moving about.
const ATTEMPTS: usize = 16;

/// How much of a path an error repeats, in characters.
const LONGEST_QUOTE: usize = 200;

impl Workspace {
    /// The workspace that somebody is in.
    pub fn of(entered: &Arc<Entered>) -> io::Result<Workspace> {
        let workspace = Workspace::at(&entered.path)?;
        Ok(Workspace { entered: Some(entered.clone()), ..workspace })
    }

    /// The workspace in this directory, whose path nobody but us can change.
    pub fn at(path: &Path) -> io::Result<Workspace> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let directory = open(path, flags, Mode::empty())?;
        let metadata = File::from(directory.try_clone()?).metadata()?;
        let foreign = geteuid().is_root() && metadata.uid() != 0;
        let owner = (Uid::from_raw(metadata.uid()), Gid::from_raw(metadata.gid()));
        Ok(Workspace { directory, owner: foreign.then_some(owner), entered: None })
    }

    /// What it takes on disk.
    pub fn measure(&self, stop: &CancellationToken) -> io::Result<Used> {
        Ok(measure::measure(self.top()?, stop))
    }

    /// The directory itself.
    pub fn top(&self) -> io::Result<OwnedFd> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
        Ok(openat2(self.directory.as_fd(), ".", how(flags))?)
    }

    /// Who owns what is made in here, if that is not us.
    pub fn owner(&self) -> Option<(Uid, Gid)> {
        self.owner
    }

    /// What a path is; of a link, the link itself.
    pub fn stat(&self, path: &str) -> Result<Metadata> {
        let file = self.open(path, OFlag::O_PATH | OFlag::O_NOFOLLOW)?;
        Ok(File::from(file).metadata()?)
    }

    /// The first `limit` entries of a directory whose names come after `after`, in order of
    /// name.
    pub fn list(&self, path: &str, after: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, Metadata)>> {
        let directory = self.open_directory(path)?;
        let mut entries = Vec::new();
        for name in first_names(directory.try_clone()?, after, limit)? {
            let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW;
            match openat2(&directory, name.as_slice(), how(flags)) {
                Ok(file) => entries.push((name, File::from(file).metadata()?)),
                // It was there a moment ago.
                Err(Errno::ENOENT) => (),
                Err(errno) => return Err(explain(path, errno)),
            }
        }
        Ok(entries)
    }

    /// At most `limit` bytes of a file from `offset`; none behind its end.
    pub fn read(&self, path: &str, offset: u64, limit: usize) -> Result<Piece> {
        let (file, metadata) = self.open_file(path)?;
        let size_bytes = metadata.len();
        let rest = size_bytes.saturating_sub(offset).try_into().unwrap_or(usize::MAX);
        let data = read_at(&file, offset, limit.min(rest))?;
        Ok(Piece { data, size_bytes })
    }

    /// A regular file, to be read. Links within the workspace are followed.
    pub fn open_file(&self, path: &str) -> Result<(File, Metadata)> {
        regular(self.open(path, TO_READ)?)
    }

    /// A directory. Links within the workspace are followed.
    pub fn open_directory(&self, path: &str) -> Result<OwnedFd> {
        self.open(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY)
    }

    fn open(&self, path: &str, flags: OFlag) -> Result<OwnedFd> {
        let name = if path.is_empty() { "." } else { path };
        for _ in 0..ATTEMPTS {
            match openat2(self.directory.as_fd(), name, how(flags)) {
                Ok(file) => return Ok(file),
                Err(Errno::EAGAIN) => (),
                Err(errno) => return Err(explain(path, errno)),
            }
        }
        // The kernel could not rule out that it leads out.
        Err(explain(path, Errno::EXDEV))
    }
}

/// What was opened, if it is a file that has content of its own.
fn regular(file: OwnedFd) -> Result<(File, Metadata)> {
    let file = File::from(file);
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        Err(invalid("is a directory"))
    } else if !metadata.is_file() {
        Err(invalid("is no regular file"))
    } else {
        Ok((file, metadata))
    }
}

/// At most `limit` bytes from `offset`. A file that has become shorter gives less.
pub fn read_at(file: &File, offset: u64, limit: usize) -> io::Result<Vec<u8>> {
    let mut data = vec![0; limit];
    let mut filled = 0;
    while filled < limit {
        match file.read_at(&mut data[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
            Err(error) => return Err(error),
        }
    }
    data.truncate(filled);
    Ok(data)
}

/// The first `limit` names of a directory that come after `after`, in order. Of a directory of
/// any size, no more is remembered than was asked for.
fn first_names(directory: OwnedFd, after: &[u8], limit: usize) -> io::Result<Vec<Vec<u8>>> {
    let mut names = BinaryHeap::new();
    for entry in Dir::from_fd(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name > after && !matches!(name, b"." | b"..") {
            names.push(name.to_owned());
        }
        if names.len() > limit {
            names.pop();
        }
    }
    Ok(names.into_sorted_vec())
}

fn invalid(problem: &str) -> Error {
    Error::Invalid { field: "path", problem: problem.into() }
}

fn explain(path: &str, errno: Errno) -> Error {
    let path = quote(path);
    match errno {
        Errno::EXDEV => Error::PathOutside(path),
        Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::ENAMETOOLONG | Errno::ENXIO => {
            Error::PathNotFound(path)
        }
        Errno::EACCES | Errno::EPERM => invalid("permission is denied"),
        errno => Error::Files(errno.into()),
    }
}

/// Errors travel in headers, which have little room.
fn quote(path: &str) -> String {
    shorten(path, LONGEST_QUOTE)
}

/// How everything is opened: beneath where it is looked for.
pub fn how(flags: OFlag) -> OpenHow {
    OpenHow::new()
        .flags(flags | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS)
}
