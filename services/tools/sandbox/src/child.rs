use std::{io, time::Duration};

use nix::{libc, unistd::Pid};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    net::{UnixStream, unix::pipe},
    process,
    time::timeout,
};

use crate::{
    cgroup::Cgroup,
    profile::Limits,
    protocol::Status,
    report::{Layer, Report, Violation},
    spawn::{Error, PATIENCE},
};

/// A command in its sandbox. Dropping it kills everything in there.
#[derive(Debug)]
pub struct Child {
    /// The sandbox that was really applied.
    pub report: Report,

    /// What the command and its descendants write.
    pub output: pipe::Receiver,

    /// What layers have stopped, as far as they tell. Complete when the command has ended.
    pub violations: Vec<Violation>,

    /// The supervisor ends the sandbox when this is closed.
    control: Option<BufReader<UnixStream>>,
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
        output: pipe::Receiver,
        control: BufReader<UnixStream>,
        process: process::Child,
        cgroup: Option<Cgroup>,
        limits: &Limits,
    ) -> Child {
        Child {
            report,
            output,
            violations: Vec::new(),
            control: Some(control),
            process,
            cgroup,
            cpu_seconds: limits.cpu_seconds,
        }
    }

    /// Waits for the command. Whatever it left running has ended, too, when this returns.
    pub async fn wait(&mut self) -> Result<Exit, Error> {
        let status = match &mut self.control {
            Some(control) => read_status(control).await?,
            None => None,
        };
        self.process.wait().await?;
        self.close_cgroup();
        match status {
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

    /// The host's pid of the process that everything in the sandbox depends on.
    pub fn supervisor(&self) -> Option<Pid> {
        Some(Pid::from_raw(self.process.id()?.try_into().ok()?))
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

pub async fn read_status(control: &mut BufReader<UnixStream>) -> io::Result<Option<Status>> {
    let mut line = String::new();
    match control.read_line(&mut line).await {
        Ok(0) => Ok(None),
        Ok(_) => Ok(Some(serde_json::from_str(&line)?)),
        // What is left of a conversation whose other end was killed.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(None),
        Err(error) => Err(error),
    }
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
