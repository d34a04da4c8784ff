use std::{fs, io};

use nix::{
    sched::{CloneFlags, unshare},
    sys::prctl,
    unistd::{Gid, Uid, getegid, geteuid, setgroups, setresgid, setresuid},
};

use crate::workspace::Owner;

/// Who the command is inside: somebody ordinary, because programs behave oddly when they
/// believe that they are root.
pub const UID: u32 = 1000;
pub const GID: u32 = 1000;

/// Root becomes the owner of the workspace. A sandbox that is escaped from should lead to nobody
/// in particular.
pub fn become_owner(owner: Owner) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
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
