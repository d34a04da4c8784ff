//! Runs one turn: feeds the machine what happens and does what it asks.

mod moves;
mod step;
mod model;
mod calls;

use std::{sync::Arc, time::Duration};

use chassis::{Caller, telemetry};
use proto::session::v1::TurnView;
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, info_span, warn};

use crate::{
    agent::Agent,
    error::{Error, Result},
    flusher::{Signal, Stopped, Writer},
    host::Host,
    ids::WorkspaceId,
    message::{Message, MessageStatus, Role},
    store::{
        self,
        messages::Window,
        turns::{Claim, Context, Trace},
    },
    turn::{Input, Step, Stop, Turn},
};

/// How many claims a turn survives that ended with its worker.
const MAX_ATTEMPTS: i32 = 3;

/// How much of the conversation is looked at.
const HISTORY: i64 = 10_000;

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
pub async fn run(host: Arc<Host>, claim: Claim, start: Start, cut: CancellationToken) {
    let id = claim.session_id;
    let _driving = host.driven.begin(&claim);
    let span = info_span!(
        "turn",
        session.id = %id,
        turn.id = %claim.turn_id,
        tenant.id = %claim.tenant,
        otel.kind = "internal",
    );
    // A session we own and do not drive would be busy for ever, so only the end of the
    // process ends these tries; others take over then.
    let context = loop {
        match store::turns::context(&host.db, id, claim.turn_id).await {
            Ok(context) => break context,
            Err(error) => warn!(%error, session.id = %id, "cannot load a turn, trying again"),
        }
        if cut.run_until_cancelled(sleep(AGAIN)).await.is_none() {
            return;
        }
    };
    if let Some(parent) = &context.trace_parent {
        telemetry::set_parent(&span, parent);
    }
    let drive = async {
        let driver = loop {
            match Driver::load(&host, &claim, &context).await {
                Ok(driver) => break driver,
                Err(Error::Database(error)) => {
                    warn!(%error, "cannot load session {id}, trying again")
                }
                Err(error) => return moves::refuse(&host, &claim, context.view.0, &error).await,
            }
            if cut.run_until_cancelled(sleep(AGAIN)).await.is_none() {
                return Ok(());
            }
        };
        driver.drive(start, cut).await
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
    workspace_id: WorkspaceId,
    model: String,
    headless: bool,
    history: Vec<Message>,
    turn: Turn,
    view: TurnView,
    tasks: JoinSet<()>,
    /// How much the last part has grown since it was stored.
    unfolded: usize,
    trace: Trace,
}

impl Driver {
    async fn load(host: &Arc<Host>, claim: &Claim, context: &Context) -> Result<Driver> {
        let mut connection = host.db.acquire().await?;
        let window = Window::Before(i64::MAX, HISTORY);
        let stored =
            store::messages::load(&mut connection, claim.session_id, window, false).await?;
        drop(connection);

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
        let asked = history.iter().rev().filter(|message| message.role == Role::User);
        let agent = asked.clone().find_map(|message| message.metadata.agent.as_ref());
        let agent = host.agent(&claim.tenant, agent.unwrap_or(&context.agent)).await?;
        let metadata = asked.clone().find(|message| message.turn_id == claim.turn_id);
        let metadata = metadata.map(|message| message.metadata.clone()).unwrap_or_default();
        let turn = match steps.is_empty() {
            true => Turn::new(agent.limits()),
            false => Turn::restore(agent.limits(), steps),
        };
        Ok(Driver {
            writer: host.flusher.writer(claim),
            host: host.clone(),
            claim: claim.clone(),
            caller: Caller::service(claim.tenant.clone(), context.subject.clone()),
            model: metadata.model.unwrap_or_else(|| agent.manifest.model.clone()),
            headless: metadata.headless,
            workspace_id: context.workspace_id,
            agent,
            history,
            turn,
            view: context.view.0.clone(),
            tasks: JoinSet::new(),
            unfolded: 0,
            trace: Trace::current(),
        })
    }

    async fn drive(mut self, start: Start, cut: CancellationToken) -> Result<(), Stopped> {
        let (inputs, mut arriving) = mpsc::channel(256);
        let mut signals = self.writer.signals();
        let seconds = self.agent.turn_seconds();
        let deadline = Instant::now() + Duration::from_secs(seconds);

        let first = match start {
            Start::Orphaned => Input::Stopped(Stop::HostRestart),
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
        while !self.turn.is_over() {
            let input = tokio::select! {
                Some(input) = arriving.recv() => input,
                Ok(()) = signals.changed() => {
                    let signal = *signals.borrow_and_update();
                    match signal {
                        Signal::GoOn => continue,
                        Signal::Interrupt(turn_id) if turn_id != self.claim.turn_id => continue,
                        Signal::Interrupt(_) => Input::Stopped(Stop::Interrupted {
                            subject: String::new(),
                            reason: String::new(),
                        }),
                        Signal::Stopped => return self.stopped().await,
                    }
                }
                () = sleep_until(deadline) => Input::Stopped(Stop::Timeout { seconds }),
                () = cut.cancelled() => Input::Stopped(Stop::HostRestart),
            };
            self.take(input, &inputs).await?;
        }
        Ok(())
    }
}
