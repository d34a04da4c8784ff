use std::{
    fs, io,
    os::{fd::AsFd, unix::process::CommandExt as _},
    process::{Child, Command},
};

use caps::CapSet;
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sched::{CloneFlags, unshare},
    sys::{
        prctl,
        signal::{SigSet, Signal, kill},
        signalfd::SignalFd,
        wait::waitpid,
    },
    unistd::{Pid, close},
};

use super::user;
use crate::{
    omitted::LEFT_OUT,
    protocol::{self, Errand, Inside, Outside, Status},
    report::{Layer, Report},
};

/// Starts the init in namespaces of its own and ends it when the service hangs up.
pub fn supervise(outside: &Outside) -> io::Result<()> {
    let init = match start(outside) {
        Ok(init) => init,
        Err(error) => {
            let broken = Status::Broken(format!("cannot start the init: {error}"));
            return protocol::write(io::stdin(), &broken);
        }
    };
    // The command runs under our uid: it must not be able to look into us.
    prctl::set_dumpable(false)?;
    watch(init)?;
    end_descendants()
}

fn start(outside: &Outside) -> io::Result<Child> {
    close_inherited_files()?;
    // When memory runs out, the kernel is to take the command and not the service. Where it
    // does not listen, it decides as it would have.
    let _ = fs::write("/proc/self/oom_score_adj", "1000");
    prctl::set_child_subreaper(true)?;

    let mut report = Report::default();
    report.note(Layer::Cgroup, join_cgroup(outside));
    if let Some(owner) = outside.owner {
        user::become_owner(owner)?;
    }
    report.note(Layer::UserNamespace, enter_user_namespace(outside));
    report.note(Layer::PidNamespace, enter_pid_namespace(outside));

    // Not by name: the user we are by now may be unable to reach the executable's directory.
    let inside = Inside { report, omitted: outside.omitted.clone() };
    Command::new("/proc/self/exe")
        .arg0("sandbox-init")
        .arg(serde_json::to_string(&Errand::Init(inside))?)
        .env_clear()
        .spawn()
}

/// We join as well as the command, which is counted as one process more.
fn join_cgroup(outside: &Outside) -> Result<String, String> {
    let doors = outside.cgroup.as_ref().map_err(Clone::clone)?;
    for door in doors {
        fs::write(door, "0").map_err(|error| format!("cannot be joined: {error}"))?;
    }
    Ok(match doors.len() {
        1 => "version 2, memory and processes".into(),
        _ => "version 1, memory and processes".into(),
    })
}

fn enter_user_namespace(outside: &Outside) -> io::Result<String> {
    if outside.omitted.contains(Layer::UserNamespace) {
        return Err(io::Error::other(LEFT_OUT));
    }
    let entered = user::enter()?;
    keep_capabilities_across_exec()?;
    Ok(entered)
}

/// Holds for children only, which is why the init is a second process.
fn enter_pid_namespace(outside: &Outside) -> io::Result<String> {
    if outside.omitted.contains(Layer::PidNamespace) {
        return Err(io::Error::other(LEFT_OUT));
    }
    unshare(CloneFlags::CLONE_NEWPID)?;
    Ok(String::new())
}

/// The service opens its files with close-on-exec, but other code in its process may not.
fn close_inherited_files() -> io::Result<()> {
    let open: Vec<i32> = fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    for file in open.into_iter().filter(|file| *file > 2) {
        // The descriptor of the listing itself is in the list and closed by now.
        let _ = close(file);
    }
    Ok(())
}

/// The init needs the capabilities of the user namespace, and a program that is started by a
/// user other than root gets none unless they are ambient.
fn keep_capabilities_across_exec() -> io::Result<()> {
    let own = caps::read(None, CapSet::Permitted).map_err(io::Error::other)?;
    caps::set(None, CapSet::Inheritable, &own).map_err(io::Error::other)?;
    caps::set(None, CapSet::Ambient, &own).map_err(io::Error::other)
}

/// Waits until the init ends, or ends it when nobody is left at the other end of the socket.
///
/// A parent-death signal could not do this: it fires when the *thread* that spawned us ends,
/// and threads of an async runtime come and go.
fn watch(mut init: Child) -> io::Result<()> {
    let mask = SigSet::from(Signal::SIGCHLD);
    mask.thread_block()?;
    let children = SignalFd::new(&mask)?;
    let socket = io::stdin();
    while init.try_wait()?.is_none() {
        let mut files = [
            // No events asked for: hanging up is always reported, and the request is not ours.
            PollFd::new(socket.as_fd(), PollFlags::empty()),
            PollFd::new(children.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut files, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => (),
            Err(error) => return Err(error.into()),
        }
        let [socket, child] = files.map(|file| file.revents().unwrap_or(PollFlags::empty()));
        if !socket.is_empty() {
            init.kill()?;
            init.wait()?;
        } else if !child.is_empty() {
            children.read_signal()?;
        }
    }
    Ok(())
}

/// Ends what the init left behind. With a pid namespace there is nothing: the kernel has
/// done it. Without one, orphans have become our children, because we are their subreaper.
fn end_descendants() -> io::Result<()> {
    let this = Pid::this();
    loop {
        let children = fs::read_to_string(format!("/proc/{this}/task/{this}/children"))?;
        for child in children.split_whitespace().filter_map(|pid| pid.parse().ok()) {
            let _ = kill(Pid::from_raw(child), Signal::SIGKILL);
        }
        if waitpid(None, None) == Err(Errno::ECHILD) {
            return Ok(());
        }
    }
}
