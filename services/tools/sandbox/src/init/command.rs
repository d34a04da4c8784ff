use std::{
    env, io,
    process::{Child, Command, Stdio},
    time::Duration,
};

use nix::{
    errno::Errno,
    libc::SIGRTMIN,
    sys::{
        resource::{UsageWho, getrusage},
        signal::kill,
        time::TimeValLike as _,
        wait::{WaitStatus, wait},
    },
    unistd::{Pid, setsid},
};

use super::root::WORKSPACE;
use crate::protocol::{Request, Status};

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Starts the command and waits for it. What it leaves running ends with us.
pub fn run(request: &Request, private_root: bool) -> Status {
    let started = start(request, private_root);
    match started.and_then(reap) {
        Ok(status) => status,
        Err(error) => Status::NotStarted(format!("{}: {error}", request.program.path)),
    }
}

fn start(request: &Request, private_root: bool) -> io::Result<Child> {
    // Away from any terminal, so that nothing can be typed into it.
    setsid()?;
    let home = if private_root { WORKSPACE.into() } else { env::current_dir()? };
    let mut command = Command::new(&request.program.path);
    command
        .args(&request.program.args)
        .current_dir(&home)
        .stdin(Stdio::null())
        .env_clear()
        .env("PATH", PATH)
        .env("HOME", &home)
        .env("LANG", "C.UTF-8")
        .env("TERM", "dumb")
        .envs(&request.profile.env);
    if !private_root {
        command.env("TMPDIR", &home);
    }
    command.spawn()
}

/// Collects every process that ends until the command does: pid 1 inherits all orphans.
fn reap(command: Child) -> io::Result<Status> {
    let command = Pid::from_raw(command.id() as i32);
    loop {
        match wait() {
            Ok(WaitStatus::Exited(pid, code)) if pid == command => return Ok(Status::Exited(code)),
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == command => {
                return signaled(signal as i32);
            }
            // How nix says that the signal was a real-time one, whose number it does not know.
            Err(Errno::EINVAL) if kill(command, None) == Err(Errno::ESRCH) => {
                return signaled(SIGRTMIN());
            }
            Ok(_) | Err(Errno::EINTR | Errno::EINVAL) => (),
            Err(error) => return Err(error.into()),
        }
    }
}

fn signaled(signal: i32) -> io::Result<Status> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let time = usage.user_time() + usage.system_time();
    let cpu = Duration::from_micros(time.num_microseconds().try_into().unwrap_or(0));
    Ok(Status::Signaled { signal, cpu })
}
