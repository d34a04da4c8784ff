//! Runs one turn: feeds the machine what happens and does what it asks.

mod calls;
mod model;

use std::{sync::Arc, time::Duration};

use chassis::{Caller, telemetry};
use proto::{
    event::v1::{Event, ModelRequested, Payload, TurnFailed},
    models::v1 as models,
    session::v1::TurnView,
    tools::v1::Tool,
};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, info, info_span, warn};

use crate::{
    agent::Agent,
    error::Result,
    flusher::{Signal, Stopped, Writer},
    host::Host,
    ids::{MessageId, ToolCallId, WorkspaceId},
    message::{Message, MessageStatus, Metadata, Role},
    prompt::{self, System},
    store::{self, messages::Window, turns::Claim},
    time,
    turn::{Effect, Ending, Failure, Input, Step, Stop, Turn},
    view,
};

/// How many claims a turn survives that ended with its worker.
const MAX_ATTEMPTS: i32 = 3;

/// How much of the conversation is looked at.
const HISTORY: i64 = 10_000;

/// A text that grows is stored whole every so many bytes; in between, the log has it.
const FOLD_BYTES: usize = 16 * 1024;

/// How far a turn may run ahead of what is committed.
const AHEAD_BYTES: usize = 256 * 1024;

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

    /// One move of the machine.
    async fn take(&mut self, input: Input, inputs: &mpsc::Sender<Input>) -> Result<(), Stopped> {
        let (actions, waiting) = self.write(input);
        for action in actions {
            self.act(action, inputs).await?;
        }
        // A model that is faster than Postgres waits for it.
        if waiting > AHEAD_BYTES {
            self.flush().await?;
        }
        Ok(())
    }

    /// Adds what a move writes, all at once, so that no commit comes between a delta and the
    /// part that holds it. Returns what is left to do, and how much waits to be committed.
    fn write(&mut self, input: Input) -> (Vec<Effect>, usize) {
        let (turn_id, now) = (self.claim.turn_id, time::now());
        let effects = self.turn.step(input);
        let step = self.turn.steps().last();
        let mut actions = Vec::new();
        let mut changed = false;
        let waiting = self.writer.add(|pending| {
            for effect in effects {
                match effect {
                    Effect::Append(mut event) => {
                        event.timestamp = Some(time::to_proto(now));
                        event.trace_id = self.trace_id.clone();
                        event.span_id = self.span_id.clone();
                        changed |= view::apply(&mut self.view, &event);
                        self.unfolded += pending.append(event, now);
                    }
                    Effect::SaveMessage => {
                        step.into_iter().for_each(|step| pending.save_message(turn_id, step, now));
                    }
                    Effect::SavePart(index) => {
                        self.unfolded = 0;
                        step.into_iter().for_each(|step| pending.save_part(step, index));
                    }
                    Effect::Spend { usage, cost_micros } => pending.spend(&usage, cost_micros),
                    action => {
                        if let Effect::Finish(ending) = &action {
                            pending.end(ending.clone());
                        }
                        actions.push(action);
                    }
                }
            }
            if self.unfolded > FOLD_BYTES
                && let Some(step) = step
            {
                self.unfolded = 0;
                pending.save_part(step, step.parts.len() - 1);
            }
            if changed {
                pending.save_turn(turn_id, &self.view);
            }
        });
        (actions, waiting)
    }

    /// Does what a move asks for beyond writing.
    async fn act(&mut self, action: Effect, inputs: &mpsc::Sender<Input>) -> Result<(), Stopped> {
        match action {
            Effect::OpenStep { message_id, attempt } => {
                self.open_step(message_id, attempt, inputs).await?;
            }
            Effect::Rest(delay) => {
                let inputs = inputs.clone();
                self.writer.add(|pending| pending.show("retrying", String::new()));
                self.tasks.spawn(async move {
                    sleep(delay).await;
                    let _ = inputs.send(Input::Rested).await;
                });
            }
            Effect::Evaluate(id) => {
                if let Some(call) = self.call(id) {
                    let (host, caller) = (self.host.clone(), self.caller.clone());
                    let evaluate = calls::evaluate(host, caller, id, call, inputs.clone());
                    self.tasks.spawn(evaluate.in_current_span());
                }
            }
            Effect::Execute(id) => {
                // Whoever takes over must know that it ran before it can have run.
                self.flush().await?;
                if let Some(call) = self.call(id) {
                    let (host, caller) = (self.host.clone(), self.caller.clone());
                    let execute = calls::execute(host, caller, id, call, inputs.clone());
                    self.tasks.spawn(execute.in_current_span());
                }
            }
            Effect::StopAll => self.tasks.abort_all(),
            Effect::Finish(_) => self.flush().await?,
            Effect::Append(_)
            | Effect::SaveMessage
            | Effect::SavePart(_)
            | Effect::Spend { .. } => unreachable!("written with the move"),
        }
        Ok(())
    }

    async fn open_step(
        &mut self,
        message_id: Option<MessageId>,
        attempt: u32,
        inputs: &mpsc::Sender<Input>,
    ) -> Result<(), Stopped> {
        let tools = match self.host.catalogue(&self.caller).await {
            Ok(tools) => self.allowed(&tools),
            Err(status) => {
                let failure = Failure {
                    kind: "unavailable".into(),
                    message: format!("the tools service does not answer: {}", status.message()),
                    transient: true,
                    retry_after: None,
                };
                return Box::pin(self.take(Input::Failed(failure), inputs)).await;
            }
        };
        let system = prompt::system(&self.agent, &tools);
        let prompt = prompt::assemble(&system, &self.history, self.turn.steps(), &tools);
        let message_id = message_id.unwrap_or_else(MessageId::new);
        let opened = self.opened(message_id, attempt, &system, &prompt);
        self.writer.add(|pending| pending.save_prompt(system.digest, system.text));
        Box::pin(self.take(opened, inputs)).await?;
        self.writer.add(|pending| pending.show("busy", String::new()));

        let manifest = &self.agent.manifest;
        let request = models::GenerateRequest {
            session_id: self.claim.session_id.to_string(),
            root_session_id: String::new(),
            turn_id: self.claim.turn_id.to_string(),
            step_id: message_id.step().to_string(),
            prompt: Some(prompt),
            target: Some(models::Target {
                model: self.model.clone(),
                profile: manifest.profile.clone(),
                capabilities: if tools.is_empty() { vec![] } else { vec!["tools".into()] },
            }),
            options: Some(models::Options {
                max_output_tokens: manifest.max_output_tokens,
                temperature: manifest.temperature,
                ..models::Options::default()
            }),
            attempt: attempt as i32,
            budget_id: String::new(),
        };
        let generate =
            model::generate(self.host.clone(), self.caller.clone(), request, inputs.clone());
        self.tasks.spawn(generate.in_current_span());
        Ok(())
    }

    fn opened(
        &self,
        message_id: MessageId,
        attempt: u32,
        system: &System,
        prompt: &models::Prompt,
    ) -> Input {
        let manifest = &self.agent.manifest;
        Input::StepOpened {
            message_id,
            request: ModelRequested {
                message_id: message_id.to_string(),
                model: match self.model.is_empty() {
                    true => manifest.profile.clone(),
                    false => self.model.clone(),
                },
                prompt_digest: system.digest.clone(),
                messages: prompt.messages.len() as i32,
                tools: prompt.tools.len() as i32,
                attempt: attempt as i32,
            },
            metadata: Metadata {
                agent: Some(self.agent.id.clone()),
                prompt_digest: Some(system.digest.clone()),
                ..Metadata::default()
            },
        }
    }

    /// The tools that exist for this agent.
    fn allowed(&self, tools: &[Tool]) -> Vec<Tool> {
        let names = self.agent.manifest.permissions.as_ref().map(|p| p.tools.as_slice());
        let listed = |tool: &&Tool| match names {
            None | Some([]) => true,
            Some(names) => names.contains(&tool.name),
        };
        tools.iter().filter(listed).cloned().collect()
    }

    fn call(&self, id: ToolCallId) -> Option<proto::tools::v1::Call> {
        let tool_use = self.turn.call(id)?;
        let step = self.turn.steps().last()?;
        Some(proto::tools::v1::Call {
            session_id: self.claim.session_id.to_string(),
            epoch: self.claim.epoch,
            turn_id: self.claim.turn_id.to_string(),
            step_id: step.message_id.step().to_string(),
            tool_call_id: id.to_string(),
            tool: tool_use.tool.clone(),
            input_json: tool_use.input_json.clone(),
            workspace_id: self.workspace_id.to_string(),
            permissions: self.agent.manifest.permissions.clone(),
            headless: self.headless,
        })
    }

    /// Commits, and when Postgres refuses the data, ends the turn without it.
    async fn flush(&mut self) -> Result<(), Stopped> {
        match self.writer.flush().await {
            Err(Stopped::Refused(problem)) => self.give_up(problem).await,
            result => result,
        }
    }

    async fn stopped(&mut self) -> Result<(), Stopped> {
        self.tasks.abort_all();
        self.flush().await
    }

    /// Ends the turn with nothing but the fact that it ended.
    async fn give_up(&mut self, problem: String) -> Result<(), Stopped> {
        self.tasks.abort_all();
        self.writer.discard();
        let message = "what the turn said cannot be stored".to_owned();
        warn!(problem, session.id = %self.claim.session_id, "{message}");
        let now = time::now();
        let failed = Event::fact(Payload::TurnFailed(TurnFailed {
            status: "failed".into(),
            reason: "internal".into(),
            message: message.clone(),
            ..TurnFailed::default()
        }));
        let failed = Event { timestamp: Some(time::to_proto(now)), ..failed };
        view::apply(&mut self.view, &failed);
        self.writer.add(|pending| {
            pending.append(failed, now);
            pending.save_turn(self.claim.turn_id, &self.view);
            pending.end(Ending::Broken { message });
        });
        self.writer.flush().await?;
        Err(Stopped::Refused(problem))
    }
}
