use std::{collections::VecDeque, ffi::CString, os::fd::OwnedFd, path::Path};

use nix::{
    dir::Dir,
    errno::Errno,
    fcntl::{OFlag, RenameFlags, openat2, renameat2},
    sys::stat::{Mode, fchmod},
    unistd::{UnlinkatFlags, unlinkat},
};
use tokio_util::sync::CancellationToken;

use super::{Parents, Place, Workspace, explain, how, measure::open_directory};
use crate::error::{Error, Result};

chassis::id!(DoomedId, "draft");

/// How much one call deletes.
pub const MOST_ENTRIES: usize = 1_000_000;

/// How often a directory is emptied that somebody is filling.
const ATTEMPTS: usize = 16;

/// Removes a tree that nobody but us can reach, however large and deep it is.
pub fn remove(path: &Path) -> Result<()> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(std::io::Error::from(std::io::ErrorKind::InvalidInput).into());
    };
    let folder = Workspace::at(folder)?;
    let place = folder.place(&name.to_string_lossy(), Parents::Expect)?;
    place.delete_as(&CancellationToken::new(), Extent::Everything)
}

/// How far to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// As far as whoever waits for it has patience for, and as modes allow.
    OneCall,
    Everything,
}

impl Place {
    /// Deletes what is here, with everything in it. Links are deleted and never followed. What
    /// is left when it fails or is told to stop can be deleted by doing it again.
    pub fn delete(&self, stop: &CancellationToken) -> Result<()> {
        self.delete_as(stop, Extent::OneCall)
    }

    fn delete_as(&self, stop: &CancellationToken, extent: Extent) -> Result<()> {
        match unlinkat(&self.directory, self.name.as_str(), UnlinkatFlags::NoRemoveDir) {
            Ok(()) => self.keep(),
            Err(Errno::ENOENT) => Ok(()),
            Err(Errno::EISDIR) => {
                let top = open(&self.directory, self.name.as_str());
                let emptied = top.and_then(|top| Emptying::new(top, stop, extent).run());
                emptied.map_err(|problem| self.refuse(problem))?;
                match unlinkat(&self.directory, self.name.as_str(), UnlinkatFlags::RemoveDir) {
                    Ok(()) | Err(Errno::ENOENT) => self.keep(),
                    Err(errno) => Err(self.refuse(Problem::System(errno))),
                }
            }
            Err(errno) => Err(self.refuse(Problem::System(errno))),
        }
    }

    fn refuse(&self, problem: Problem) -> Error {
        let text = match problem {
            Problem::System(Errno::ENOTEMPTY) => "is being filled while it is deleted",
            Problem::System(errno) => return explain(&self.name, errno),
            Problem::TooMuch => "holds more than one call deletes; call again for the rest",
            Problem::Stopped => "is not deleted completely; call again for the rest",
        };
        Error::Invalid { field: "path", problem: text.into() }
    }
}

enum Problem {
    System(Errno),
    TooMuch,
    Stopped,
}

impl From<Errno> for Problem {
    fn from(errno: Errno) -> Problem {
        Problem::System(errno)
    }
}

/// A directory that is being emptied.
///
/// Trees can be deeper than any path is long, and than we have descriptors. So nobody walks
/// down: directories that are not empty are moved up into the top one, and take their turn.
struct Emptying<'a> {
    top: OwnedFd,
    waiting: VecDeque<CString>,
    entries: usize,
    stop: &'a CancellationToken,
    extent: Extent,
}

impl Emptying<'_> {
    fn new(top: OwnedFd, stop: &CancellationToken, extent: Extent) -> Emptying<'_> {
        Emptying { top, waiting: VecDeque::new(), entries: 0, stop, extent }
    }

    fn run(mut self) -> Result<(), Problem> {
        for _ in 0..ATTEMPTS {
            if self.sweep()? == 0 {
                return Ok(());
            }
        }
        Err(Problem::System(Errno::ENOTEMPTY))
    }

    /// Deletes what is in the top directory now, and says how much there was.
    fn sweep(&mut self) -> Result<usize, Problem> {
        let before = self.entries;
        self.empty(open(&self.top, ".")?, true)?;
        while let Some(name) = self.waiting.pop_front() {
            let opened = match self.extent {
                Extent::OneCall => open(&self.top, name.as_c_str()),
                Extent::Everything => open_directory(&self.top, &name).map_err(Problem::from),
            };
            match opened {
                Ok(directory) => self.empty(directory, false)?,
                // Somebody else took it, or put something in its place.
                Err(Problem::System(Errno::ENOENT | Errno::ELOOP | Errno::ENOTDIR)) => continue,
                Err(problem) => return Err(problem),
            }
            match unlinkat(&self.top, name.as_c_str(), UnlinkatFlags::RemoveDir) {
                // If it was filled meanwhile, the next sweep finds it.
                Ok(()) | Err(Errno::ENOENT | Errno::ENOTEMPTY | Errno::ENOTDIR) => (),
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(self.entries - before)
    }

    fn empty(&mut self, directory: OwnedFd, is_top: bool) -> Result<(), Problem> {
        if self.extent == Extent::Everything {
            // Who made it may have locked it.
            let _ = fchmod(&directory, Mode::S_IRWXU);
        }
        let mut listing = Dir::from_fd(directory.try_clone().map_err(|_| Errno::EMFILE)?)?;
        for entry in listing.iter() {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            self.count()?;
            match unlinkat(&directory, name, UnlinkatFlags::NoRemoveDir) {
                Ok(()) | Err(Errno::ENOENT) => continue,
                Err(Errno::EISDIR) => (),
                Err(errno) => return Err(errno.into()),
            }
            match unlinkat(&directory, name, UnlinkatFlags::RemoveDir) {
                Ok(()) | Err(Errno::ENOENT | Errno::ENOTDIR) => (),
                Err(Errno::ENOTEMPTY) if is_top => self.waiting.push_back(name.to_owned()),
                Err(Errno::ENOTEMPTY) => self.move_up(&directory, name)?,
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    fn move_up(&mut self, directory: &OwnedFd, name: &std::ffi::CStr) -> Result<(), Problem> {
        let new = CString::new(format!(".{}", DoomedId::new())).map_err(|_| Errno::EINVAL)?;
        let flags = RenameFlags::RENAME_NOREPLACE;
        match renameat2(directory, name, &self.top, new.as_c_str(), flags) {
            Ok(()) => self.waiting.push_back(new),
            Err(Errno::ENOENT) => (),
            Err(errno) => return Err(errno.into()),
        }
        Ok(())
    }

    fn count(&mut self) -> Result<(), Problem> {
        self.entries += 1;
        if self.entries > MOST_ENTRIES && self.extent == Extent::OneCall {
            Err(Problem::TooMuch)
        } else if self.stop.is_cancelled() {
            Err(Problem::Stopped)
        } else {
            Ok(())
        }
    }
}

fn open<P: ?Sized + nix::NixPath>(directory: &OwnedFd, name: &P) -> Result<OwnedFd, Problem> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
    Ok(openat2(directory, name, how(flags))?)
}
