use std::{
    fs::{File, Metadata},
    os::fd::OwnedFd,
    sync::Arc,
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, RenameFlags, openat2, readlinkat, renameat2},
    sys::stat::{Mode, mkdirat},
    unistd::{Gid, Uid, fchown, fsync},
};

use super::{TO_READ, Workspace, explain, how, invalid, quote, regular};
use crate::{
    error::{Error, Result},
    workspaces::Entered,
};

/// Where something is or will be: a directory that is held open, and a name in it. Whatever
/// happens to the path meanwhile, changes happen there and cannot lead out of the workspace.
pub struct Place {
    pub(super) directory: OwnedFd,
    pub(super) name: String,
    pub(super) owner: Option<(Uid, Gid)>,
    pub(super) entered: Option<Arc<Entered>>,
}

/// What to do about directories that a path needs and that are not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parents {
    Create,
    Expect,
}

/// How many links may follow upon each other, as for the kernel.
const MOST_LINKS: usize = 40;

/// Directories that we make can be entered by whoever can enter the workspace.
const DIRECTORY_MODE: Mode = Mode::from_bits_truncate(0o755);

impl Workspace {
    /// The place of a path; of a link, the place of the link itself.
    pub fn place(&self, path: &str, parents: Parents) -> Result<Place> {
        if path.starts_with('/') {
            return Err(Error::PathOutside(quote(path)));
        }
        let trimmed = path.trim_end_matches('/');
        let (parent, name) = trimmed.rsplit_once('/').unwrap_or(("", trimmed));
        match name {
            "" | "." => return Err(invalid("names no file")),
            // Whether it leads out is the kernel's to say.
            ".." => {
                self.stat(path)?;
                return Err(invalid("names no file"));
            }
            _ => (),
        }
        let directory = match self.open_directory(parent) {
            Err(Error::PathNotFound(_)) if parents == Parents::Create => {
                self.create_directory(parent)
            }
            found => found,
        };
        // Whoever asked knows the whole path, and not what we make of it.
        let directory = directory.map_err(|error| match error {
            Error::PathNotFound(_) => Error::PathNotFound(quote(path)),
            Error::PathOutside(_) => Error::PathOutside(quote(path)),
            error => error,
        })?;
        let (name, entered) = (name.to_owned(), self.entered.clone());
        Ok(Place { directory, name, owner: self.owner, entered })
    }

    /// The place of what a path means: links are followed, and each of them beneath the
    /// workspace.
    pub fn place_of_file(&self, path: &str, parents: Parents) -> Result<Place> {
        let mut path = path.to_owned();
        for _ in 0..MOST_LINKS {
            // Also where a link says so: what is made there could not be found by it.
            if path.ends_with('/') && !path.starts_with('/') {
                return Err(invalid("ends in a slash, so it names no file"));
            }
            let place = self.place(&path, parents)?;
            let target = match readlinkat(&place.directory, place.name.as_str()) {
                Ok(target) => target,
                // It is no link, or nothing.
                Err(Errno::EINVAL | Errno::ENOENT) => return Ok(place),
                Err(errno) => return Err(explain(&path, errno)),
            };
            let target = target.into_string().map_err(|_| invalid("is a link to no text"))?;
            path = match path.rsplit_once('/') {
                Some((parent, _)) if !target.starts_with('/') => format!("{parent}/{target}"),
                _ => target,
            };
        }
        Err(explain(&path, Errno::ELOOP))
    }

    /// Makes a directory and those above it that are missing.
    fn create_directory(&self, path: &str) -> Result<OwnedFd> {
        let mut directory = self.open_directory("")?;
        for (end, _) in path.match_indices('/').chain([(path.len(), "")]) {
            let path = &path[..end];
            directory = match self.open_directory(path) {
                Err(Error::PathNotFound(_)) => self.make_directory(&directory, path)?,
                found => found?,
            };
        }
        Ok(directory)
    }

    /// Makes the last directory of a path. Nothing that appears in its place is followed.
    fn make_directory(&self, parent: &OwnedFd, path: &str) -> Result<OwnedFd> {
        let name = path.rsplit('/').next().unwrap_or(path);
        match mkdirat(parent, name, DIRECTORY_MODE) {
            Ok(()) => (),
            // Somebody was faster, or there is a link to nothing.
            Err(Errno::EEXIST) => return self.open_directory(path),
            Err(errno) => return Err(explain(path, errno)),
        }
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
        let made = openat2(parent, name, how(flags)).map_err(|errno| explain(path, errno))?;
        if let Some((uid, gid)) = self.owner {
            fchown(&made, Some(uid), Some(gid)).map_err(|errno| explain(path, errno))?;
        }
        Ok(made)
    }
}

impl Place {
    /// What is there, if anything; of a link, the link itself.
    pub fn stat(&self) -> Result<Option<Metadata>> {
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW;
        match openat2(&self.directory, self.name.as_str(), how(flags)) {
            Ok(file) => Ok(Some(File::from(file).metadata()?)),
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(explain(&self.name, errno)),
        }
    }

    /// The regular file that is there.
    pub fn open_file(&self) -> Result<(File, Metadata)> {
        match openat2(&self.directory, self.name.as_str(), how(TO_READ | OFlag::O_NOFOLLOW)) {
            Ok(file) => regular(file),
            Err(errno) => Err(explain(&self.name, errno)),
        }
    }

    /// Moves what is here to another place where there is nothing yet.
    pub fn move_to(&self, new: &Place) -> Result<()> {
        let (from, to) = (self.name.as_str(), new.name.as_str());
        let flags = RenameFlags::RENAME_NOREPLACE;
        let taken = |problem: &str| Error::Invalid { field: "new_path", problem: problem.into() };
        match renameat2(&self.directory, from, &new.directory, to, flags) {
            Ok(()) => (),
            Err(Errno::EEXIST | Errno::ENOTEMPTY) => return Err(taken("is there already")),
            Err(Errno::EINVAL) => return Err(taken("lies within what is moved")),
            Err(errno) => return Err(explain(from, errno)),
        }
        self.keep()?;
        new.keep()
    }

    /// Returns when the names in the directory are safe on disk.
    pub(super) fn keep(&self) -> Result<()> {
        Ok(fsync(&self.directory).map_err(std::io::Error::from)?)
    }
}
