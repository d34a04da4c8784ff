use std::io;

use caps::CapSet;
use nix::{
    sched::{CloneFlags, unshare},
    sys::prctl,
    unistd::sethostname,
};

use super::{landlock, limits, network, root, seccomp};
use crate::{
    profile::Profile,
    report::{Layer, Report},
};

/// Puts up every layer that can be had, each noted in the report, in an order in which none
/// forbids what a later one needs. Returns the report, and whether there is a private root.
pub fn put_up(profile: &Profile, mut report: Report) -> io::Result<(Report, bool)> {
    report.note(Layer::MountNamespace, namespace(CloneFlags::CLONE_NEWNS));
    report.note(Layer::NetNamespace, network::enter());
    report.note(Layer::IpcNamespace, namespace(CloneFlags::CLONE_NEWIPC));
    report.note(Layer::UtsNamespace, uts_namespace());
    report.note(Layer::CgroupNamespace, namespace(CloneFlags::CLONE_NEWCGROUP));

    let private_root = put_up_root(profile, &mut report)?;

    // The command runs under our uid: it must not be able to look into us.
    prctl::set_dumpable(false)?;
    report.note(Layer::NoNewPrivs, prctl::set_no_new_privs().map(|()| String::new()));
    report.note(Layer::Rlimits, limits::apply(&profile.limits));
    report.note(Layer::Capabilities, drop_capabilities());
    let network = report.has(Layer::NetNamespace);
    report.note(Layer::Landlock, landlock::apply(profile, private_root, network));
    report.note(Layer::Seccomp, seccomp::apply(network));
    Ok((report, private_root))
}

fn put_up_root(profile: &Profile, report: &mut Report) -> io::Result<bool> {
    let pivoted = match report.has(Layer::MountNamespace) {
        true => root::pivot(),
        false => Err(io::Error::other("needs the mount namespace")),
    };
    if let Err(error) = pivoted {
        report.note(Layer::PrivateRoot, Err(error));
        report.note(Layer::Proc, Err("needs the private root"));
        return Ok(false);
    }
    root::fill(profile).map_err(|error| io::Error::other(format!("private root: {error}")))?;
    let proc = match report.has(Layer::PidNamespace) {
        true => root::mount_proc(),
        false => Err(io::Error::other("needs the pid namespace")),
    };
    root::seal(profile).map_err(|error| io::Error::other(format!("private root: {error}")))?;
    report.note(Layer::PrivateRoot, Ok::<_, io::Error>(root::describe(profile)));
    report.note(Layer::Proc, proc);
    Ok(true)
}

fn namespace(flag: CloneFlags) -> nix::Result<String> {
    unshare(flag).map(|()| String::new())
}

fn uts_namespace() -> nix::Result<String> {
    unshare(CloneFlags::CLONE_NEWUTS)?;
    sethostname("sandbox")?;
    Ok(String::new())
}

/// Drops every capability, also those that a program could get back by being executed.
fn drop_capabilities() -> Result<String, caps::errors::CapsError> {
    // Without a user namespace we may lack the right to shrink the bounding set, and
    // no-new-privs already makes it meaningless.
    let bounding = caps::clear(None, CapSet::Bounding);
    for set in [CapSet::Ambient, CapSet::Inheritable, CapSet::Effective, CapSet::Permitted] {
        caps::clear(None, set)?;
    }
    Ok(match bounding {
        Ok(()) => "none, bounding set empty".into(),
        Err(_) => "none, bounding set kept".into(),
    })
}
