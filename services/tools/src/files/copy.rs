//! Copies of whole trees, which share their content with the original where the file system
//! can do that: hard links would not do, because commands write into files.

use std::{
    collections::HashMap,
    ffi::CStr,
    fs::{File, FileTimes, Permissions},
    io::{self, Read as _, Seek as _, SeekFrom},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::{ffi::OsStrExt as _, fs::PermissionsExt as _},
    },
    path::PathBuf,
    time::{Duration, SystemTime},
};

use nix::{
    errno::Errno,
    fcntl::{AtFlags, OFlag, openat2, readlinkat},
    libc,
    sys::{
        stat::{FileStat, Mode, UtimensatFlags, fstat, mkdirat, utimensat},
        time::TimeSpec,
    },
    unistd::{Gid, Uid, Whence, fchown, fchownat, geteuid, linkat, lseek, symlinkat},
};
use tokio_util::sync::CancellationToken;

use super::{
    TO_READ, how,
    measure::{DEEPEST, kind, listing, open_directory, stat},
};

#[derive(Debug, thiserror::Error)]
pub enum Problem {
    #[error("directories are nested deeper than {DEEPEST}")]
    TooDeep,

    #[error("there is more than the workspace may hold")]
    TooMuch,

    #[error("nobody waits for it any more")]
    Stopped,

    #[error("{0:?} cannot be copied: {1}")]
    System(PathBuf, Errno),
}

/// How much may be copied.
#[derive(Debug, Clone, Copy)]
pub struct Most {
    pub bytes: u64,
    pub files: u64,
}

/// Copies what is in one directory into another, which nobody else can reach. Content, modes,
/// owners, times and links are kept; sockets and pipes are not.
pub fn copy(
    from: OwnedFd,
    to: OwnedFd,
    most: Most,
    stop: &CancellationToken,
) -> Result<(), Problem> {
    let top = to.try_clone().map_err(|_| Problem::System(PathBuf::new(), Errno::EMFILE))?;
    let copied = Most { bytes: 0, files: 0 };
    let (links, path) = (HashMap::new(), PathBuf::new());
    let mut copying = Copying { top, links, path, most, copied, stop };
    copying.directory(&from, &to, 0)?;
    let stat = fstat(&from).map_err(|errno| copying.failed(errno))?;
    keep(to, &stat).map_err(|errno| copying.failed(errno))
}

struct Copying<'a> {
    top: OwnedFd,

    /// Where in the copy files are that have several names.
    links: HashMap<(u64, u64), PathBuf>,

    /// Where we are.
    path: PathBuf,
    most: Most,
    copied: Most,
    stop: &'a CancellationToken,
}

impl Copying<'_> {
    fn failed(&self, errno: Errno) -> Problem {
        Problem::System(self.path.clone(), errno)
    }

    fn directory(&mut self, from: &OwnedFd, to: &OwnedFd, depth: usize) -> Result<(), Problem> {
        let mut entries = listing(from).map_err(|errno| self.failed(errno))?;
        for entry in entries.iter() {
            let entry = entry.map_err(|errno| self.failed(errno))?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            if self.stop.is_cancelled() {
                return Err(Problem::Stopped);
            }
            self.path.push(std::ffi::OsStr::from_bytes(name.to_bytes()));
            self.entry(from, to, name, depth)?;
            self.path.pop();
        }
        Ok(())
    }

    fn entry(
        &mut self,
        from: &OwnedFd,
        to: &OwnedFd,
        name: &CStr,
        depth: usize,
    ) -> Result<(), Problem> {
        let stat = match stat(from, name) {
            Ok(stat) => stat,
            // It was there a moment ago.
            Err(Errno::ENOENT) => return Ok(()),
            Err(errno) => return Err(self.failed(errno)),
        };
        self.copied.files += 1;
        let done = match kind(&stat) {
            libc::S_IFDIR => {
                if depth == DEEPEST {
                    return Err(Problem::TooDeep);
                }
                let child = match open_directory(from, name) {
                    Ok(child) => child,
                    Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => return Ok(()),
                    Err(errno) => return Err(self.failed(errno)),
                };
                let made = make_directory(to, name).map_err(|errno| self.failed(errno))?;
                self.directory(&child, &made, depth + 1)?;
                keep(made, &stat)
            }
            libc::S_IFREG => self.file(from, to, name, &stat),
            libc::S_IFLNK => link(from, to, name, &stat),
            _ => Ok(()),
        };
        match done {
            Ok(()) | Err(Errno::ENOENT | Errno::ELOOP) => (),
            Err(errno) => return Err(self.failed(errno)),
        }
        match self.copied.files > self.most.files || self.copied.bytes > self.most.bytes {
            true => Err(Problem::TooMuch),
            false => Ok(()),
        }
    }

    fn file(
        &mut self,
        from: &OwnedFd,
        to: &OwnedFd,
        name: &CStr,
        stat: &FileStat,
    ) -> nix::Result<()> {
        let several = stat.st_nlink > 1;
        let key = (stat.st_dev, stat.st_ino);
        if several && let Some(first) = self.links.get(&key) {
            return linkat(&self.top, first, to, name, AtFlags::empty());
        }
        let source = File::from(openat2(from, name, how(TO_READ | OFlag::O_NOFOLLOW))?);
        let stat = fstat(&source)?;
        if kind(&stat) != libc::S_IFREG {
            return Ok(());
        }
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW;
        let private = Mode::S_IRUSR | Mode::S_IWUSR;
        let copy = File::from(openat2(to, name, how(flags).mode(private))?);
        let room = self.most.bytes.saturating_sub(self.copied.bytes);
        self.copied.bytes += content(&source, &copy, stat.st_size as u64, room)?;
        keep(copy.into(), &stat)?;
        if several {
            self.links.insert(key, self.path.clone());
        }
        Ok(())
    }
}

/// Gives a copy the content of its original, and says how much of it is not holes. Stops a
/// little after `room`.
pub fn content(source: &File, copy: &File, size: u64, room: u64) -> nix::Result<u64> {
    if rustix::fs::ioctl_ficlone(copy, source).is_ok() {
        return Ok(fstat(copy)?.st_blocks as u64 * 512);
    }
    let (mut reader, mut writer) = (source, copy);
    let (mut offset, mut copied) = (0, 0);
    while offset < size && copied <= room {
        let (start, end) = match lseek(source.as_fd(), offset as i64, Whence::SeekData) {
            Ok(start) => (start as u64, lseek(source.as_fd(), start, Whence::SeekHole)? as u64),
            Err(Errno::ENXIO) => break,
            // This file system knows no holes.
            Err(_) => (offset, size),
        };
        // What grows while it is copied must not keep us.
        let end = end.min(size);
        reader.seek(SeekFrom::Start(start)).map_err(errno)?;
        writer.seek(SeekFrom::Start(start)).map_err(errno)?;
        copied +=
            io::copy(&mut reader.take(end.saturating_sub(start)), &mut writer).map_err(errno)?;
        offset = end.max(offset + 1);
    }
    copy.set_len(size).map_err(errno)?;
    Ok(copied)
}

fn make_directory(parent: &OwnedFd, name: &CStr) -> nix::Result<OwnedFd> {
    mkdirat(parent, name, Mode::S_IRWXU)?;
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
    openat2(parent, name, how(flags))
}

fn link(from: &OwnedFd, to: &OwnedFd, name: &CStr, stat: &FileStat) -> nix::Result<()> {
    let target = readlinkat(from, name)?;
    symlinkat(target.as_os_str(), to, name)?;
    if geteuid().is_root() {
        let (uid, gid) = owner(stat);
        fchownat(to, name, Some(uid), Some(gid), AtFlags::AT_SYMLINK_NOFOLLOW)?;
    }
    let modified = TimeSpec::new(stat.st_mtime, stat.st_mtime_nsec);
    utimensat(to, name, &TimeSpec::UTIME_OMIT, &modified, UtimensatFlags::NoFollowSymlink)
}

/// Gives a copy the owner, mode and time of its original. Nobody becomes somebody else by it.
fn keep(copy: OwnedFd, stat: &FileStat) -> nix::Result<()> {
    if geteuid().is_root() {
        let (uid, gid) = owner(stat);
        fchown(&copy, Some(uid), Some(gid))?;
    }
    let copy = File::from(copy);
    copy.set_permissions(Permissions::from_mode(stat.st_mode & 0o777)).map_err(errno)?;
    let since = Duration::new(stat.st_mtime.max(0) as u64, stat.st_mtime_nsec as u32);
    copy.set_times(FileTimes::new().set_modified(SystemTime::UNIX_EPOCH + since)).map_err(errno)
}

fn owner(stat: &FileStat) -> (Uid, Gid) {
    (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid))
}

fn errno(error: io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}
