use std::{fs, io, os::unix::fs::MetadataExt as _};

use nix::{
    sched::{CloneFlags, unshare},
    sys::prctl,
    unistd::{Gid, Uid, getegid, geteuid, setgroups, setresgid, setresuid},
};

/// Who the command is inside: somebody ordinary, because programs behave oddly when they
/// believe that they are root.
pub const UID: u32 = 1000;
pub const GID: u32 = 1000;

/// Root becomes the owner of the workspace, which is our working directory. A sandbox that is
/// escaped from should lead to nobody in particular.
pub fn drop_root() -> io::Result<()> {
    let workspace = fs::metadata(".")?;
    let (uid, gid) = (Uid::from_raw(workspace.uid()), Gid::from_raw(workspace.gid()));
    if !geteuid().is_root() || uid.is_root() {
        return Ok(());
    }
    setgroups(&[])?;
    setresgid(gid, gid, gid)?;
    setresuid(uid, uid, uid)?;
    // Changing the user has taken our own files in /proc from us; the maps are among them.
    prctl::set_dumpable(true)?;
    Ok(())
}

/// Enters a user namespace in which one user exists.
pub fn enter() -> io::Result<String> {
    let (uid, gid) = (geteuid(), getegid());
    unshare(CloneFlags::CLONE_NEWUSER)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{UID} {uid} 1"))?;
    fs::write("/proc/self/gid_map", format!("{GID} {gid} 1"))?;
    Ok(format!("uid {UID} is {uid} outside"))
}
