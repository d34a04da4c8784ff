//! One turn of the universal loop, as a pure machine: no I/O, no clock, no randomness.
//!
//! The driver feeds it what happened and does what it asks. Everything it knows is in
//! its steps, which are stored as messages and parts, so that a turn can be rebuilt on any
//! replica after any restart.

mod input;
mod effect;
mod speaking;
mod acting;
mod ending;
#[cfg(test)]
mod tests;

use proto::event::v1::{Event, Payload, TurnStarted, Usage};

use crate::{
    ids::{MessageId, StepId, ToolCallId},
    message::{MessageStatus, Metadata, Part, ToolUse},
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
            turn.usage += step.metadata.usage.unwrap_or_default();
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
            (Phase::Opening { .. } | Phase::Streaming { .. }, Input::Fact(fact)) => {
                effects.push(Effect::Append(Box::new(self.in_step(fact))));
            }

            // Something that belongs to a phase that is over: a late chunk, a repeated answer.
            (Phase::New | Phase::Opening { .. }, _)
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

/// An event of the turn as a whole.
fn append(payload: Payload) -> Effect {
    Effect::Append(Box::new(Event::fact(payload)))
}
