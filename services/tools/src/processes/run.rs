//! One process, from its start to its end.

use std::{future::pending, io, pin::Pin, sync::Arc, time::Duration};

use chassis::Tenant;
use jiff_sqlx::ToSqlx as _;
use proto::event::v1::{Payload, SandboxViolation};
use sandbox::{Child, Exit, Output, Profile, Program, Streams};
use tokio::{
    io::AsyncReadExt as _,
    sync::{mpsc, oneshot},
    time::{Instant, Interval, MissedTickBehavior, interval, sleep, timeout},
};
use tracing::{error, warn};

use super::{
    Journal, Order, Processes, Wanted,
    journal::Writer,
    talk::{Printing, Talk},
    told,
};
use crate::{
    bash::explain,
    error::{Error, Result},
    execute::shut,
    facts,
    files::Used,
    outputs::Kept,
    store::{
        outputs::{Owner, Printer},
        processes::{self, End, Key, Row, Stream},
    },
    workspaces::Entered,
};

/// How often there may be news, and how often its row is told how much it printed.
const PERIOD: Duration = Duration::from_millis(100);
const COUNTED: Duration = Duration::from_secs(1);

/// How much may wait for a process that does not read.
const MOST_INPUT: usize = 1024 * 1024;

/// Processes are there to stay, unlike calls.
const CPU_SECONDS: u64 = 86_400;

/// How long the rest of the output of one that was ended is read.
const REST: Duration = Duration::from_secs(5);

/// How long to wait before saying again how a process ended.
const AGAIN: Duration = Duration::from_secs(1);

const BUFFER: usize = 64 * 1024;

pub struct Process {
    processes: Processes,
    key: Key,
    row: Row,
    wanted: Wanted,
    journal: Arc<Journal>,
}

/// What else may happen while a process runs.
enum Next {
    Wrote(io::Result<usize>),
    Order(Option<Order>),
    Tick,
    Over(Ending),
}

/// How it came to an end.
enum Ending {
    Itself(Exit),
    Terminated(String),
    /// There is no room for it any more.
    Crowded(Error),
    Broken(String),
}

/// The workspace that it runs in, and how full that was before.
struct Room {
    entered: Arc<Entered>,
    before: Used,
}

impl Room {
    /// Returns when a process has to go: it filled its workspace, or that was deleted, or it
    /// was there for as long as `life`.
    async fn left(&self, life: Duration) -> Ending {
        tokio::select! {
            () = sleep(life) => Ending::Terminated("it ran for as long as a process may".into()),
            error = self.entered.overflow(self.before) => match error {
                Error::WorkspaceNotFound(_) => {
                    Ending::Terminated("its workspace was deleted".into())
                }
                error => Ending::Crowded(error),
            },
        }
    }
}

impl Process {
    pub fn new(
        processes: Processes,
        key: Key,
        row: Row,
        wanted: Wanted,
        journal: Arc<Journal>,
    ) -> Process {
        Process { processes, key, row, wanted, journal }
    }

    pub async fn run(
        self,
        orders: mpsc::Receiver<Order>,
        started: oneshot::Sender<Result<(Tenant, Row)>>,
    ) {
        let most = self.processes.0.executor.outputs.most();
        let mut talk = Talk {
            writer: Writer::new(self.journal.clone(), most),
            preview: told::Preview::default(),
            told: Vec::new(),
            counted: Instant::now(),
            waiting: Vec::new(),
            closing: false,
            input: None,
        };
        let tenant = self.key.tenant.clone();
        match self.spawn(&mut talk).await {
            Ok((mut child, room)) => {
                let _ = started.send(Ok((tenant, self.row.clone())));
                let ending = self.attend(&mut child, &room, &mut talk, orders).await;
                let violations = child.violations.iter().map(facts::sandbox_violation);
                let violations = violations.map(Payload::SandboxViolation);
                talk.told.extend(violations.map(|fact| told::about(&self.key, fact)));
                if let Ending::Crowded(error) = &ending {
                    let (layer, detail) = (facts::WORKSPACE.into(), error.to_string());
                    let full = Payload::SandboxViolation(SandboxViolation { layer, detail });
                    talk.told.push(told::about(&self.key, full));
                }
                room.entered.forget_used();
                drop(room);
                self.finish(talk, ending).await;
            }
            Err(problem) => {
                let row = self.finish(talk, Ending::Broken(problem)).await;
                let _ = started.send(Ok((tenant, row)));
            }
        }
    }

    /// Starts it and puts on record what it runs in.
    async fn spawn(&self, talk: &mut Talk) -> Result<(Child, Room), String> {
        let executor = &self.processes.0.executor;
        let (key, wanted) = (&self.key, &self.wanted);
        let room = self.enter().await.map_err(|error| shut(wanted.workspace_id, &error))?;
        let mut profile = Profile::at_least(executor.minimum_tier);
        profile.read_only = executor.read_only.clone();
        profile.limits.cpu_seconds = CPU_SECONDS;
        let program = Program::bash(&wanted.command);
        let workspace = &room.entered.path;
        let spawned =
            executor.sandbox.spawn_with(&profile, workspace, &program, wanted.streams).await;
        let mut child = spawned.map_err(|error| explain(&error))?;
        talk.input = child.input.take();
        let life = self.processes.0.limits.life;
        let most = usize::try_from(executor.outputs.most()).unwrap_or(usize::MAX);
        let applied = facts::sandbox_applied(&child.report, &profile, &[], life, most);
        let pty = wanted.streams.terminal().is_some();
        let started = told::started(&wanted.command, pty, wanted.workspace_id.to_string());
        talk.told.push(told::about(key, Payload::SandboxApplied(applied)));
        talk.told.push(told::about(key, started));
        Ok((child, room))
    }

    async fn enter(&self) -> Result<Room> {
        let workspaces = &self.processes.0.executor.workspaces;
        let entered = workspaces.enter(&self.key.tenant, self.wanted.workspace_id).await?;
        let before = entered.admit().await?;
        Ok(Room { entered, before })
    }

    /// Serves it until it ends, and everything that it started with it.
    async fn attend(
        &self,
        child: &mut Child,
        room: &Room,
        talk: &mut Talk,
        mut orders: mpsc::Receiver<Order>,
    ) -> Ending {
        let redactor = &self.processes.0.executor.redactor;
        let first = match self.wanted.streams {
            Streams::Terminal(_) => Stream::Pty,
            Streams::Piped | Streams::Merged => Stream::Stdout,
        };
        let mut printing = Printing { stream: first, redacted: redactor.stream() };
        let mut failing = Printing { stream: Stream::Stderr, redacted: redactor.stream() };
        let (mut output, mut errors) = (vec![0; BUFFER], vec![0; BUFFER]);
        let mut error_stream = child.errors.take();
        let mut printed_all = false;
        let mut ticks = interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut over = std::pin::pin!(room.left(self.processes.0.limits.life));
        let ending = loop {
            let next = next(talk, &mut orders, &mut ticks, over.as_mut());
            // It may be silent and still run, and only when it is silent is nothing lost by
            // waiting for its end.
            let next = if printed_all && error_stream.is_none() {
                tokio::select! {
                    exit = child.wait() => break exit.into(),
                    next = next => next,
                }
            } else {
                tokio::select! {
                    read = child.output.read(&mut output), if !printed_all => {
                        match read {
                            Ok(0) | Err(_) => printed_all = true,
                            Ok(read) => printing.push(talk, &output[..read]).await,
                        }
                        continue;
                    }
                    read = read(&mut error_stream, &mut errors) => {
                        match read {
                            Ok(0) | Err(_) => error_stream = None,
                            Ok(read) => failing.push(talk, &errors[..read]).await,
                        }
                        continue;
                    }
                    next = next => next,
                }
            };
            if let Some(ending) = self.handle(child, talk, next).await {
                break ending;
            }
        };
        let _ = child.kill().await;
        // What one that was ended had printed is still in the pipes.
        let rest = async {
            while !printed_all && let Ok(read @ 1..) = child.output.read(&mut output).await {
                printing.push(talk, &output[..read]).await;
            }
            while error_stream.is_some()
                && let Ok(read @ 1..) = read(&mut error_stream, &mut errors).await
            {
                failing.push(talk, &errors[..read]).await;
            }
        };
        let _ = timeout(REST, rest).await;
        printing.finish(talk).await;
        failing.finish(talk).await;
        ending
    }

    /// Does what comes from elsewhere than the process. Returns how it ends, if that ends it.
    async fn handle(&self, child: &mut Child, talk: &mut Talk, next: Next) -> Option<Ending> {
        match next {
            Next::Wrote(written) => talk.wrote(written),
            Next::Order(Some(Order::Terminate { reason })) => {
                return Some(Ending::Terminated(reason));
            }
            Next::Order(Some(order)) => self.obey(child, talk, order).await,
            Next::Order(None) => {
                return Some(Ending::Terminated("nobody can reach it any more".into()));
            }
            Next::Tick => {
                if !self.tell(talk).await {
                    return Some(Ending::Terminated("it was taken for lost".into()));
                }
            }
            Next::Over(ending) => return Some(ending),
        }
        None
    }

    async fn obey(&self, child: &mut Child, talk: &mut Talk, order: Order) {
        match order {
            Order::Write { data, close, subject, answer } => {
                let _ = answer.send(self.write(talk, data, close, &subject).await);
            }
            Order::Resize { size, subject, answer } => {
                let resized = self.resize(child, talk, size, &subject).await;
                let _ = answer.send(resized);
            }
            Order::Signal { signal, name, subject, answer } => {
                let fact = told::input("signal", 0, name, &subject);
                let signalled = match self.record(talk, fact).await {
                    Ok(()) => child.signal(signal).await.map_err(Error::from),
                    Err(error) => Err(error),
                };
                let _ = answer.send(signalled);
            }
            // Whoever calls looks for it first.
            Order::Terminate { .. } => {}
        }
    }

    async fn write(
        &self,
        talk: &mut Talk,
        data: Vec<u8>,
        close: bool,
        subject: &str,
    ) -> Result<()> {
        if talk.input.is_none() || talk.closing {
            return Err(Error::ProcessInputClosed(self.key.process_id));
        }
        if talk.waiting.len() + data.len() > MOST_INPUT {
            return Err(Error::Overloaded);
        }
        let detail = if close { "closed" } else { "" };
        self.record(talk, told::input("stdin", data.len(), detail, subject)).await?;
        talk.waiting.extend(data);
        if close {
            talk.close();
        }
        Ok(())
    }

    async fn resize(
        &self,
        child: &Child,
        talk: &mut Talk,
        size: sandbox::Size,
        subject: &str,
    ) -> Result<()> {
        if self.wanted.streams.terminal().is_none() {
            let problem = "is of a process that has no terminal".into();
            return Err(Error::Invalid { field: "process_id", problem });
        }
        let detail = format!("{} x {}", size.rows, size.columns);
        self.record(talk, told::input("resize", 0, &detail, subject)).await?;
        child.resize(size)?;
        Ok(())
    }

    /// Puts on record what somebody is about to do, or does not let them.
    async fn record(&self, talk: &mut Talk, payload: Payload) -> Result<()> {
        let mut events = talk.news(&self.key);
        events.push(told::about(&self.key, payload));
        let total = facts::int64(self.journal.state().total);
        match processes::note(&self.processes.0.db, &self.key, total, &events).await {
            Ok(true) => {
                self.processes.news().notify_waiters();
                Ok(())
            }
            Ok(false) => Err(Error::ProcessOver { id: self.key.process_id, status: "lost".into() }),
            Err(error) => {
                // What was done before is still to be told; this was not done.
                events.pop();
                talk.told = events;
                Err(error)
            }
        }
    }

    /// Puts on record what is new. Whether it is still ours to speak for.
    async fn tell(&self, talk: &mut Talk) -> bool {
        let state = self.journal.state();
        let events = talk.news(&self.key);
        let total = facts::int64(state.total);
        if events.is_empty() && (total == 0 || talk.counted.elapsed() < COUNTED) {
            return true;
        }
        talk.counted = Instant::now();
        match processes::note(&self.processes.0.db, &self.key, total, &events).await {
            Ok(ours) => {
                self.processes.news().notify_waiters();
                ours
            }
            Err(error) => {
                let id = self.key.process_id;
                warn!(%error, process.id = %id, "cannot record what process {id} does, trying again");
                talk.told = events;
                true
            }
        }
    }

    /// Keeps its output and says how it ended, however long that takes.
    async fn finish(&self, mut talk: Talk, ending: Ending) -> Row {
        let state = self.journal.state();
        let mut events = talk.news(&self.key);
        let kept = self.keep(talk.writer).await;
        events.extend(told::stored(&self.key, state.total, kept.as_ref()));
        let end = End {
            output_bytes: facts::int64(state.total),
            kept_bytes: kept.as_ref().map_or(0, |kept| facts::int64(kept.bytes)),
            output_ref: kept.map(|kept| kept.output_ref.to_string()).unwrap_or_default(),
            streams: self.journal.stretches(),
            ..ending.into()
        };
        events.push(told::about(&self.key, told::ended(&end)));
        let id = self.key.process_id;
        loop {
            match processes::end(&self.processes.0.db, &self.key, &end, &events).await {
                Ok(true) => break,
                Ok(false) => {
                    warn!(process.id = %id, "process {id} ended after it was taken for lost");
                    break;
                }
                Err(error) => {
                    warn!(%error, process.id = %id, "cannot say how process {id} ended, trying again");
                    sleep(AGAIN).await;
                }
            }
        }
        self.processes.news().notify_waiters();
        let row = Row {
            status: end.status.into(),
            exit_code: end.exit_code,
            signal: end.signal,
            reason: end.reason,
            output_bytes: end.output_bytes,
            kept_bytes: end.kept_bytes,
            output_ref: end.output_ref,
            end_time: Some(jiff::Timestamp::now().to_sqlx()),
            ..self.row.clone()
        };
        self.journal.close(row.clone().into());
        row
    }

    async fn keep(&self, writer: Writer) -> Option<Kept> {
        let id = self.key.process_id;
        let owner = Owner {
            tenant: &self.key.tenant,
            session_id: self.key.session_id,
            printer: Printer::Process(id),
        };
        let whole = writer.finish().await;
        let whole = whole.inspect_err(|error| error!(%error, "an output cannot be kept")).ok()?;
        if whole.bytes == 0 {
            return None;
        }
        let kept = self.processes.0.executor.outputs.keep(owner, whole).await;
        kept.inspect_err(|error| {
            error!(%error, process.id = %id, "the output of process {id} cannot be kept");
        })
        .ok()
    }
}

/// Waits for what comes from elsewhere than the process.
async fn next(
    talk: &mut Talk,
    orders: &mut mpsc::Receiver<Order>,
    ticks: &mut Interval,
    over: Pin<&mut impl Future<Output = Ending>>,
) -> Next {
    tokio::select! {
        written = talk.write() => Next::Wrote(written),
        order = orders.recv() => Next::Order(order),
        _ = ticks.tick() => Next::Tick,
        ending = over => Next::Over(ending),
    }
}

/// Reads from a stream that may not be there, which is silent for ever.
async fn read(stream: &mut Option<Output>, buffer: &mut [u8]) -> io::Result<usize> {
    match stream {
        Some(stream) => stream.read(buffer).await,
        None => pending().await,
    }
}

impl From<Result<Exit, sandbox::Error>> for Ending {
    fn from(exit: Result<Exit, sandbox::Error>) -> Ending {
        match exit {
            Ok(exit) => Ending::Itself(exit),
            Err(error) => Ending::Broken(explain(&error)),
        }
    }
}

impl From<Ending> for End {
    fn from(ending: Ending) -> End {
        let failed = |reason| End { status: "failed", reason, ..End::default() };
        match ending {
            Ending::Itself(Exit::Code(0)) => End { status: "completed", ..End::default() },
            Ending::Itself(Exit::Code(exit_code)) => End { exit_code, ..failed(String::new()) },
            Ending::Itself(Exit::Signal(number)) => {
                End { signal: signal_name(number), ..failed(String::new()) }
            }
            Ending::Itself(Exit::Killed) => failed("its sandbox was killed from outside".into()),
            Ending::Terminated(reason) => End { status: "terminated", reason, ..End::default() },
            Ending::Crowded(error) => {
                End { status: "terminated", reason: error.to_string(), ..End::default() }
            }
            Ending::Broken(problem) => failed(problem),
        }
    }
}

/// `KILL` for 9; the number for those that have no name.
fn signal_name(number: i32) -> String {
    match nix::sys::signal::Signal::try_from(number) {
        Ok(signal) => signal.as_str().trim_start_matches("SIG").to_owned(),
        Err(_) => number.to_string(),
    }
}
