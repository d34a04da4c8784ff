use std::{
    fs::File,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    sync::Arc,
};

use ignore::{
    Match,
    gitignore::{Gitignore, GitignoreBuilder},
};
use nix::fcntl::{OFlag, ResolveFlag, openat2};

use super::{TO_READ, how, read_at, regular};

/// The files of a directory that say what to leave out below it, the last word last.
const NAMES: [&str; 3] = [".git/info/exclude", ".gitignore", ".ignore"];

/// A larger file is not taken seriously.
const LARGEST: usize = 256 * 1024;

/// What is left out of a walk, by the ignore files of a directory and of those above it.
///
/// The files are read by us and not by the `ignore` crate, which would open whatever is there by
/// its path: a pipe would hold us up for ever, and a link to the host's `/etc/shadow` would let
/// anybody find out which lines it has.
#[derive(Debug)]
pub struct Ignored {
    above: Option<Arc<Ignored>>,
    rules: Gitignore,
}

impl Ignored {
    /// Whether a directory may have ignore files, by the names in it.
    pub fn is_named(name: &[u8]) -> bool {
        matches!(name, b".git" | b".gitignore" | b".ignore")
    }

    /// What is left out below a directory, whose path is as the walk will name it.
    pub fn below(
        above: Option<Arc<Ignored>>,
        directory: &impl AsFd,
        path: &Path,
    ) -> Option<Arc<Ignored>> {
        let mut rules = GitignoreBuilder::new(path);
        for name in NAMES {
            let text = read(directory, name).unwrap_or_default();
            for line in String::from_utf8_lossy(&text).trim_start_matches('\u{feff}').lines() {
                // A line that is no pattern leaves nothing out.
                let _ = rules.add_line(None, line);
            }
        }
        match rules.build() {
            Ok(rules) if !rules.is_empty() => Some(Arc::new(Ignored { above, rules })),
            _ => above,
        }
    }

    /// Whether a path is left out. The directory nearest to it that has an opinion decides.
    pub fn has(&self, path: &Path, is_directory: bool) -> bool {
        let mut next = Some(self);
        while let Some(ignored) = next {
            match ignored.rules.matched(path, is_directory) {
                Match::Ignore(_) => return true,
                Match::Whitelist(_) => return false,
                Match::None => next = ignored.above.as_deref(),
            }
        }
        false
    }
}

fn read(directory: &impl AsFd, name: &str) -> Option<Vec<u8>> {
    let how = how(TO_READ | OFlag::O_NOFOLLOW)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS);
    let file: OwnedFd = openat2(directory.as_fd(), name, how).ok()?;
    let (file, metadata): (File, _) = regular(file).ok()?;
    let size = usize::try_from(metadata.len()).ok().filter(|size| *size <= LARGEST)?;
    read_at(&file, 0, size).ok()
}
