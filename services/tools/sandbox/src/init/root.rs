//! The private root: a small tmpfs with read-only views of the system's programs, made-up
//! accounts, a few devices, a `/tmp` of its own, and the workspace.
//!
//! The workspace is our working directory before we enter the mount namespace, so it is mounted
//! from `.`: nobody needs to be able to walk to it, and no symbolic link on the way can lead
//! elsewhere.

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    unistd::pivot_root,
};

use super::user::{GID, UID};
use crate::profile::Profile;

pub const WORKSPACE: &str = "/workspace";

/// What a program needs in order to start. On most systems all but the first are links into it.
pub const SYSTEM: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];

/// The parts of `/etc` that programs break without and that say nothing about the host.
pub const ETC: [&str; 15] = [
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/fonts",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/locale.alias",
    "/etc/magic",
    "/etc/mime.types",
    "/etc/os-release",
    "/etc/protocols",
    "/etc/services",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
];

pub const DEVICES: [&str; 6] =
    ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];

/// Terminals of the sandbox's own, where one is asked for.
pub const TERMINALS: &str = "/dev/pts";

/// What the kernel tells to everybody about the machine and about others on it. Programs do
/// without; each is covered by `/dev/null`.
const TALES: [&str; 7] = [
    "/proc/cmdline",
    "/proc/config.gz",
    "/proc/interrupts",
    "/proc/kallsyms",
    "/proc/key-users",
    "/proc/keys",
    "/proc/modules",
];

/// Where the host's root is while ours is being filled.
const HOST: &str = "/.host";

const NO_OPTIONS: Option<&str> = None;

/// Makes an empty tmpfs the root. Only this step can be forbidden by the machine.
pub fn pivot() -> io::Result<()> {
    mount(NO_OPTIONS, "/", NO_OPTIONS, MsFlags::MS_REC | MsFlags::MS_PRIVATE, NO_OPTIONS)?;
    // Any directory would do; this one exists wherever there are programs to run. What the
    // tmpfs covers here is uncovered again when the tmpfs becomes the root.
    let base = Path::new("/usr");
    tmpfs(base, "mode=0755,size=1m")?;
    let host = base.join(".host");
    fs::create_dir(&host)?;
    pivot_root(base, &host)?;
    Ok(())
}

/// Fills the root. Everything is still writable afterwards; `seal` ends that.
pub fn fill(profile: &Profile) -> io::Result<()> {
    for path in SYSTEM.iter().chain(&ETC).map(Path::new) {
        show(path)?;
    }
    let size = format!("mode=1777,size={}", profile.limits.tmp_bytes);
    for path in ["/tmp", "/dev/shm"].map(Path::new) {
        fs::create_dir_all(path)?;
        tmpfs(path, &size)?;
    }
    for path in &profile.read_only {
        bind(&on_host(path), path)?;
    }
    for device in DEVICES.map(Path::new) {
        if on_host(device).exists() {
            bind(&on_host(device), device)?;
        }
    }
    for (name, target) in [("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")] {
        symlink(format!("/proc/self/fd{target}"), Path::new("/dev").join(name))?;
    }

    fs::write("/etc/passwd", format!("agent:x:{UID}:{GID}::{WORKSPACE}:/bin/bash\n"))?;
    fs::write("/etc/group", format!("agent:x:{GID}:\n"))?;
    fs::write("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n")?;
    fs::write("/etc/hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n")?;
    fs::write("/etc/hostname", "sandbox\n")?;

    bind(Path::new("."), Path::new(WORKSPACE))?;
    fs::create_dir("/proc")
}

/// Mounts an empty collection of terminals, in which no terminal of the host is. The kernel has
/// a number of terminals for all of the machine, so this one may only have a few of them.
pub fn mount_terminals() -> io::Result<()> {
    let options = "newinstance,ptmxmode=0666,mode=0600,max=16";
    fs::create_dir(TERMINALS)?;
    // Not `nodev`: terminals are devices.
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
    mount(Some("devpts"), TERMINALS, Some("devpts"), flags, Some(options))
        .map_err(|error| io::Error::other(format!("{TERMINALS}: {error}")))?;
    symlink("pts/ptmx", "/dev/ptmx")
}

/// Mounts a `/proc` of this pid namespace. Read-only, because files such as
/// `/proc/sys/kernel/core_pattern` look at the user and not at capabilities.
///
/// The kernel allows it only while a `/proc` that nothing covers is in sight: the host's.
pub fn mount_proc() -> io::Result<String> {
    let flags = MsFlags::MS_RDONLY | SAFE | MsFlags::MS_NOEXEC;
    mount(Some("proc"), "/proc", Some("proc"), flags, NO_OPTIONS)?;
    for path in TALES.map(Path::new).into_iter().filter(|path| path.exists()) {
        mount(Some("/dev/null"), path, NO_OPTIONS, MsFlags::MS_BIND, NO_OPTIONS)?;
    }
    Ok("read-only".into())
}

/// Lets go of the host and takes away every right that a mount does not need.
pub fn seal(profile: &Profile) -> io::Result<()> {
    let mounts = fs::read_to_string(Path::new(HOST).join("proc/self/mountinfo"))?;
    umount2(HOST, MntFlags::MNT_DETACH)?;
    fs::remove_dir(HOST)?;
    for (path, flags) in mounts.lines().filter_map(parse_mount) {
        // A device alone on its mount has no rights that could be taken away, nor has a mount
        // that has nothing but devices.
        let mut devices = DEVICES.iter().chain(&TALES).chain([&TERMINALS]);
        let device = devices.any(|device| path == Path::new(device));
        if device || path.starts_with(HOST) {
            continue;
        }
        let flags = flags | rights(profile, &path) | MsFlags::MS_REMOUNT | MsFlags::MS_BIND;
        match mount(NO_OPTIONS, &path, NO_OPTIONS, flags, NO_OPTIONS) {
            // A mount below a directory that we may not enter is as closed to the command.
            Ok(()) | Err(nix::Error::EACCES) => (),
            Err(error) => return Err(io::Error::other(format!("{}: {error}", path.display()))),
        }
    }
    Ok(())
}

const SAFE: MsFlags = MsFlags::MS_NOSUID.union(MsFlags::MS_NODEV);

/// What each mount is reduced to.
fn rights(profile: &Profile, path: &Path) -> MsFlags {
    if profile.read_only.iter().any(|shared| path.starts_with(shared)) {
        SAFE | MsFlags::MS_RDONLY
    } else if path.starts_with(WORKSPACE)
        || path.starts_with("/tmp")
        || path.starts_with("/dev/shm")
    {
        SAFE
    } else if path.starts_with("/proc") {
        SAFE | MsFlags::MS_RDONLY | MsFlags::MS_NOEXEC
    } else {
        SAFE | MsFlags::MS_RDONLY
    }
}

/// A line of mountinfo: where, and with which restrictions. Ours must include the ones there are,
/// because a mount that came from outside cannot be given more rights than it had.
fn parse_mount(line: &str) -> Option<(PathBuf, MsFlags)> {
    let mut fields = line.split(' ').skip(4);
    let path = fields.next()?;
    let path = ["\\040", "\\011", "\\012", "\\134"]
        .into_iter()
        .zip([" ", "\t", "\n", "\\"])
        .fold(path.to_owned(), |path, (code, character)| path.replace(code, character));
    let flags = fields.next()?.split(',').fold(MsFlags::empty(), |flags, option| {
        flags
            | match option {
                "ro" => MsFlags::MS_RDONLY,
                "nosuid" => MsFlags::MS_NOSUID,
                "nodev" => MsFlags::MS_NODEV,
                "noexec" => MsFlags::MS_NOEXEC,
                _ => MsFlags::empty(),
            }
    });
    Some((path.into(), flags))
}

/// Shows a path of the host at the same place: a link as the same link, the rest as a bind.
fn show(path: &Path) -> io::Result<()> {
    let source = on_host(path);
    match fs::symlink_metadata(&source) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(metadata) if metadata.is_symlink() => {
            create_parent(path)?;
            symlink(fs::read_link(&source)?, path)
        }
        Ok(_) => bind(&source, path),
    }
}

fn bind(source: &Path, target: &Path) -> io::Result<()> {
    create_parent(target)?;
    if source.is_dir() {
        fs::create_dir(target)?;
    } else {
        fs::write(target, "")?;
    }
    mount(Some(source), target, NO_OPTIONS, MsFlags::MS_BIND | MsFlags::MS_REC, NO_OPTIONS)
        .map_err(|error| io::Error::other(format!("{}: {error}", target.display())))
}

fn create_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)
}

fn tmpfs(target: &Path, options: &str) -> io::Result<()> {
    Ok(mount(Some("tmpfs"), target, Some("tmpfs"), SAFE, Some(options))?)
}

fn on_host(path: &Path) -> PathBuf {
    Path::new(HOST).join(path.strip_prefix("/").unwrap_or(path))
}

pub fn describe(profile: &Profile) -> String {
    format!("writable: {WORKSPACE}, /tmp and /dev/shm of {} bytes", profile.limits.tmp_bytes)
}
