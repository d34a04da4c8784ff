//! A child process that never outlives us, whatever happens to us.

use std::{
    fs::{self, File},
    io,
    os::unix::{fs::OpenOptionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Mutex, OnceLock, mpsc},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use nix::{
    sys::signal::{Signal, kill, killpg},
    unistd::{Pid, User},
};
use tokio::time::sleep;

const POLL: Duration = Duration::from_millis(10);
/// How long a drop may hold up its thread.
const FAREWELL: Duration = Duration::from_secs(5);
/// How much of a log is worth showing to somebody whose process failed.
const TAIL_LINES: usize = 30;

/// A program that can be started again and again with the same arguments, the
/// same port and the same log. Dropping it kills what runs.
#[derive(Debug)]
pub struct Process {
    name: String,
    log: PathBuf,
    /// What it gets when it is dropped, or when we die.
    farewell: Signal,
    command: Option<Command>,
    child: Option<Child>,
    /// How it ended, until somebody asks.
    ended: Option<ExitStatus>,
}

/// A command for `program` that gets `farewell` when this process dies, even by
/// `kill -9`, and that runs as `user` if there is one.
pub fn command(program: impl AsRef<Path>, farewell: Signal, user: Option<&User>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", farewell.as_str().trim_start_matches("SIG")]);
    if let Some(user) = user {
        command.arg(format!("--reuid={}", user.uid)).arg(format!("--regid={}", user.gid));
        command.arg("--clear-groups");
    }
    command.arg("--").arg(program.as_ref());
    // The end of a log is shown to people: what went wrong, not where in the program.
    command.env("RUST_LIB_BACKTRACE", "0");
    command
}

impl Process {
    /// Describes a process; [`Process::start`] starts it. The command is one of
    /// [`command`]'s, with the same farewell.
    pub fn new(
        name: impl Into<String>,
        log: &Path,
        farewell: Signal,
        mut command: Command,
    ) -> Result<Process> {
        // A log is about one run, and survives restarts within it.
        fs::remove_file(log).ok();
        let file = File::options()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(log)
            .with_context(|| format!("cannot write {}", log.display()))?;
        // A group of its own keeps the terminal's Ctrl-C away: who stops what, and
        // in which order, is for us to say.
        command.process_group(0).stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let (name, log) = (name.into(), log.to_owned());
        Ok(Process { name, log, farewell, command: Some(command), child: None, ended: None })
    }

    /// Starts the process. It must not be running.
    pub fn start(&mut self) -> Result<()> {
        if self.pid().is_some() {
            bail!("{} is already running", self.name);
        }
        let command = self.command.take().context("an earlier start panicked")?;
        let (command, child) = spawn(command);
        self.command = Some(command);
        self.ended = None;
        self.child = Some(child.with_context(|| format!("cannot start {}", self.name))?);
        Ok(())
    }

    /// Waits until `probe` succeeds. Ends early, with the log, if the process does.
    pub async fn ready(
        &mut self,
        within: Duration,
        probe: impl AsyncFn() -> Result<()>,
    ) -> Result<()> {
        let deadline = Instant::now() + within;
        loop {
            if let Some(status) = self.exited() {
                bail!("{} ended at once ({status})\n{}", self.name, self.tail());
            }
            let Err(error) = probe().await else { return Ok(()) };
            if Instant::now() > deadline {
                bail!("{} is not ready after {within:?}: {error:#}\n{}", self.name, self.tail());
            }
            sleep(POLL).await;
        }
    }

    /// The id of the running process.
    pub fn pid(&mut self) -> Option<u32> {
        self.reap();
        self.child.as_ref().map(Child::id)
    }

    /// How the process ended, if it was running when last asked and no longer is.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        self.reap();
        self.ended.take()
    }

    /// Whoever only asks for the id must not be the one who is told of the end.
    fn reap(&mut self) {
        if let Some(Ok(Some(status))) = self.child.as_mut().map(Child::try_wait) {
            self.child = None;
            self.ended = Some(status);
        }
    }

    /// The name and the id of the running process.
    pub fn identity(&mut self) -> Option<(String, u32)> {
        Some((self.name.clone(), self.pid()?))
    }

    /// A few words, with the log, if the process ended since it was last asked for.
    pub fn obituary(&mut self) -> Option<String> {
        let status = self.exited()?;
        Some(format!("{} has ended ({status})\n{}", self.name, self.tail()))
    }

    /// Sends a signal, which is an error if there is no process to receive it.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        let Some(pid) = self.pid() else { bail!("{} is not running", self.name) };
        kill(Pid::from_raw(pid.cast_signed()), signal)
            .with_context(|| format!("cannot send {signal} to {}", self.name))
    }

    /// Stops the clock for it and for the processes that it has started: they keep what they have
    /// and do nothing.
    pub fn pause(&mut self) -> Result<()> {
        // Itself first, so that it starts nobody meanwhile.
        self.signal(Signal::SIGSTOP)?;
        self.signal_children(Signal::SIGSTOP);
        Ok(())
    }

    pub fn resume(&mut self) -> Result<()> {
        self.signal_children(Signal::SIGCONT);
        self.signal(Signal::SIGCONT)
    }

    /// One that has ended meanwhile needs no signal; its id is nobody's before its parent has heard.
    fn signal_children(&mut self, signal: Signal) {
        let Some(pid) = self.pid() else { return };
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let children = children.unwrap_or_default();
        for child in children.split_whitespace().filter_map(|child| child.parse().ok()) {
            kill(Pid::from_raw(child), signal).ok();
        }
    }

    /// Kills the process as a crash would: it gets no chance to say goodbye.
    pub async fn kill(&mut self) -> Result<()> {
        self.end(Signal::SIGKILL, Duration::from_secs(10)).await.map(|_| ())
    }

    /// Asks the process to end with `signal` and gives it `grace`, then kills it.
    /// Says how it ended.
    pub async fn end(&mut self, signal: Signal, grace: Duration) -> Result<ExitStatus> {
        // A paused process would notice nothing but SIGKILL.
        self.signal(Signal::SIGCONT)?;
        self.signal(signal)?;
        let deadline = Instant::now() + grace;
        loop {
            if let Some(status) = self.exited() {
                return Ok(status);
            }
            if Instant::now() > deadline {
                self.destroy();
                bail!(
                    "{} ignored {signal} for {grace:?} and was killed\n{}",
                    self.name,
                    self.tail()
                );
            }
            sleep(POLL).await;
        }
    }

    /// The end of the log, with a heading that says where the rest is.
    pub fn tail(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        let tail = lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n");
        format!("--- the end of {} ---\n{tail}\n---", self.log.display())
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Kills the process and what it left in its group. The child is not yet
    /// reaped when the signal goes out, so its id cannot be somebody else's.
    fn destroy(&mut self) {
        if let Some(mut child) = self.child.take() {
            killpg(Pid::from_raw(child.id().cast_signed()), Signal::SIGKILL).ok();
            child.wait().ok();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.farewell != Signal::SIGKILL && self.signal(self.farewell).is_ok() {
            let deadline = Instant::now() + FAREWELL;
            while self.exited().is_none() && Instant::now() < deadline {
                thread::sleep(POLL);
            }
        }
        self.destroy();
    }
}

type Order = (Command, mpsc::SyncSender<(Command, io::Result<Child>)>);

/// Spawns on one thread that lives as long as we do: the kernel takes the end of
/// the *thread* that spawned a child for the death of its parent, and the threads
/// of tests and runtimes come and go.
fn spawn(command: Command) -> (Command, io::Result<Child>) {
    static SPAWNER: OnceLock<Mutex<mpsc::Sender<Order>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (orders, inbox) = mpsc::channel::<Order>();
        thread::spawn(move || {
            for (mut command, reply) in inbox {
                let child = command.spawn();
                reply.send((command, child)).ok();
            }
        });
        Mutex::new(orders)
    });
    let (reply, answer) = mpsc::sync_channel(1);
    let orders = spawner.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    orders.send((command, reply)).expect("the spawner never ends");
    answer.recv().expect("the spawner answers every order")
}
