//! Unpacks an archive that may be hostile.
//!
//! Nothing in it is believed: names are taken apart and every directory is opened beneath the
//! new tree without following links, what has a name already is refused, sizes count while they
//! are written, and what is read ahead of a file, such as long names, is bounded as well.

use std::{
    ffi::{CString, OsStr},
    fmt::Display,
    fs::{File, Permissions},
    io::{self, BufReader, Read, Write as _},
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStrExt as _, fs::PermissionsExt as _},
    },
};

use flate2::read::MultiGzDecoder;
use nix::{
    errno::Errno,
    fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat2},
    sys::stat::{Mode, mkdirat},
    unistd::{fchown, fchownat, symlinkat},
};
use ruzstd::decoding::StreamingDecoder;
use tar::{Archive, EntryType, Header, PaxExtensions};

use super::{
    Broken, Format,
    names::{LONGEST_PATH, names, stays_inside},
};
use crate::{
    call::WorkspaceId,
    error::Error,
    files::{Most, Workspace, content, how},
    text::shorten,
    workspaces::Limits,
};

/// How much may be said about an entry before it comes.
const LARGEST_EXTENSION: u64 = 64 * 1024;

/// What an archive may hold per file beside its content: headers, long names, padding.
const OVERHEAD: u64 = 2 * 1024;

#[derive(Debug)]
pub enum Problem {
    /// What is wrong with the archive.
    Refused(String),
    TooMuch,
    Files(io::Error),
}

impl Problem {
    pub fn into_broken(self, id: WorkspaceId, limits: Limits) -> Broken {
        match self {
            Problem::Refused(problem) => Broken::Refused(Error::Invalid { field: "data", problem }),
            Problem::TooMuch => Broken::Refused(Error::WorkspaceFull { id, limits }),
            Problem::Files(error) => Broken::Files(error),
        }
    }
}

/// Unpacks an archive into a tree that nobody else can reach.
pub fn unpack(format: Format, file: File, tree: &Workspace, most: Most) -> Result<(), Problem> {
    let file = BufReader::new(file);
    let reader: Box<dyn Read> = match format {
        Format::TarGzip => Box::new(MultiGzDecoder::new(file)),
        Format::TarZstd => Box::new(StreamingDecoder::new(file).map_err(damaged)?),
        Format::Tar | Format::GitBundle => Box::new(file),
    };
    let left = most.bytes.saturating_add(most.files.saturating_mul(OVERHEAD));
    let mut archive = Archive::new(Bounded { reader, left, over: false, ended: false });
    let top = tree.top().map_err(Problem::Files)?;
    let mut unpacking = Unpacking { top, tree, most, next: Extension::default() };
    let done = unpacking.all(&mut archive);
    let bounded = archive.into_inner();
    match done {
        _ if bounded.over => Err(Problem::TooMuch),
        Ok(()) if bounded.ended => Err(refused("ends before its end mark; was it cut off?")),
        done => done,
    }
}

/// A reader that ends an archive which goes on for too long, however small it was sent.
struct Bounded<R> {
    reader: R,
    left: u64,
    over: bool,
    ended: bool,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buffer)?;
        self.ended = read == 0 && !buffer.is_empty();
        self.over |= read as u64 > self.left;
        self.left = self.left.saturating_sub(read as u64);
        match self.over {
            true => Err(io::Error::other("too much")),
            false => Ok(read),
        }
    }
}

/// What was said about the next entry.
#[derive(Default)]
struct Extension {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
}

struct Unpacking<'a> {
    top: OwnedFd,
    tree: &'a Workspace,
    most: Most,
    next: Extension,
}

type Entry<'a> = tar::Entry<'a, Bounded<Box<dyn Read>>>;

impl Unpacking<'_> {
    fn all(&mut self, archive: &mut Archive<Bounded<Box<dyn Read>>>) -> Result<(), Problem> {
        for entry in archive.entries().map_err(damaged)?.raw(true) {
            self.entry(entry.map_err(damaged)?)?;
        }
        Ok(())
    }

    fn entry(&mut self, mut entry: Entry<'_>) -> Result<(), Problem> {
        let header = entry.header().clone();
        match header.entry_type() {
            EntryType::GNULongName => self.next.path = Some(text(&mut entry)?),
            EntryType::GNULongLink => self.next.link = Some(text(&mut entry)?),
            EntryType::XHeader => self.extend(&mut entry)?,
            // Comments, which git adds. What is global and matters would be refused as missing.
            EntryType::XGlobalHeader => drop(bounded(&mut entry)?),
            kind => {
                let said = std::mem::take(&mut self.next);
                let path = said.path.unwrap_or_else(|| header.path_bytes().into_owned());
                let link = match said.link {
                    Some(link) => link,
                    None => header.link_name_bytes().unwrap_or_default().into_owned(),
                };
                self.make(kind, &header, &path, &link, entry)?;
            }
        }
        Ok(())
    }

    fn extend(&mut self, entry: &mut Entry<'_>) -> Result<(), Problem> {
        let data = bounded(entry)?;
        for extension in PaxExtensions::new(&data) {
            let extension = extension.map_err(damaged)?;
            let value = extension.value_bytes().to_vec();
            match extension.key_bytes() {
                b"path" => self.next.path = Some(value),
                b"linkpath" => self.next.link = Some(value),
                b"size" => return Err(refused("has a file that is larger than 8 GiB")),
                key if key.starts_with(b"GNU.sparse") => {
                    return Err(refused("has a sparse file; make it without --sparse"));
                }
                _ => (),
            }
        }
        Ok(())
    }

    fn make(
        &mut self,
        kind: EntryType,
        header: &Header,
        path: &[u8],
        link: &[u8],
        entry: Entry<'_>,
    ) -> Result<(), Problem> {
        let shown = shorten(&String::from_utf8_lossy(path), 200);
        let refuse = |problem: &str| Problem::Refused(format!("has {shown:?}, which {problem}"));
        let names = names(path).map_err(refuse)?;
        let Some((name, parents)) = names.split_last() else {
            return match kind {
                // The tree itself.
                EntryType::Directory => Ok(()),
                _ => Err(refuse("has no name")),
            };
        };
        self.most.files = self.most.files.checked_sub(1).ok_or(Problem::TooMuch)?;
        let system = |errno| match errno {
            Errno::EEXIST => refuse("is there twice"),
            Errno::ENOTDIR | Errno::ELOOP | Errno::EXDEV => {
                refuse("is in something that is no directory")
            }
            errno => Problem::Files(io::Error::from(errno)),
        };
        let parent = self.parents(parents).map_err(system)?;
        match kind {
            EntryType::Directory => match self.directory(&parent, name) {
                // An archive may come back to a directory, and to nothing else.
                Err(Errno::EEXIST) => open(&parent, name, DIRECTORY).map(drop).map_err(system),
                made => made.map(drop).map_err(system),
            },
            EntryType::Regular | EntryType::Continuous => {
                let executable = header.mode().map_err(damaged)? & 0o111 != 0;
                let file = self.file(&parent, name, executable).map_err(system)?;
                let size = header.entry_size().map_err(damaged)?;
                self.fill(file, entry, size)
            }
            EntryType::Symlink => {
                let inside = !link.is_empty() && !link.contains(&0) && stays_inside(parents, link);
                if !inside || link.len() > LONGEST_PATH {
                    return Err(refuse("is a link that leads out"));
                }
                symlinkat(OsStr::from_bytes(link), &parent, name.as_c_str()).map_err(system)?;
                self.own_link(&parent, name).map_err(system)
            }
            EntryType::Link => {
                // The same file by another name: here each gets a file of its own.
                let target = self::names(link).map_err(|_| refuse("is a link that leads out"))?;
                let missing = || refuse("is a link to no file before it");
                let (last, parents) = target.split_last().ok_or_else(missing)?;
                let folder = self.reach(parents).map_err(|_| missing())?;
                let reading = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
                let source = File::from(open(&folder, last, reading).map_err(|_| missing())?);
                let metadata = source.metadata().map_err(Problem::Files)?;
                if !metadata.is_file() {
                    return Err(missing());
                }
                let executable = metadata.permissions().mode() & 0o111 != 0;
                self.most.bytes =
                    self.most.bytes.checked_sub(metadata.len()).ok_or(Problem::TooMuch)?;
                let file = self.file(&parent, name, executable).map_err(system)?;
                content(&source, &file, metadata.len(), u64::MAX).map_err(system).map(drop)
            }
            _ => Err(refuse("is neither a file nor a directory nor a link")),
        }
    }

    /// The directory of these names, made as far as it is missing.
    fn parents(&self, names: &[CString]) -> nix::Result<OwnedFd> {
        match self.reach(names) {
            Err(Errno::ENOENT) => (),
            reached => return reached,
        }
        let mut directory = self.reach(&[])?;
        for name in names {
            directory = match open(&directory, name, DIRECTORY) {
                Err(Errno::ENOENT) => self.directory(&directory, name)?,
                opened => opened?,
            };
        }
        Ok(directory)
    }

    fn reach(&self, names: &[CString]) -> nix::Result<OwnedFd> {
        let path = names.iter().map(|name| OsStr::from_bytes(name.to_bytes()));
        let path: std::path::PathBuf = [OsStr::new(".")].into_iter().chain(path).collect();
        openat2(&self.top, path.as_path(), without_links(DIRECTORY))
    }

    fn directory(&self, parent: &OwnedFd, name: &CString) -> nix::Result<OwnedFd> {
        mkdirat(parent, name.as_c_str(), Mode::from_bits_truncate(0o755))?;
        let made = open(parent, name, DIRECTORY)?;
        if let Some((uid, gid)) = self.tree.owner() {
            fchown(&made, Some(uid), Some(gid))?;
        }
        Ok(made)
    }

    fn file(&self, parent: &OwnedFd, name: &CString, executable: bool) -> nix::Result<File> {
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW;
        let how = without_links(flags).mode(Mode::S_IRUSR | Mode::S_IWUSR);
        let made = openat2(parent, name.as_c_str(), how)?;
        if let Some((uid, gid)) = self.tree.owner() {
            fchown(&made, Some(uid), Some(gid))?;
        }
        let made = File::from(made);
        let mode = if executable { 0o755 } else { 0o644 };
        made.set_permissions(Permissions::from_mode(mode)).map_err(|_| Errno::EIO)?;
        Ok(made)
    }

    fn own_link(&self, parent: &OwnedFd, name: &CString) -> nix::Result<()> {
        let Some((uid, gid)) = self.tree.owner() else { return Ok(()) };
        let flags = AtFlags::AT_SYMLINK_NOFOLLOW;
        fchownat(parent, name.as_c_str(), Some(uid), Some(gid), flags)
    }

    fn fill(&mut self, mut file: File, mut entry: Entry<'_>, size: u64) -> Result<(), Problem> {
        self.most.bytes = self.most.bytes.checked_sub(size).ok_or(Problem::TooMuch)?;
        let (mut buffer, mut filled) = (vec![0; 64 * 1024], 0);
        loop {
            let read = entry.read(&mut buffer).map_err(damaged)?;
            if read == 0 {
                break;
            }
            file.write_all(&buffer[..read]).map_err(Problem::Files)?;
            filled += read as u64;
        }
        match filled == size {
            true => Ok(()),
            false => Err(refused("ends in the middle of a file")),
        }
    }
}

const DIRECTORY: OFlag =
    OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

fn open(parent: &OwnedFd, name: &CString, flags: OFlag) -> nix::Result<OwnedFd> {
    openat2(parent, name.as_c_str(), without_links(flags))
}

fn without_links(flags: OFlag) -> OpenHow {
    how(flags).resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS)
}

/// A long name, which ends in a NUL.
fn text(entry: &mut Entry<'_>) -> Result<Vec<u8>, Problem> {
    let mut text = bounded(entry)?;
    if text.last() == Some(&0) {
        text.pop();
    }
    Ok(text)
}

/// What is said about an entry before it comes.
fn bounded(entry: &mut Entry<'_>) -> Result<Vec<u8>, Problem> {
    if entry.header().entry_size().map_err(damaged)? > LARGEST_EXTENSION {
        return Err(refused("has a header of more than 64 KiB"));
    }
    let mut data = Vec::new();
    entry.take(LARGEST_EXTENSION).read_to_end(&mut data).map_err(damaged)?;
    Ok(data)
}

fn refused(problem: &str) -> Problem {
    Problem::Refused(problem.into())
}

fn damaged(error: impl Display) -> Problem {
    Problem::Refused(format!("is no archive of this format, or damaged: {error}"))
}
