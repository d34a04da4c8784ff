use std::{
    ffi::{CStr, CString, OsStr},
    fs::File,
    io,
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStrExt as _, fs::OpenOptionsExt as _},
    },
    path::Path,
};

use nix::libc;
use rustix::pty::{OpenptFlags, openpt, ptsname, unlockpt};

use crate::streams::Size;

/// A terminal for the command, before anybody sits at it.
pub struct Terminal {
    /// The end of whoever sits at it, which is the service.
    pub controller: OwnedFd,
    /// Keeps the line open until the command has it.
    pub line: File,
    name: CString,
}

impl Terminal {
    pub fn open(size: Size) -> io::Result<Terminal> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let controller = openpt(flags)
            .map_err(|error| io::Error::other(format!("cannot open a terminal: {error}")))?;
        unlockpt(&controller)?;
        let name = ptsname(&controller, Vec::new())?;
        let line = File::options()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NOCTTY)
            .open(OsStr::from_bytes(name.as_bytes()))?;
        size.apply(&controller)?;
        Ok(Terminal { controller, line, name })
    }

    pub fn name(&self) -> &CStr {
        &self.name
    }

    pub fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(self.name.as_bytes()))
    }
}
