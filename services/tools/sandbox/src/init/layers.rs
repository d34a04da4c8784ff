use std::{fmt::Display, io, net::TcpListener};

use caps::CapSet;
use nix::{
    sched::{CloneFlags, unshare},
    sys::prctl,
    unistd::sethostname,
};

use super::{
    landlock, limits, network, root,
    seccomp::{self, Sockets},
    terminal::Terminal,
};
use crate::{
    omitted::{LEFT_OUT, Omitted},
    profile::Profile,
    protocol::Request,
    report::{Layer, Report},
};

/// Puts up what is the same for every command, and so can be before there is one. The mount
/// namespace is not among it: a directory that is handed over can be mounted only in namespaces
/// that are entered from within it.
pub fn prepare(omitted: &Omitted, outside: Report) -> Report {
    let mut wall = Wall { omitted, report: outside };
    wall.add(Layer::NetNamespace, network::enter);
    wall.add(Layer::IpcNamespace, || namespace(CloneFlags::CLONE_NEWIPC));
    wall.add(Layer::UtsNamespace, uts_namespace);
    wall.add(Layer::CgroupNamespace, || namespace(CloneFlags::CLONE_NEWCGROUP));
    wall.report
}

/// Puts up every other layer that can be had, each noted in the report, in an order in which none
/// forbids what a later one needs.
pub fn put_up(request: &Request, prepared: Report) -> io::Result<(Report, Standing)> {
    let profile = &request.profile;
    let size = request.streams.terminal();
    let mut wall = Wall { omitted: &profile.omitted, report: prepared };
    wall.add(Layer::MountNamespace, || namespace(CloneFlags::CLONE_NEWNS));

    let door = profile.proxy && wall.report.has(Layer::NetNamespace);
    let proxy = if door { Some(network::listen()?) } else { None };
    let private_root = put_up_root(&mut wall, profile, size.is_some())?;
    let terminal = size.map(Terminal::open).transpose()?;
    let internet = wall.report.has(Layer::NetNamespace);

    wall.add(Layer::NoNewPrivs, || prctl::set_no_new_privs().map(|()| String::new()));
    wall.add(Layer::Rlimits, || limits::apply(&profile.limits));
    wall.add(Layer::Capabilities, drop_capabilities);
    wall.add(Layer::Landlock, || {
        landlock::apply(profile, terminal.as_ref(), private_root, internet)
    });
    wall.add(Layer::Seccomp, || seccomp::apply(Sockets { internet, unix: private_root }));
    Ok((wall.report, Standing { private_root, terminal, proxy }))
}

/// Puts on what a process can put on by itself, wherever it runs. Not for commands of ours:
/// `make bench` has another sandbox start a program that does this, so that it protects from
/// the same.
pub fn restrict(profile: &Profile) -> Result<(), Box<dyn std::error::Error>> {
    prctl::set_no_new_privs()?;
    limits::apply(&profile.limits)?;
    landlock::apply(profile, None, true, true)?;
    seccomp::apply(Sockets { internet: true, unix: true })?;
    Ok(())
}

/// What the command needs to know of what stands around it.
pub struct Standing {
    pub private_root: bool,
    /// The terminal that was asked for.
    pub terminal: Option<Terminal>,
    /// What is to be handed over before it starts.
    pub proxy: Option<TcpListener>,
}

/// The layers that stand so far.
struct Wall<'a> {
    omitted: &'a Omitted,
    report: Report,
}

impl Wall<'_> {
    fn add<E: Display>(&mut self, layer: Layer, put_up: impl FnOnce() -> Result<String, E>) {
        match self.omitted.contains(layer) {
            true => self.report.note(layer, Err(LEFT_OUT)),
            false => self.report.note(layer, put_up()),
        }
    }
}

fn put_up_root(wall: &mut Wall<'_>, profile: &Profile, terminals: bool) -> io::Result<bool> {
    let broken = |error| io::Error::other(format!("private root: {error}"));
    let mount_namespace = wall.report.has(Layer::MountNamespace);
    wall.add(Layer::PrivateRoot, || match mount_namespace {
        true => root::pivot().map(|()| root::describe(profile)),
        false => Err(io::Error::other("needs the mount namespace")),
    });
    if !wall.report.has(Layer::PrivateRoot) {
        wall.add(Layer::Proc, || Err("needs the private root"));
        return Ok(false);
    }
    root::fill(profile).map_err(broken)?;
    if terminals {
        root::mount_terminals().map_err(broken)?;
    }
    let pid_namespace = wall.report.has(Layer::PidNamespace);
    wall.add(Layer::Proc, || match pid_namespace {
        true => root::mount_proc(),
        false => Err(io::Error::other("needs the pid namespace")),
    });
    root::seal(profile).map_err(broken)?;
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
