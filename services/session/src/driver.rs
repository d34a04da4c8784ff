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
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, info, info_span, warn};

use crate::{
    agent::Agent,
    error::Result,
    flusher::{Signal, Stopped, Writer},
    host::Host,
    ids::WorkspaceId,
    message::{Message, MessageStatus, Role},
    store::{self, messages::Window, turns::Claim},
    turn::{Input, Step, Stop, Turn},
};

/// How many claims a turn survives that ended with its worker.
const MAX_ATTEMPTS: i32 = 3;

/// How much of the conversation is looked at.
const HISTORY: i64 = 10_000;

/// Runs a claimed turn to its end, or until the session is lost. `cut` ends it early.
pub async fn run(host: Arc<Host>, claim: Claim, cut: CancellationToken) {
    let span = info_span!(
        "turn",
        session.id = %claim.session_id,
        turn.id = %claim.turn_id,
        tenant.id = %claim.tenant,
        otel.kind = "internal",
    );
    let context = match store::turns::context(&host.db, claim.session_id, claim.turn_id).await {
        Ok(context) => context,
        Err(error) => return warn!(%error, session.id = %claim.session_id, "cannot load a turn"),
    };
    if let Some(parent) = &context.trace_parent {
        telemetry::set_parent(&span, parent);
    }
    let caller = Caller::service(claim.tenant.clone(), context.subject.clone());
    async {
        let (id, writer) = (claim.session_id, host.flusher.writer(&claim));
        let ended = Driver::load(host, claim, caller, context, writer).await;
        let ended = match ended {
            Ok(driver) => driver.drive(cut).await,
            Err(error) => return warn!(%error, "cannot load a turn of session {id}"),
        };
        if let Err(stopped) = ended {
            warn!(%stopped, "a turn of session {id} ended early");
        }
    }
    .instrument(span)
    .await;
}

/// Brings the turn of a dead owner to its end: what was said and done stays.
pub async fn bury(host: Arc<Host>, claim: Claim) -> Result<()> {
    let context = store::turns::context(&host.db, claim.session_id, claim.turn_id).await?;
    let caller = Caller::service(claim.tenant.clone(), context.subject.clone());
    let writer = host.flusher.writer(&claim);
    let mut driver = Driver::load(host, claim, caller, context, writer).await?;
    let id = driver.claim.session_id;
    info!(session.id = %id, turn.id = %driver.claim.turn_id, "ending a turn of session {id} whose host is gone");
    let (inputs, _) = mpsc::channel(1);
    if let Err(stopped) = driver.take(Input::Stopped(Stop::HostRestart), &inputs).await {
        warn!(%stopped, session.id = %id, "cannot end the turn of session {id}");
    }
    Ok(())
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
    trace_id: String,
    span_id: String,
}

impl Driver {
    async fn load(
        host: Arc<Host>,
        claim: Claim,
        caller: Caller,
        context: store::turns::Context,
        writer: Writer,
    ) -> Result<Driver> {
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
        let overridden = history.iter().rev().find_map(|message| message.metadata.agent.clone());
        let asked = history.iter().rev().find(|message| message.turn_id == claim.turn_id);
        let metadata = asked.map(|message| message.metadata.clone()).unwrap_or_default();
        let agent =
            host.agent(&claim.tenant, overridden.as_ref().unwrap_or(&context.agent)).await?;
        let turn = match steps.is_empty() {
            true => Turn::new(agent.limits()),
            false => Turn::restore(agent.limits(), steps),
        };
        let (trace_id, span_id) = telemetry::traceparent()
            .and_then(|parent| {
                let mut fields = parent.split('-').skip(1);
                Some((fields.next()?.to_owned(), fields.next()?.to_owned()))
            })
            .unwrap_or_default();
        Ok(Driver {
            model: metadata.model.unwrap_or_else(|| agent.manifest.model.clone()),
            headless: metadata.headless,
            workspace_id: context.workspace_id,
            view: context.view.0,
            tasks: JoinSet::new(),
            unfolded: 0,
            host,
            claim,
            caller,
            writer,
            agent,
            history,
            turn,
            trace_id,
            span_id,
        })
    }

    async fn drive(mut self, cut: CancellationToken) -> Result<(), Stopped> {
        let (inputs, mut arriving) = mpsc::channel(256);
        let mut signals = self.writer.signals();
        let seconds = self.agent.turn_seconds();
        let deadline = Instant::now() + Duration::from_secs(seconds);

        let first = match self.claim.attempts > MAX_ATTEMPTS {
            true => Input::Stopped(Stop::Internal {
                message: format!("the turn ended its worker {MAX_ATTEMPTS} times and is given up"),
            }),
            false => Input::Began {
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
