//! The files of a workspace, read from outside of the sandbox.
//!
//! Commands may be at work in the same directory and are not trusted: between a check of a path
//! and its use they could put a link in its place. So it is the kernel that keeps every path
//! beneath the workspace while it opens it, and whatever is said about a file is said about
//! what was opened.

use std::{
    collections::BinaryHeap,
    fs::{File, Metadata},
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::FileExt as _,
    },
    path::Path,
};

use chassis::Tenant;
use nix::{
    dir::Dir,
    errno::Errno,
    fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2},
    sys::stat::Mode,
};

use crate::{
    call::WorkspaceId,
    error::{Error, Result},
    workspace,
};

/// The directory of a workspace, held open.
pub struct Workspace(OwnedFd);

/// A part of a file.
#[derive(Debug)]
pub struct Piece {
    pub data: Vec<u8>,
    pub size_bytes: u64,
}

/// How often a path is looked up again that somebody is moving about.
const ATTEMPTS: usize = 16;

/// How much of a path an error repeats, in characters.
const LONGEST_QUOTE: usize = 200;

impl Workspace {
    /// A workspace that was used before: reading makes none.
    pub fn find(root: &Path, tenant: &Tenant, id: WorkspaceId) -> Result<Workspace> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        match open(&workspace::path(root, tenant, id), flags, Mode::empty()) {
            Ok(directory) => Ok(Workspace(directory)),
            Err(Errno::ENOENT) => Err(Error::WorkspaceNotFound(id)),
            Err(errno) => Err(Error::Files(errno.into())),
        }
    }

    /// What a path is; of a link, the link itself.
    pub fn stat(&self, path: &str) -> Result<Metadata> {
        let file = self.open(path, OFlag::O_PATH | OFlag::O_NOFOLLOW)?;
        Ok(File::from(file).metadata()?)
    }

    /// The first `limit` entries of a directory whose names come after `after`, in order of
    /// name.
    pub fn list(&self, path: &str, after: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, Metadata)>> {
        let directory = self.open(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
        // Of a directory of any size, no more is remembered than was asked for.
        let mut names = BinaryHeap::new();
        for entry in Dir::from_fd(directory.try_clone()?).map_err(io::Error::from)? {
            let entry = entry.map_err(io::Error::from)?;
            let name = entry.file_name().to_bytes();
            if name > after && !matches!(name, b"." | b"..") {
                names.push(name.to_owned());
            }
            if names.len() > limit {
                names.pop();
            }
        }
        let mut entries = Vec::new();
        for name in names.into_sorted_vec() {
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
        // A pipe that nobody writes to would make us wait.
        let file = self.open(path, OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY)?;
        let file = File::from(file);
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            let problem = if metadata.is_dir() { "is a directory" } else { "is no regular file" };
            return Err(Error::Invalid { field: "path", problem: problem.into() });
        }
        let size_bytes = metadata.len();
        let rest = size_bytes.saturating_sub(offset).try_into().unwrap_or(usize::MAX);
        let mut data = vec![0; limit.min(rest)];
        let mut filled = 0;
        while filled < data.len() {
            match file.read_at(&mut data[filled..], offset + filled as u64) {
                // It has become shorter.
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(error) => return Err(error.into()),
            }
        }
        data.truncate(filled);
        Ok(Piece { data, size_bytes })
    }

    fn open(&self, path: &str, flags: OFlag) -> Result<OwnedFd> {
        let name = if path.is_empty() { "." } else { path };
        for _ in 0..ATTEMPTS {
            match openat2(self.0.as_fd(), name, how(flags)) {
                Ok(file) => return Ok(file),
                Err(Errno::EAGAIN) => (),
                Err(errno) => return Err(explain(path, errno)),
            }
        }
        // The kernel could not rule out that it leads out.
        Err(explain(path, Errno::EXDEV))
    }
}

fn explain(path: &str, errno: Errno) -> Error {
    let path = shorten(path);
    let invalid = |problem: &str| Error::Invalid { field: "path", problem: problem.into() };
    match errno {
        Errno::EXDEV => Error::PathOutside(path),
        Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP | Errno::ENAMETOOLONG | Errno::ENXIO => {
            Error::PathNotFound(path)
        }
        Errno::EACCES => invalid("may not be read"),
        errno => Error::Files(errno.into()),
    }
}

/// Errors travel in headers, which have little room.
fn shorten(path: &str) -> String {
    match path.char_indices().nth(LONGEST_QUOTE) {
        Some((end, _)) => format!("{}…", &path[..end]),
        None => path.to_owned(),
    }
}

fn how(flags: OFlag) -> OpenHow {
    OpenHow::new()
        .flags(flags | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS)
}
