//! A walk through a workspace that nobody can lead astray.
//!
//! Every directory is opened beneath the one where the walk began and without following any
//! link, and what is found in it is opened by its name in there. Walkers that go by paths, such
//! as the one of the `ignore` crate, can be sent anywhere by a link that is put in at the right
//! moment.

mod queue;

use std::{
    ffi::{CStr, CString, OsStr},
    fs::{File, Metadata},
    ops::ControlFlow,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    panic::resume_unwind,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use nix::{
    dir::{Dir, Type},
    fcntl::{OFlag, OpenHow, ResolveFlag, openat2},
};
use tokio_util::sync::CancellationToken;

use self::queue::{Job, Queue};
use super::{TO_READ, Workspace, draft, how, ignored::Ignored, regular};
use crate::error::Result;

/// How much of a tree is looked at before the walk gives up.
const MOST_ENTRIES: u64 = 1_000_000;

/// More threads than this only get into each other's way.
const MOST_THREADS: usize = 8;

/// How many files of one directory are looked at in one go, so that others can take the rest.
const BATCH: usize = 64;

/// A regular file that a walk came by.
pub struct Found<'a> {
    directory: &'a Directory,
    name: &'a CStr,

    /// Its path in the workspace.
    pub path: &'a Path,
}

/// How a walk ended.
#[derive(Debug)]
pub struct Walked {
    /// Directories and files that could not be looked at.
    pub skipped: u64,

    /// Everything was visited, unless a visitor broke off.
    pub complete: bool,
}

/// A directory in the middle of the walk.
struct Directory {
    descriptor: OwnedFd,
    path: PathBuf,
}

/// Visits every regular file below a directory that no ignore file leaves out, from several
/// threads, each of which has a visitor of its own. Links are not followed, and neither `.git`
/// nor drafts are visited.
pub fn walk<V>(
    workspace: &Workspace,
    path: &str,
    stop: &CancellationToken,
    visitor: impl Fn() -> V + Sync,
) -> Result<Walked>
where
    V: FnMut(Found<'_>) -> ControlFlow<()>,
{
    let start = workspace.open_directory(path)?;
    let walk = Walk {
        start,
        start_path: plain(path),
        queue: Queue::new(Job::Directory(
            Path::new("").into(),
            c".".into(),
            above(workspace, path),
        )),
        entries: AtomicU64::new(0),
        skipped: AtomicU64::new(0),
        stop,
    };
    let threads = thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
    let complete = thread::scope(|scope| {
        let work = || walk.work(visitor());
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let complete = work();
        let joined = others
            .into_iter()
            .map(|other| other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        joined.fold(complete, |complete, other| complete && other)
    });
    Ok(Walked { skipped: walk.skipped.into_inner(), complete })
}

/// What the directories above the start leave out.
fn above(workspace: &Workspace, path: &str) -> Option<Arc<Ignored>> {
    let mut ignored = None;
    let mut above = PathBuf::new();
    for part in plain(path).iter() {
        let directory = workspace.open_directory(above.to_str()?).ok()?;
        ignored = Ignored::below(ignored, &directory, &above);
        above.push(part);
    }
    ignored
}

/// A path without what does not matter in it.
fn plain(path: &str) -> PathBuf {
    path.split('/').filter(|part| !matches!(*part, "" | ".")).collect()
}

struct Walk<'a> {
    start: OwnedFd,
    start_path: PathBuf,
    queue: Queue,
    entries: AtomicU64,
    skipped: AtomicU64,
    stop: &'a CancellationToken,
}

impl Walk<'_> {
    /// Takes jobs until there are none; false if something was left undone.
    fn work(&self, mut visitor: impl FnMut(Found<'_>) -> ControlFlow<()>) -> bool {
        while let Some(job) = self.queue.take() {
            let done = match &*job {
                Job::Directory(parent, name, above) => {
                    let path = parent.join(os(name));
                    self.enter(&path, above.clone(), &mut visitor)
                }
                Job::Files(directory, names) => self.visit(directory, names, &mut visitor),
            };
            if done.is_break() {
                self.queue.close();
                return false;
            }
        }
        !self.queue.is_closed()
    }

    fn enter(
        &self,
        path: &Path,
        above: Option<Arc<Ignored>>,
        visitor: &mut impl FnMut(Found<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let below = path.strip_prefix(".").unwrap_or(path);
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
        let Ok(descriptor) = openat2(self.start.as_fd(), path, without_links(flags)) else {
            return self.skip();
        };
        let directory = Directory { descriptor, path: self.start_path.join(below) };
        let Ok(entries) = self.list(&directory)? else { return self.skip() };

        let has_rules = entries.iter().any(|(name, _)| Ignored::is_named(name.to_bytes()));
        let ignored = match has_rules {
            true => Ignored::below(above, &directory.descriptor, &directory.path),
            false => above,
        };
        let here: Arc<Path> = path.into();
        let (mut jobs, mut files) = (Vec::new(), Vec::new());
        for (name, kind) in entries {
            let is_directory = kind == Type::Directory;
            let left_out =
                |ignored: &Arc<Ignored>| ignored.has(&directory.path.join(os(&name)), is_directory);
            if ignored.as_ref().is_some_and(left_out) {
                continue;
            }
            match is_directory {
                true => jobs.push(Job::Directory(here.clone(), name, ignored.clone())),
                false => files.push(name),
            }
        }
        let directory = Arc::new(directory);
        let rest = files.split_off(files.len().min(BATCH));
        // Files are taken before directories, so that few directories are open at once.
        let batches = rest.chunks(BATCH).map(|names| Job::Files(directory.clone(), names.to_vec()));
        jobs.extend(batches);
        self.queue.add(jobs);
        self.visit(&directory, &files, visitor)
    }

    /// The directories and regular files in a directory. Breaks off when it is time to stop.
    fn list(&self, directory: &Directory) -> ControlFlow<(), nix::Result<Vec<(CString, Type)>>> {
        let listing = directory.descriptor.try_clone().map_err(|_| nix::Error::EMFILE);
        let mut listing = match listing.and_then(Dir::from_fd) {
            Ok(listing) => listing,
            Err(error) => return ControlFlow::Continue(Err(error)),
        };
        let mut entries = Vec::new();
        for entry in listing.iter() {
            let Ok(entry) = entry else { break };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let seen = self.entries.fetch_add(1, Ordering::Relaxed);
            if seen >= MOST_ENTRIES || self.stop.is_cancelled() {
                return ControlFlow::Break(());
            }
            let kind = entry.file_type().or_else(|| kind(directory, name));
            let hidden =
                name.to_bytes() == b".git" || name.to_bytes().starts_with(draft::PREFIX.as_bytes());
            match kind {
                Some(kind @ (Type::Directory | Type::File)) if !hidden => {
                    entries.push((name.to_owned(), kind));
                }
                _ => (),
            }
        }
        ControlFlow::Continue(Ok(entries))
    }

    fn visit(
        &self,
        directory: &Directory,
        names: &[CString],
        visitor: &mut impl FnMut(Found<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let mut path = directory.path.clone();
        for name in names {
            if self.stop.is_cancelled() {
                return ControlFlow::Break(());
            }
            path.push(os(name));
            visitor(Found { directory, name, path: &path })?;
            path.pop();
        }
        ControlFlow::Continue(())
    }

    fn skip(&self) -> ControlFlow<()> {
        self.skipped.fetch_add(1, Ordering::Relaxed);
        ControlFlow::Continue(())
    }
}

impl Found<'_> {
    /// Opens it to be read, if it is still a regular file.
    pub fn open(&self) -> Option<(File, Metadata)> {
        let how = without_links(TO_READ | OFlag::O_NOFOLLOW);
        regular(openat2(&self.directory.descriptor, self.name, how).ok()?).ok()
    }

    pub fn metadata(&self) -> Option<Metadata> {
        metadata(self.directory, self.name).filter(Metadata::is_file)
    }
}

/// What an entry is, on file systems that do not say so when listing.
fn kind(directory: &Directory, name: &CStr) -> Option<Type> {
    let metadata = metadata(directory, name)?;
    if metadata.is_dir() { Some(Type::Directory) } else { metadata.is_file().then_some(Type::File) }
}

fn metadata(directory: &Directory, name: &CStr) -> Option<Metadata> {
    let how = without_links(OFlag::O_PATH | OFlag::O_NOFOLLOW);
    File::from(openat2(&directory.descriptor, name, how).ok()?).metadata().ok()
}

fn os(name: &CStr) -> &OsStr {
    OsStr::from_bytes(name.to_bytes())
}

fn without_links(flags: OFlag) -> OpenHow {
    how(flags).resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS)
}
