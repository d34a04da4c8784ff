use std::{
    fs::{File, Metadata, Permissions},
    io::{self, Write as _},
    os::unix::fs::PermissionsExt as _,
    sync::Mutex,
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, openat2, renameat},
    sys::stat::Mode,
    unistd::{UnlinkatFlags, fchown, unlinkat},
};

use super::{Place, explain, how, invalid};
use crate::error::Result;

chassis::id!(DraftId, "draft");

/// How the names of drafts begin.
pub const PREFIX: &str = ".draft_";

/// The mode of a file that was not there before. Its workspace is private.
const NEW_FILE_MODE: u32 = 0o644;

/// A file that is being written beside the one it will replace, all at once. Dropping it leaves
/// everything as it was.
pub struct Draft {
    place: Place,
    name: String,
    file: File,
    size_bytes: u64,
}

/// What a draft became.
#[derive(Debug)]
pub struct Published {
    /// There was no such file before.
    pub created: bool,
    pub metadata: Metadata,
}

/// Held from the last look at a file until it is replaced, so that of two changes that were
/// made to the same content, one notices the other.
static PUBLISHING: Mutex<()> = Mutex::new(());

impl Draft {
    pub fn new(place: Place) -> Result<Draft> {
        replaceable(&place)?;
        place.take(0, 1)?;
        let name = format!(".{}", DraftId::new());
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW;
        let private = Mode::S_IRUSR | Mode::S_IWUSR;
        let file = openat2(&place.directory, name.as_str(), how(flags).mode(private))
            .map_err(|errno| explain(&place.name, errno))?;
        Ok(Draft { place, name, file: file.into(), size_bytes: 0 })
    }

    pub fn write(&mut self, data: &[u8]) -> Result<()> {
        self.place.take(data.len() as u64, 0)?;
        self.file.write_all(data)?;
        self.size_bytes += data.len() as u64;
        Ok(())
    }

    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Replaces whatever file is there.
    pub fn publish(self) -> Result<Published> {
        let published = self.publish_if(|_| Ok(true))?;
        published.ok_or_else(|| io::Error::other("a draft without conditions was refused").into())
    }

    /// Replaces the file if, at the last moment, `condition` still holds.
    ///
    /// A command in the sandbox that writes at that very moment can still be overwritten:
    /// there is no lock that it would have to take.
    pub fn publish_if(
        self,
        condition: impl FnOnce(&Place) -> Result<bool>,
    ) -> Result<Option<Published>> {
        if let Some((uid, gid)) = self.place.owner {
            fchown(&self.file, Some(uid), Some(gid)).map_err(io::Error::from)?;
        }
        self.file.sync_all()?;
        let locked = PUBLISHING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if !condition(&self.place)? {
            return Ok(None);
        }
        let before = replaceable(&self.place)?;
        let mode = before.as_ref().map_or(NEW_FILE_MODE, |before| before.permissions().mode());
        self.file.set_permissions(Permissions::from_mode(mode & 0o777))?;
        let directory = &self.place.directory;
        renameat(directory, self.name.as_str(), directory, self.place.name.as_str())
            .map_err(|errno| explain(&self.place.name, errno))?;
        drop(locked);
        self.place.keep()?;
        Ok(Some(Published { created: before.is_none(), metadata: self.file.metadata()? }))
    }
}

impl Place {
    /// Makes room for what is to be written, before it is.
    fn take(&self, bytes: u64, files: u64) -> Result<()> {
        match &self.entered {
            Some(entered) => entered.take(bytes, files),
            None => Ok(()),
        }
    }
}

/// What a draft would replace: a file, a link, or nothing.
fn replaceable(place: &Place) -> Result<Option<Metadata>> {
    match place.stat()? {
        Some(metadata) if metadata.is_dir() => Err(invalid("is a directory")),
        // A link can only have come in the meantime. It is replaced, and not followed.
        Some(metadata) if metadata.is_symlink() => Ok(None),
        Some(metadata) if !metadata.is_file() => Err(invalid("is no regular file")),
        found => Ok(found),
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        match unlinkat(&self.place.directory, self.name.as_str(), UnlinkatFlags::NoRemoveDir) {
            // It was published, or somebody took it.
            Ok(()) | Err(Errno::ENOENT) => (),
            Err(error) => tracing::warn!(%error, "a draft could not be removed"),
        }
    }
}
