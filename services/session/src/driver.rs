//! Runs one turn: feeds the machine what happens and does what it asks.

mod moves;
mod step;
mod model;
mod calls;
mod people;
mod compact;
mod own;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use chassis::{Caller, telemetry};
use proto::{event::v1::Usage, session::v1::TurnView, tools::v1::Permissions};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, info_span, warn};

use crate::{
    agent::Agent,
    compaction::Method,
    error::{Error, Result},
    flusher::{Signal, Stopped, Writer},
    host::Host,
    ids::WorkspaceId,
    memory,
    message::{Message, MessageStatus, Role},
    store::{
        self,
        messages::Whose,
        turns::{Claim, Context, Interrupt, Trace},
    },
    surroundings::Surroundings,
    turn::{Input, Purpose, Step, Stop, Turn},
};

/// How many claims a turn survives that ended with its worker.
const MAX_ATTEMPTS: i32 = 3;

/// How long to wait before loading is tried again.
const AGAIN: Duration = Duration::from_millis(500);

/// How a turn comes to be driven.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Start {
    /// It was claimed and is run to its end.
    Claimed,
    /// Its owner died: it is brought to its end where it stands. What was said and done stays.
    Orphaned,
}

/// Drives a turn until it has ended or the session is lost. `cut` ends it early.
pub async fn run(
    host: Arc<Host>,
    claim: Claim,
    context: Context,
    start: Start,
    cut: CancellationToken,
) {
    let id = claim.session_id;
    let _driving = host.driven.begin(&claim);
    let span = info_span!(
        "turn",
        session.id = %id,
        turn.id = %claim.turn_id,
        tenant.id = %claim.tenant,
        otel.kind = "internal",
    );
    if let Some(parent) = &context.trace_parent {
        telemetry::set_parent(&span, parent);
    }
    let drive = async {
        // A session we own and do not drive would be busy for ever, so only the end of the
        // process ends these tries; others take over then.
        let driver = loop {
            match Driver::load(&host, &claim, &context).await {
                Ok(driver) => break driver,
                Err(Error::Database(error)) => {
                    warn!(%error, "cannot load session {id}, trying again")
                }
                Err(error) => return moves::refuse(&host, &claim, context.view, &error).await,
            }
            if cut.run_until_cancelled(sleep(AGAIN)).await.is_none() {
                return Ok(());
            }
        };
        driver.drive(start, context, cut).await
    };
    if let Err(stopped) = drive.instrument(span).await {
        warn!(%stopped, session.id = %id, "a turn of session {id} ended early");
    }
}

struct Driver {
    host: Arc<Host>,
    claim: Claim,
    caller: Caller,
    writer: Writer,
    agent: Arc<Agent>,
    /// What the agent may do, and what people allowed it beyond that.
    permissions: Permissions,
    workspace_id: WorkspaceId,
    model: String,
    headless: bool,
    surroundings: Arc<Surroundings>,
    memories: Vec<memory::Line>,
    /// The day the turn was submitted on.
    day: String,
    /// How far the summary of the history has come, over all tries.
    ladder: Arc<Mutex<Ladder>>,
    history: Vec<Message>,
    turn: Turn,
    view: TurnView,
    tasks: JoinSet<()>,
    /// How much the last part has grown since it was stored.
    unfolded: usize,
    trace: Trace,
}

/// The summary of a history under way: what is done is not done again after a failure.
#[derive(Debug, Default)]
struct Ladder {
    /// Whether it is on record that it began.
    begun: bool,
    method: Method,
    /// The summaries of the pieces so far.
    done: Vec<String>,
    usage: Usage,
    cost_micros: i64,
    model: String,
}

impl Driver {
    async fn load(host: &Arc<Host>, claim: &Claim, context: &Context) -> Result<Driver> {
        let caller = Caller::service(claim.tenant.clone(), context.subject.clone());
        let stored = async {
            let mut connection = host.db.acquire().await?;
            let whose = Whose {
                tenant: &claim.tenant,
                subject: &context.subject,
                project: &context.workspace_id.to_string(),
            };
            store::messages::visible(&mut connection, claim.session_id, claim.turn_id, whose).await
        };
        let surroundings = host.surroundings(&caller, context.workspace_id);
        let (stored, surroundings) = tokio::join!(stored, surroundings);
        let (stored, memories) = stored?;
        let submitted = stored.iter().find(|message| message.turn_id == claim.turn_id);
        let day = submitted.map(|message| message.created_at.to_jiff()).unwrap_or_default();
        let day = day.strftime("%Y-%m-%d").to_string();

        let (mut history, mut steps) = (Vec::new(), Vec::new());
        for message in stored {
            let streaming = message.status == "streaming";
            let message = message.into_message()?;
            if message.role == Role::Assistant && message.turn_id == claim.turn_id {
                let status = match streaming {
                    true => MessageStatus::Streaming,
                    false => MessageStatus::Completed,
                };
                let Message { id: message_id, metadata, parts, .. } = message;
                steps.push(Step { message_id, status, metadata, parts });
            } else {
                history.push(message);
            }
        }
        // An override holds from its message on, until another message overrides it.
        // Answers say which agent gave them, so that this holds however little is loaded.
        let agent = history.iter().rev().find_map(|message| message.metadata.agent.as_ref());
        let agent = host.agent(&claim.tenant, agent.unwrap_or(&context.agent)).await?;
        let mut asked = history.iter().rev().filter(|message| message.role == Role::User);
        let metadata = asked.find(|message| message.turn_id == claim.turn_id);
        let metadata = metadata.map(|message| message.metadata.clone()).unwrap_or_default();
        let purpose = match metadata.compact {
            true => Purpose::Compact,
            false => Purpose::Answer,
        };
        let turn = match steps.is_empty() {
            true => Turn::new(agent.limits(), purpose),
            false => Turn::restore(agent.limits(), purpose, steps),
        };
        Ok(Driver {
            writer: host.flusher.writer(claim),
            host: host.clone(),
            claim: claim.clone(),
            caller,
            model: metadata.model.unwrap_or_else(|| agent.manifest.model.clone()),
            headless: metadata.headless,
            workspace_id: context.workspace_id,
            permissions: people::permissions(&agent, &context.rules),
            surroundings,
            memories,
            day,
            ladder: Arc::default(),
            agent,
            history,
            turn,
            view: context.view.clone(),
            tasks: JoinSet::new(),
            unfolded: 0,
            trace: Trace::current(),
        })
    }

    async fn drive(
        mut self,
        start: Start,
        context: Context,
        cut: CancellationToken,
    ) -> Result<(), Stopped> {
        let (inputs, mut arriving) = mpsc::channel(256);
        let mut signals = self.writer.signals();
        let seconds = self.agent.turn_seconds();
        let deadline = Instant::now() + Duration::from_secs(seconds);

        let first = match start {
            Start::Orphaned => Input::Orphaned,
            Start::Claimed if context.interrupt.is_some() => stop(context.interrupt),
            Start::Claimed if context.resumes => Input::Resumed(people::decided(context.actions)),
            Start::Claimed if self.claim.attempts > MAX_ATTEMPTS => {
                Input::Stopped(Stop::Internal {
                    message: format!(
                        "the turn ended its worker {MAX_ATTEMPTS} times and is given up"
                    ),
                })
            }
            Start::Claimed => Input::Began {
                agent: self.agent.id.clone(),
                agent_version: self.agent.version,
                attempt: self.claim.attempts,
            },
        };
        self.take(first, &inputs).await?;
        while !self.turn.rests() {
            let input = tokio::select! {
                Some(input) = arriving.recv() => input,
                Ok(()) = signals.changed() => {
                    let signal = signals.borrow_and_update().clone();
                    match signal {
                        Signal::GoOn => continue,
                        Signal::Interrupt(interrupt) if interrupt.turn_id != self.claim.turn_id => {
                            continue;
                        }
                        Signal::Interrupt(interrupt) => stop(Some(interrupt)),
                        Signal::Stopped => return self.stopped().await,
                    }
                }
                () = sleep_until(deadline) => Input::Stopped(Stop::Timeout { seconds }),
                () = cut.cancelled() => Input::Stopped(Stop::HostRestart),
            };
            // People must not be left with a question that nobody waits for any more.
            if matches!(input, Input::Stopped(_)) && self.turn.asks() {
                people::withdraw(&self.host, &self.claim).await;
            }
            self.take(input, &inputs).await?;
        }
        Ok(())
    }
}

fn stop(interrupt: Option<Interrupt>) -> Input {
    let (subject, reason) = match interrupt {
        Some(interrupt) => (interrupt.subject, interrupt.reason),
        None => Default::default(),
    };
    Input::Stopped(Stop::Interrupted { subject, reason })
}
