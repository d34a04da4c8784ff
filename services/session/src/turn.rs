//! One turn of the universal loop, as a pure machine: no I/O, no clock, no randomness.
//!
//! The driver feeds it what happened and does what it asks. Everything it knows is in
//! its steps, which are stored as messages and parts, so that a turn can be rebuilt on any
//! replica after any restart.

mod input;
mod effect;
mod acting;
#[cfg(test)]
mod tests;

use proto::event::v1::{
    Event, ModelCompleted, ModelDelta, ModelFailed, ModelRequested, Payload, ReasoningDelta,
    RunStatus, ToolArgs, ToolStarted, TurnCompleted, TurnFailed, TurnStarted, Usage,
};

use crate::{
    ids::{MessageId, StepId, ToolCallId},
    message::{MessageStatus, Metadata, Part, Text, ToolState, ToolUse},
};

pub use effect::{Effect, Ending};
pub use input::{Decision, Failure, Finished, Input, Outcome, Stop};

/// Where a turn stands. Moved on by [`Turn::step`] and by nothing else.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    limits: Limits,
    steps: Vec<Step>,
    phase: Phase,
    usage: Usage,
    cost_micros: i64,
}

/// Against loops that never end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Model calls in one turn.
    pub steps: usize,
    /// Tries of one model call, the first included.
    pub attempts: u32,
}

/// One model call and the tools it asked for: an assistant message.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    pub message_id: MessageId,
    pub status: MessageStatus,
    pub metadata: Metadata,
    pub parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq)]
enum Phase {
    /// Not begun.
    New,
    /// The driver assembles a prompt and calls the model.
    Opening { attempt: u32 },
    /// The model speaks.
    Streaming { attempt: u32 },
    /// The model failed and is asked again a little later.
    Resting { attempt: u32 },
    /// The tools of the last step are evaluated and run.
    Acting(Vec<Call>),
    /// Ended. Whatever still arrives is ignored.
    Over,
}

/// A tool call of the last step on its way.
#[derive(Debug, Clone, PartialEq)]
struct Call {
    part: usize,
    progress: Progress,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Progress {
    Pending,
    Evaluating,
    Running,
    Done,
}

impl Turn {
    pub fn new(limits: Limits) -> Turn {
        Turn { limits, steps: vec![], phase: Phase::New, usage: Usage::default(), cost_micros: 0 }
    }

    /// Rebuilds a turn from what is stored of it, in order to bring it to its end.
    pub fn restore(limits: Limits, steps: Vec<Step>) -> Turn {
        let mut turn = Turn { steps, ..Turn::new(limits) };
        for step in &turn.steps {
            add(&mut turn.usage, step.metadata.usage.as_ref());
            turn.cost_micros += step.metadata.cost_micros.unwrap_or_default();
        }
        turn.phase = match turn.steps.last() {
            None => Phase::Opening { attempt: 1 },
            Some(step) if step.status == MessageStatus::Streaming => {
                Phase::Streaming { attempt: 1 }
            }
            Some(_) => Phase::Acting(turn.calls()),
        };
        turn
    }

    /// The assistant messages of this turn so far.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// The call with this id, in the last step.
    pub fn call(&self, id: ToolCallId) -> Option<&ToolUse> {
        self.steps.last()?.parts.iter().find_map(|part| match part {
            Part::Tool(tool_use) if tool_use.tool_call_id == id => Some(tool_use),
            _ => None,
        })
    }

    /// Everything a turn may do next.
    pub fn step(&mut self, input: Input) -> Vec<Effect> {
        let mut effects = Vec::new();
        match (&mut self.phase, input) {
            (Phase::Over, _) => {}
            (_, Input::Stopped(stop)) => self.stop(stop, &mut effects),

            (Phase::New, Input::Began { agent, agent_version, attempt }) => {
                effects.push(append(Payload::TurnStarted(TurnStarted {
                    agent,
                    agent_version,
                    attempt,
                })));
                self.open(1, &mut effects);
            }
            (Phase::Opening { attempt }, Input::StepOpened { message_id, request, metadata }) => {
                let attempt = *attempt;
                self.opened(attempt, message_id, request, metadata, &mut effects);
            }

            (Phase::Streaming { .. }, Input::Text(text)) => self.speak(text, false, &mut effects),
            (Phase::Streaming { .. }, Input::Reasoning { text, signature }) => {
                self.speak(text, true, &mut effects);
                self.sign(&signature, &mut effects);
            }
            (Phase::Streaming { .. }, Input::CallStarted { id, tool }) => {
                self.call_started(id, tool, &mut effects);
            }
            (Phase::Streaming { .. }, Input::CallInput { id, input_json }) => {
                self.call_input(id, input_json, &mut effects);
            }
            (Phase::Streaming { .. }, Input::Finished(finished)) => {
                self.finished(finished, &mut effects);
            }
            (Phase::Opening { attempt } | Phase::Streaming { attempt }, Input::Failed(failure)) => {
                let attempt = *attempt;
                self.failed(attempt, failure, &mut effects);
            }
            (Phase::Resting { attempt }, Input::Rested) => {
                let attempt = *attempt;
                self.open(attempt, &mut effects);
            }

            (Phase::Acting(_), input) => self.act(input, &mut effects),
            (Phase::Opening { .. } | Phase::Streaming { .. }, Input::Fact(fact)) => {
                effects.push(Effect::Append(self.in_step(fact)));
            }

            // Something that belongs to a phase that is over: a late chunk, a repeated answer.
            (Phase::New | Phase::Opening { .. }, _)
            | (Phase::Streaming { .. } | Phase::Resting { .. }, _) => {}
        }
        effects
    }

    fn open(&mut self, attempt: u32, effects: &mut Vec<Effect>) {
        if attempt == 1 && self.steps.len() >= self.limits.steps {
            let message = format!(
                "the turn reached its limit of {} steps; raise the agent's limit or ask for less at once",
                self.limits.steps
            );
            return self.end_badly("failed", "limit", message, String::new(), true, effects);
        }
        self.phase = Phase::Opening { attempt };
        // A repeated attempt goes on in the same message, which is still empty.
        let message_id = self.open_step().map(|step| step.message_id);
        effects.push(Effect::OpenStep { message_id, attempt });
    }

    fn opened(
        &mut self,
        attempt: u32,
        message_id: MessageId,
        request: ModelRequested,
        metadata: Metadata,
        effects: &mut Vec<Effect>,
    ) {
        self.phase = Phase::Streaming { attempt };
        let status = MessageStatus::Streaming;
        if self.steps.last().is_none_or(|step| step.message_id != message_id) {
            self.steps.push(Step { message_id, status, metadata, parts: vec![] });
        }
        effects.push(self.append(Payload::ModelRequested(request)));
        effects.push(Effect::SaveMessage);
    }

    fn speak(&mut self, text: String, reasoning: bool, effects: &mut Vec<Effect>) {
        let grows = match self.last_part() {
            Some(Part::Text(part)) => part.streaming && !reasoning,
            Some(Part::Reasoning(part)) => part.streaming && reasoning,
            _ => false,
        };
        if !grows {
            self.close_part(effects);
            let part = Text { streaming: true, ..Text::default() };
            self.last_step().parts.push(match reasoning {
                true => Part::Reasoning(part),
                false => Part::Text(part),
            });
        }
        if let Some(part) = self.last_part() {
            part.extend(&text);
        }
        let step = self.last_step();
        let message_id = step.message_id.to_string();
        let part_index = step.parts.len() as i32 - 1;
        effects.push(self.append(match reasoning {
            true => Payload::ReasoningDelta(ReasoningDelta { message_id, part_index, text }),
            false => Payload::ModelDelta(ModelDelta { message_id, part_index, text }),
        }));
        // After its first delta, because it is stored with that text in it.
        if !grows {
            effects.push(Effect::SavePart(part_index as usize));
        }
    }

    /// Deltas do not carry the signature, so it is stored with the part at once.
    fn sign(&mut self, signature: &str, effects: &mut Vec<Effect>) {
        if let Some(Part::Reasoning(part)) = self.last_part()
            && !signature.is_empty()
        {
            part.signature.push_str(signature);
            effects.push(Effect::SavePart(self.last_step().parts.len() - 1));
        }
    }

    fn call_started(&mut self, id: ToolCallId, tool: String, effects: &mut Vec<Effect>) {
        self.close_part(effects);
        let step = self.last_step();
        let started = ToolStarted {
            message_id: step.message_id.to_string(),
            part_index: step.parts.len() as i32,
            tool: tool.clone(),
        };
        step.parts.push(Part::Tool(ToolUse {
            tool_call_id: id,
            tool,
            state: ToolState::InputStreaming,
            input_json: String::new(),
            output_json: None,
            error_text: None,
            metadata: None,
        }));
        effects.push(Effect::SavePart(step.parts.len() - 1));
        effects.push(self.append_call(id, Payload::ToolStarted(started)));
    }

    fn call_input(&mut self, id: ToolCallId, input_json: String, effects: &mut Vec<Effect>) {
        let Some((index, tool_use)) = self.call_mut(id) else { return };
        tool_use.input_json = input_json.clone();
        tool_use.state = ToolState::InputAvailable;
        effects.push(self.append_call(id, Payload::ToolArgs(ToolArgs { input_json })));
        effects.push(Effect::SavePart(index));
    }

    fn finished(&mut self, finished: Finished, effects: &mut Vec<Effect>) {
        self.close_part(effects);
        add(&mut self.usage, Some(&finished.usage));
        self.cost_micros += finished.cost_micros;

        let step = self.last_step();
        step.status = MessageStatus::Completed;
        step.metadata.usage = Some(finished.usage);
        step.metadata.cost_micros = Some(finished.cost_micros);
        step.metadata.model = Some(format!("{}/{}", finished.provider, finished.model));
        step.metadata.finish_reason = Some(finished.finish_reason.clone());
        let message_id = step.message_id.to_string();
        effects.push(self.append(Payload::ModelCompleted(ModelCompleted {
            message_id: message_id.clone(),
            provider: finished.provider,
            model: finished.model,
            finish_reason: finished.finish_reason.clone(),
            usage: Some(finished.usage),
            cost_micros: finished.cost_micros,
        })));
        effects.push(Effect::SaveMessage);
        effects.push(Effect::Spend { usage: finished.usage, cost_micros: finished.cost_micros });

        let calls = self.calls();
        if calls.is_empty() {
            effects.push(append(Payload::TurnCompleted(TurnCompleted {
                message_id,
                finish_reason: finished.finish_reason,
                steps: self.steps.len() as i32,
                usage: Some(self.usage),
                cost_micros: self.cost_micros,
            })));
            self.phase = Phase::Over;
            effects.push(Effect::Finish(Ending::Completed));
        } else {
            self.phase = Phase::Acting(calls);
            self.act_on(effects);
        }
    }

    fn failed(&mut self, attempt: u32, failure: Failure, effects: &mut Vec<Effect>) {
        // Asking again after text was shown would say it twice.
        let silent = self.open_step().is_none_or(|step| step.parts.is_empty());
        let will_retry = failure.transient && silent && attempt < self.limits.attempts;
        let message_id = self.open_step().map(|step| step.message_id.to_string());
        effects.push(self.append(Payload::ModelFailed(ModelFailed {
            message_id: message_id.unwrap_or_default(),
            kind: failure.kind.clone(),
            message: failure.message.clone(),
            will_retry,
        })));
        if will_retry {
            let delay = failure.retry_after.unwrap_or_else(|| effect::backoff(attempt));
            effects.push(self.append(Payload::RunStatus(RunStatus {
                status: "retrying".into(),
                attempt: attempt as i32 + 1,
                delay_ms: delay.as_millis() as i32,
                message: failure.message,
            })));
            self.phase = Phase::Resting { attempt: attempt + 1 };
            effects.push(Effect::Rest(delay));
            return;
        }
        self.end_badly("failed", "provider_error", failure.message, String::new(), true, effects);
    }

    /// Freezes everything where it is: what was said stays, what runs is told to stop.
    fn stop(&mut self, stop: Stop, effects: &mut Vec<Effect>) {
        let (status, reason, message, hard) = match &stop {
            Stop::Interrupted { reason, .. } if reason.is_empty() => {
                ("cancelled", "interrupted", "the turn was interrupted".to_owned(), false)
            }
            Stop::Interrupted { reason, .. } => ("cancelled", "interrupted", reason.clone(), false),
            Stop::HostRestart => (
                "failed",
                "host_restart",
                "the host restarted while the turn ran; what it said and did is kept, send a message to go on"
                    .to_owned(),
                false,
            ),
            Stop::Timeout { seconds } => (
                "failed",
                "limit",
                format!("the turn ran longer than its limit of {seconds} s"),
                true,
            ),
            Stop::Internal { message } => ("failed", "internal", message.clone(), true),
        };
        let subject = match stop {
            Stop::Interrupted { subject, .. } => subject,
            _ => String::new(),
        };
        effects.push(Effect::StopAll);
        self.end_badly(status, reason, message, subject, hard, effects);
    }

    fn end_badly(
        &mut self,
        status: &str,
        reason: &str,
        message: String,
        subject: String,
        hard: bool,
        effects: &mut Vec<Effect>,
    ) {
        self.freeze(status, reason, effects);
        effects.push(append(Payload::TurnFailed(TurnFailed {
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: message.clone(),
            subject,
            steps: self.steps.len() as i32,
            usage: Some(self.usage),
            cost_micros: self.cost_micros,
        })));
        self.phase = Phase::Over;
        effects.push(Effect::Finish(match (status, hard) {
            ("cancelled", _) => Ending::Cancelled,
            (_, true) => Ending::Broken { message },
            (_, false) => Ending::Failed,
        }));
    }

    fn close_part(&mut self, effects: &mut Vec<Effect>) {
        let index = self.last_step().parts.len().wrapping_sub(1);
        if let Some(Part::Text(part) | Part::Reasoning(part)) = self.last_part()
            && part.streaming
        {
            part.streaming = false;
            effects.push(Effect::SavePart(index));
        }
    }

    /// The step whose model call has not ended.
    fn open_step(&self) -> Option<&Step> {
        self.steps.last().filter(|step| step.status == MessageStatus::Streaming)
    }

    fn last_step(&mut self) -> &mut Step {
        self.steps.last_mut().expect("only a turn with an open step streams")
    }

    fn last_part(&mut self) -> Option<&mut Part> {
        self.steps.last_mut()?.parts.last_mut()
    }

    fn call_mut(&mut self, id: ToolCallId) -> Option<(usize, &mut ToolUse)> {
        self.steps.last_mut()?.parts.iter_mut().enumerate().find_map(|(index, part)| match part {
            Part::Tool(tool_use) if tool_use.tool_call_id == id => Some((index, tool_use)),
            _ => None,
        })
    }

    fn step_id(&self) -> Option<StepId> {
        self.steps.last().map(|step| step.message_id.step())
    }

    fn in_step(&self, mut fact: Event) -> Event {
        if let Some(step_id) = self.step_id() {
            fact.step_id = step_id.to_string();
        }
        fact
    }

    fn append(&self, payload: Payload) -> Effect {
        Effect::Append(self.in_step(Event::fact(payload)))
    }

    fn append_call(&self, id: ToolCallId, payload: Payload) -> Effect {
        let fact = Event { tool_call_id: id.to_string(), ..Event::fact(payload) };
        Effect::Append(self.in_step(fact))
    }
}

/// An event of the turn as a whole.
fn append(payload: Payload) -> Effect {
    Effect::Append(Event::fact(payload))
}

fn add(sum: &mut Usage, usage: Option<&Usage>) {
    if let Some(usage) = usage {
        sum.input += usage.input;
        sum.output += usage.output;
        sum.reasoning += usage.reasoning;
        sum.cache_read += usage.cache_read;
        sum.cache_write += usage.cache_write;
    }
}
