//! One turn of the universal loop, as a pure machine: no I/O, no clock, no randomness.
//!
//! The driver feeds it what happened and does what it asks. Everything it knows is in
//! its steps, which are stored as messages and parts, so that a turn can be rebuilt on any
//! replica after any restart.

mod input;
mod effect;
mod speaking;
mod compacting;
mod acting;
mod delegating;
mod hooking;
mod ending;
#[cfg(test)]
mod tests;

use proto::event::v1::{Event, Payload, TurnStarted, Usage};

use crate::{
    compaction,
    ids::{MessageId, StepId, ToolCallId},
    message::{MessageStatus, Metadata, Part, ToolUse},
};

use hooking::Moment;

pub use acting::QUESTION;
pub use delegating::{TASK, Told};
pub use effect::{Effect, Ending, Stopping, backoff};
pub use hooking::{Hooked, Hooks, Verdict};
pub use input::{
    Asking, Compaction, Decision, Failure, Finished, Input, Outcome, Resolution, Stop, Trigger,
};

/// Where a turn stands. Moved on by [`Turn::step`] and by nothing else.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    limits: Limits,
    purpose: Purpose,
    hooks: Hooks,
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
    /// What all model calls of one turn may read and write.
    pub tokens: Option<i64>,
}

/// What a turn is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// To answer its message.
    Answer,
    /// To summarize what was said before it.
    Compact,
}

/// One model call and the tools it asked for: an assistant message.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    pub message_id: MessageId,
    pub status: MessageStatus,
    pub metadata: Metadata,
    pub parts: Vec<Part>,
}

impl Step {
    /// Whether it holds a summary in place of an answer.
    pub fn is_compaction(&self) -> bool {
        matches!(self.parts.first(), Some(Part::Data { kind, .. }) if kind == compaction::KIND)
    }
}

#[derive(Debug, Clone, PartialEq)]
enum Phase {
    /// Not begun.
    New,
    /// Hooks are asked whether it may go on.
    Hooking(Moment),
    /// The driver assembles a prompt and calls the model.
    Opening { attempt: u32 },
    /// The model speaks.
    Streaming { attempt: u32 },
    /// The model failed and is asked again a little later.
    Resting { attempt: u32 },
    /// The history is summarized; then the model is asked.
    Compacting { trigger: Trigger, attempt: u32, resting: bool },
    /// The tools of the last step are evaluated and run.
    Acting(Vec<Call>),
    /// Waits for people or children. Nobody needs this in memory; it is here to be compared with.
    Parked(Vec<Call>),
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
    /// It runs when its turn comes.
    Allowed(By),
    /// The child is looked for that it should be done by.
    Spawning,
    /// A person is asked.
    Waiting,
    /// A child does it.
    Delegated,
    Running,
    Done,
}

/// Who allows a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Rules,
    /// It answered what a person would have been asked.
    Hook,
    Person,
}

impl Turn {
    pub fn new(limits: Limits, purpose: Purpose) -> Turn {
        let (steps, phase, usage) = (vec![], Phase::New, Usage::default());
        Turn { limits, purpose, hooks: Hooks::default(), steps, phase, usage, cost_micros: 0 }
    }

    /// Rebuilds a turn from what is stored of it.
    pub fn restore(limits: Limits, purpose: Purpose, steps: Vec<Step>) -> Turn {
        let mut turn = Turn { steps, ..Turn::new(limits, purpose) };
        for step in &turn.steps {
            turn.usage += step.metadata.usage.unwrap_or_default();
            turn.cost_micros += step.metadata.cost_micros.unwrap_or_default();
        }
        turn.phase = match turn.steps.last() {
            None => Phase::Opening { attempt: 1 },
            Some(step) if step.status == MessageStatus::Streaming => {
                Phase::Streaming { attempt: 1 }
            }
            Some(_) => {
                let calls = turn.calls();
                match is_parked(&calls) {
                    true => Phase::Parked(calls),
                    false => Phase::Acting(calls),
                }
            }
        };
        turn
    }

    /// The assistant messages of this turn so far.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    pub fn into_steps(self) -> Vec<Step> {
        self.steps
    }

    /// Whether there is nothing more to do for now, or for ever.
    pub fn rests(&self) -> bool {
        matches!(self.phase, Phase::Parked(_) | Phase::Over)
    }

    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// Whether a person is asked something.
    pub fn asks(&self) -> bool {
        match &self.phase {
            Phase::Acting(calls) | Phase::Parked(calls) => {
                calls.iter().any(|call| call.progress == Progress::Waiting)
            }
            _ => false,
        }
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
            (_, Input::Orphaned) => self.orphaned(&mut effects),
            (Phase::Parked(_), Input::Resumed(resolutions)) => {
                self.resume(resolutions, &mut effects);
            }

            (Phase::New, Input::Began { agent, agent_version, attempt }) => {
                effects.push(append(Payload::TurnStarted(TurnStarted {
                    agent,
                    agent_version,
                    attempt,
                })));
                match self.purpose {
                    Purpose::Answer => self.begin(&mut effects),
                    Purpose::Compact => self.compact(Trigger::Manual, String::new(), &mut effects),
                }
            }
            (Phase::Hooking(_), Input::Hooked(hooked)) => self.hooked(*hooked, &mut effects),
            (
                Phase::Opening { attempt },
                Input::StepOpened { message_id, request, metadata, facts },
            ) => {
                let attempt = *attempt;
                self.opened(attempt, message_id, request, metadata, facts, &mut effects);
            }
            (Phase::Opening { attempt: 1 }, Input::Told(told)) => self.told(*told, &mut effects),
            (Phase::Opening { .. }, Input::TooLarge { trigger, why }) => {
                self.compact(trigger, why, &mut effects);
            }
            (Phase::Compacting { trigger, attempt, .. }, input) => {
                let (trigger, attempt) = (*trigger, *attempt);
                self.on_compacting(trigger, attempt, input, &mut effects);
            }

            (Phase::Streaming { .. }, Input::Text(text)) => self.speak(text, false, &mut effects),
            (Phase::Streaming { .. }, Input::Reasoning { text, signature }) => {
                self.speak(text, true, &mut effects);
                self.sign(&signature, &mut effects);
            }
            (Phase::Streaming { .. }, Input::CallStarted { id, tool, read_only }) => {
                let tool_use = ToolUse { read_only, ..ToolUse::new(id, tool) };
                self.call_started(tool_use, &mut effects);
            }
            (Phase::Streaming { .. }, Input::CallCompleted { id, input_json }) => {
                self.call_completed(id, input_json, &mut effects);
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
            (
                Phase::Opening { .. } | Phase::Streaming { .. } | Phase::Hooking(_),
                Input::Fact(fact),
            ) => {
                effects.push(Effect::Append(Box::new(self.in_step(fact))));
            }

            // Something that belongs to a phase that is over: a late chunk, a repeated answer.
            (Phase::New | Phase::Hooking(_) | Phase::Opening { .. } | Phase::Parked(_), _)
            | (Phase::Streaming { .. } | Phase::Resting { .. }, _) => {}
        }
        effects
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
        Effect::Append(Box::new(self.in_step(Event::fact(payload))))
    }

    fn append_call(&self, id: ToolCallId, payload: Payload) -> Effect {
        let fact = Event { tool_call_id: id.to_string(), ..Event::fact(payload) };
        Effect::Append(Box::new(self.in_step(fact)))
    }
}

/// Whether only people and children can move these calls on.
fn is_parked(calls: &[Call]) -> bool {
    let moves = |call: &Call| {
        matches!(call.progress, Progress::Evaluating | Progress::Spawning | Progress::Running)
    };
    calls.iter().any(waits) && !calls.iter().any(moves)
}

/// Whether somebody else has to say something first.
fn waits(call: &Call) -> bool {
    matches!(call.progress, Progress::Waiting | Progress::Delegated)
}

/// An event of the turn as a whole.
fn append(payload: Payload) -> Effect {
    Effect::Append(Box::new(Event::fact(payload)))
}
