//! Does what the machine asks for.

use proto::{
    event::v1::{Event, Payload, TurnFailed},
    session::v1::TurnView,
    tools::v1::Call,
};
use tokio::time::sleep;
use tracing::{Instrument as _, warn};

use super::{Driver, Inputs, calls, people};
use crate::{
    flusher::{Stopped, Writer},
    host::Host,
    ids::ToolCallId,
    message::{MessageStatus, Metadata},
    metrics,
    store::{self, turns::Claim},
    time,
    turn::{Decision, Effect, Ending, Input, Step, Stop, Stopping},
    view,
};

/// A text that grows is stored whole every so many bytes; in between, the log has it.
const FOLD_BYTES: usize = 16 * 1024;

/// How far a turn may run ahead of what is committed.
const AHEAD_BYTES: usize = 256 * 1024;

impl Driver {
    /// One move of the machine.
    pub(super) async fn take(&mut self, input: Input, inputs: &Inputs) -> Result<(), Stopped> {
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
    fn write(&mut self, mut input: Input) -> (Vec<Effect>, usize) {
        self.note_kept(&mut input);
        let (turn_id, now) = (self.claim.turn_id, time::now());
        self.coming -= i64::from(matches!(input, Input::Spawned { .. }));
        let timed_out = matches!(input, Input::Stopped(Stop::Timeout { .. }));
        let effects = self.turn.step(input);
        let step = self.turn.steps().last();
        let mut actions = Vec::new();
        let mut changed = false;
        let waiting = self.writer.add(|pending| {
            for effect in effects {
                match effect {
                    Effect::Append(mut event) => {
                        event.timestamp = Some(time::to_proto(now));
                        event.trace_id = self.trace.trace_id.clone().unwrap_or_default();
                        event.span_id = self.trace.span_id.clone().unwrap_or_default();
                        changed |= view::apply(&mut self.view, &event);
                        if let Some(Payload::TurnFailed(failed)) = &event.payload {
                            // Unlike all other limits this one may be our fault.
                            let reason = if timed_out { "timeout" } else { &failed.reason };
                            reason.clone_into(&mut self.reason);
                        }
                        self.unfolded += pending.append(*event, now);
                    }
                    Effect::SaveMessage => {
                        step.into_iter().for_each(|step| pending.save_message(turn_id, step, now));
                    }
                    Effect::SavePart(index) => {
                        self.unfolded = 0;
                        step.into_iter().for_each(|step| pending.save_part(step, index));
                    }
                    Effect::Spend { usage, cost_micros } => pending.spend(&usage, cost_micros),
                    Effect::Ask { id, asking } => {
                        step.into_iter()
                            .for_each(|step| pending.ask(turn_id, step, id, &asking, now));
                    }
                    Effect::Delegate(spawn) => {
                        self.background |= spawn.origin.background;
                        pending.spawn(*spawn);
                    }
                    Effect::Tell(id) => pending.tell(id),
                    Effect::StopChildren(which) => pending.stop_children(which),
                    action => {
                        match &action {
                            Effect::Finish(ending) => pending.end(ending.clone()),
                            Effect::Park => pending.park(),
                            _ => {}
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
    async fn act(&mut self, action: Effect, inputs: &Inputs) -> Result<(), Stopped> {
        while self.tasks.try_join_next().is_some() {}
        match action {
            Effect::OpenStep { message_id, attempt } => {
                self.open_step(message_id, attempt, inputs).await?;
            }
            Effect::Compact { trigger, .. } if self.compact_again(trigger, inputs) => {}
            Effect::Compact { trigger, attempt } => self.compact(trigger, attempt, inputs).await?,
            Effect::Rest { delay, message } => {
                // Turns that failed together do not come back together.
                let delay = delay.mul_f64(1.0 + rand::random::<f64>() / 4.0);
                let inputs = inputs.clone();
                self.writer.add(|pending| pending.show("retrying", message));
                self.tasks.spawn(async move {
                    sleep(delay).await;
                    let _ = inputs.send(vec![Input::Rested]).await;
                });
            }
            Effect::Evaluate(id) if self.evaluate_again(id, inputs) => {}
            Effect::Evaluate(id) => {
                if let Some(call) = self.call(id) {
                    if let Some(reason) = self.soon(self.not_offered(&call.tool)).await {
                        let decision = Decision::Deny { reason };
                        let (facts, input_json) = (vec![], call.input_json);
                        let refused = Input::Evaluated { id, decision, facts, input_json };
                        let inputs = inputs.clone();
                        self.tasks.spawn(async move {
                            let _ = inputs.send(vec![refused]).await;
                        });
                        return Ok(());
                    }
                    let (host, caller) = (self.host.clone(), self.caller.clone());
                    let ask = people::Ask::new(&self.host, self.headless);
                    let evaluate = calls::evaluate(host, caller, id, call, ask, inputs.clone());
                    self.tasks.spawn(evaluate.in_current_span());
                }
            }
            Effect::RunHooks { event, .. } if self.hook_again(event, inputs) => {}
            Effect::Spawn(id) => {
                let put_off = Effect::Spawn(id);
                if !self.execute_again(id, inputs).await
                    && !self.keeps_files_first(id, put_off, inputs).await
                {
                    self.spawn(id, inputs).await?;
                }
            }
            Effect::RunHooks { event, stops } => self.run_hooks(event, stops, inputs).await?,
            Effect::Execute { id, approved } => {
                let put_off = Effect::Execute { id, approved };
                if self.execute_again(id, inputs).await
                    || self.keeps_files_first(id, put_off, inputs).await
                {
                    return Ok(());
                }
                // Whoever takes over must know that it ran before it can have run.
                self.flush().await?;
                if let Some(call) = self.call(id) {
                    let (host, caller) = (self.host.clone(), self.caller.clone());
                    let execute = calls::execute(host, caller, id, call, approved, inputs.clone());
                    self.tasks.spawn(execute.in_current_span());
                }
            }
            Effect::StopAll => self.tasks.abort_all(),
            Effect::Finish(ending) => {
                self.flush().await?;
                metrics::ended(&ending, &self.reason);
            }
            Effect::Park => self.flush().await?,
            Effect::Append(_)
            | Effect::SaveMessage
            | Effect::SavePart(_)
            | Effect::Ask { .. }
            | Effect::Delegate(_)
            | Effect::Tell(_)
            | Effect::StopChildren(_)
            | Effect::Spend { .. } => unreachable!("written with the move"),
        }
        Ok(())
    }

    fn call(&self, id: ToolCallId) -> Option<Call> {
        let tool_use = self.turn.call(id)?;
        let step = self.turn.steps().last()?;
        Some(Call {
            session_id: self.claim.session_id.to_string(),
            epoch: self.claim.epoch,
            turn_id: self.claim.turn_id.to_string(),
            step_id: step.message_id.step().to_string(),
            tool_call_id: id.to_string(),
            tool: tool_use.tool.clone(),
            input_json: tool_use.input_json.clone(),
            workspace_id: self.workspace_id.to_string(),
            permissions: Some(self.permissions.clone()),
            headless: self.headless,
        })
    }

    /// Commits, and when Postgres refuses the data, ends the turn without it.
    pub(super) async fn flush(&mut self) -> Result<(), Stopped> {
        match self.writer.flush().await {
            Err(Stopped::Refused(problem)) => self.give_up(problem).await,
            result => result,
        }
    }

    pub(super) async fn stopped(&mut self) -> Result<(), Stopped> {
        self.tasks.abort_all();
        self.flush().await
    }

    /// Ends the turn with nothing but the fact that it ended.
    async fn give_up(&mut self, problem: String) -> Result<(), Stopped> {
        self.tasks.abort_all();
        self.writer.discard();
        let message = "what the turn said cannot be stored".to_owned();
        warn!(problem, session.id = %self.claim.session_id, "{message}");
        // Of what it said only that it says no more.
        let last = self.turn.steps().last().map(|step| Step {
            message_id: step.message_id,
            status: MessageStatus::Failed,
            metadata: Metadata::default(),
            parts: vec![],
        });
        end(&self.writer, &self.claim, &mut self.view, last, Stop::Internal { message }).await?;
        Err(Stopped::Refused(problem))
    }
}

/// Ends a turn that cannot even be loaded, so that its session does not stay busy for ever.
pub async fn refuse(
    host: &Host,
    writer: &Writer,
    claim: &Claim,
    mut view: TurnView,
    stop: Stop,
) -> Result<(), Stopped> {
    // Whoever reads what still streams adds what the log has of it, for ever.
    let closing = store::messages::close(&host.db, host.replica, claim.session_id, claim.epoch);
    if let Err(error) = closing.await {
        let id = claim.session_id;
        warn!(%error, session.id = %id, "what session {id} was saying still looks as if it went on");
    }
    end(writer, claim, &mut view, None, stop).await
}

async fn end(
    writer: &Writer,
    claim: &Claim,
    view: &mut TurnView,
    last: Option<Step>,
    stop: Stop,
) -> Result<(), Stopped> {
    let now = time::now();
    let (status, reason, message, hard) = stop.words();
    let (subject, children) = match stop {
        Stop::Interrupted { subject, .. } => (subject, Stopping::All),
        _ => (String::new(), Stopping::OfTurn),
    };
    let failed = Event::fact(Payload::TurnFailed(TurnFailed {
        status: status.into(),
        reason: reason.into(),
        message: message.clone(),
        subject,
        ..TurnFailed::default()
    }));
    let failed = Event { timestamp: Some(time::to_proto(now)), ..failed };
    view::apply(view, &failed);
    let ending = Ending::bad(status, message, hard);
    writer.add(|pending| {
        pending.append(failed, now);
        pending.stop_children(children);
        last.iter().for_each(|step| pending.save_message(claim.turn_id, step, now));
        pending.save_turn(claim.turn_id, view);
        pending.end(ending.clone());
    });
    writer.flush().await?;
    metrics::ended(&ending, reason);
    Ok(())
}
