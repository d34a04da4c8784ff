use std::{io, net::TcpListener, time::Duration};

use nix::{libc, unistd::Pid};
use tokio::{process, time::timeout};

use crate::{
    cgroup::Cgroup,
    control::Control,
    prepared::PATIENCE,
    profile::Limits,
    protocol::{Order, Status},
    report::{Layer, Report, Violation},
    spawn::Error,
    streams::{Input, Output, Signal, Size, Terminal},
};

/// A command in its sandbox. Dropping it kills everything in there.
#[derive(Debug)]
pub struct Child {
    /// The sandbox that was really applied.
    pub report: Report,

    /// What the command and its descendants write.
    pub output: Output,

    /// What they write to their standard error, where that is a stream of its own.
    pub errors: Option<Output>,

    /// What they read, where there is something.
    pub input: Option<Input>,

    /// The door for a proxy, if [`Profile::proxy`](crate::Profile) asked for one: a socket that
    /// listens inside. Whoever takes it can let the command out.
    pub proxy: Option<TcpListener>,

    /// What layers have stopped, as far as they tell. Complete when the command has ended.
    pub violations: Vec<Violation>,

    terminal: Option<Terminal>,
    /// The supervisor ends the sandbox when this is closed.
    control: Option<Control>,
    /// The last that was heard, kept for a wait that is given up and begun again.
    status: Option<Status>,
    process: process::Child,
    cgroup: Option<Cgroup>,
    cpu_seconds: u64,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    /// A signal inside the sandbox, for example from a limit.
    Signal(i32),
    /// By [`Child::kill`], or because the sandbox was killed from outside.
    Killed,
}

impl Child {
    pub(crate) fn new(
        report: Report,
        connected: Connected,
        control: Control,
        process: process::Child,
        cgroup: Option<Cgroup>,
        limits: &Limits,
    ) -> Child {
        Child {
            report,
            output: connected.output,
            errors: connected.errors,
            input: connected.input,
            proxy: None,
            violations: Vec::new(),
            terminal: connected.terminal,
            control: Some(control),
            status: None,
            process,
            cgroup,
            cpu_seconds: limits.cpu_seconds,
        }
    }

    /// Waits for the command. Whatever it left running has ended, too, when this returns. Can be
    /// given up and begun again.
    pub async fn wait(&mut self) -> Result<Exit, Error> {
        if let (None, Some(control)) = (&self.status, &mut self.control) {
            self.status = control.status().await?;
        }
        self.process.wait().await?;
        self.close_cgroup();
        match self.status.take() {
            Some(Status::Exited(code)) => Ok(Exit::Code(code)),
            Some(Status::Signaled { signal, cpu }) => {
                self.violations.extend(violation(signal, cpu, self.cpu_seconds));
                Ok(Exit::Signal(signal))
            }
            Some(Status::NotStarted(problem)) => Err(Error::NotStarted(problem)),
            Some(status) => Err(Error::Broken(format!("unexpected {status:?}"))),
            None => Ok(Exit::Killed),
        }
    }

    /// Sends a signal to the command and to what it started in its own process group. One that
    /// has ended does not mind.
    pub async fn signal(&mut self, signal: Signal) -> io::Result<()> {
        let Some(control) = &mut self.control else { return Ok(()) };
        match control.send(&Order::Signal(signal)).await {
            Err(error) if is_gone(&error) => Ok(()),
            sent => sent,
        }
    }

    /// Changes the size of the command's terminal. Says whether there is one.
    pub fn resize(&self, size: Size) -> io::Result<bool> {
        match &self.terminal {
            Some(terminal) => terminal.resize(size).map(|()| true),
            None => Ok(false),
        }
    }

    /// The host's pid of the process that everything in the sandbox depends on.
    pub fn supervisor(&self) -> Option<Pid> {
        pid(&self.process)
    }

    /// Kills the command and everything it started, and returns when all of it is gone.
    pub async fn kill(&mut self) -> Result<(), Error> {
        self.control = None;
        match timeout(PATIENCE, self.process.wait()).await {
            Ok(ended) => ended.map(|_| ()),
            Err(_) => self.process.kill().await,
        }?;
        self.close_cgroup();
        Ok(())
    }

    /// Hears from the control group what it has seen, and removes it.
    fn close_cgroup(&mut self) {
        if let Some(cgroup) = self.cgroup.take() {
            self.violations.extend(cgroup.violations());
        }
    }
}

/// The host's number of a process, until it has been waited for.
pub fn pid(process: &process::Child) -> Option<Pid> {
    Some(Pid::from_raw(process.id()?.try_into().ok()?))
}

/// What a deadly signal says about the layer it came from. A command can send the same signals
/// to itself, but processor time cannot be made up.
fn violation(signal: i32, cpu: Duration, limit: u64) -> Option<Violation> {
    // The limit counts in ticks, which on a busy machine run ahead of the sum that we hear of.
    // The signal that says why needs less of a proof than the one that anybody sends.
    let limit_time = Duration::from_secs(limit);
    let reached = match signal {
        libc::SIGXCPU => cpu >= limit_time / 2,
        _ => cpu >= limit_time * 9 / 10,
    };
    let (layer, detail) = match signal {
        libc::SIGSYS => (Layer::Seccomp, "a system call that kills, ended by SIGSYS".into()),
        libc::SIGXCPU | libc::SIGKILL if reached => {
            (Layer::Rlimits, format!("limit of {limit} s of processor time"))
        }
        libc::SIGXFSZ => (Layer::Rlimits, "limit of the size of a file, ended by SIGXFSZ".into()),
        _ => return None,
    };
    Some(Violation { layer, detail })
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

/// The service's ends of a command's standard streams.
pub struct Connected {
    pub output: Output,
    pub errors: Option<Output>,
    pub input: Option<Input>,
    pub terminal: Option<Terminal>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_blamed_on_a_limit_only_when_that_was_reached() {
        let layer = |signal, seconds| {
            violation(signal, Duration::from_secs(seconds), 10).map(|found| found.layer)
        };
        assert_eq!(layer(libc::SIGXCPU, 10), Some(Layer::Rlimits));
        assert_eq!(layer(libc::SIGXCPU, 4), None);
        assert_eq!(layer(libc::SIGKILL, 11), Some(Layer::Rlimits));
        assert_eq!(layer(libc::SIGKILL, 8), None);
        assert_eq!(layer(libc::SIGSYS, 0), Some(Layer::Seccomp));
        assert_eq!(layer(libc::SIGTERM, 100), None);
    }
}
