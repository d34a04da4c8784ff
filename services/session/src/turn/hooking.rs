//! The part of the loop in which hooks have a say about the turn itself: before the model sees
//! the message, and when it has nothing more to do.

use proto::event::v1::Event as Fact;

use super::{Effect, Phase, Step, Turn};
use crate::{
    hook::{Event, Note},
    ids::MessageId,
    message::{MessageStatus, Metadata},
};

/// How often hooks may send the model on in one turn.
pub const MOST_STOPS: usize = 3;

/// Which hooks there may be. Those that there are not cost nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Hooks {
    pub session_start: bool,
    pub user_prompt_submit: bool,
    pub stop: bool,
}

/// What hooks said.
#[derive(Debug, Clone, PartialEq)]
pub struct Hooked {
    pub event: Event,
    pub facts: Vec<Fact>,
    pub verdict: Verdict,
    /// What the model should know.
    pub context: String,
    /// For what has to be remembered of it.
    pub message_id: MessageId,
    pub metadata: Metadata,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    Continue,
    /// Which hook blocks, and why.
    Block(String),
    /// Nobody could be asked.
    Unavailable(String),
}

/// What hooks are asked about.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Moment {
    SessionStart,
    UserPromptSubmit,
    /// The turn completes with this, if it may.
    Stop {
        message_id: String,
        finish_reason: String,
    },
}

impl Moment {
    fn event(&self) -> Event {
        match self {
            Moment::SessionStart => Event::SessionStart,
            Moment::UserPromptSubmit => Event::UserPromptSubmit,
            Moment::Stop { .. } => Event::Stop,
        }
    }
}

impl Step {
    /// Whether it holds what a hook left in place of an answer.
    pub fn is_note(&self) -> bool {
        Note::of(&self.parts).is_some()
    }
}

impl Turn {
    /// The same turn where these hooks are.
    pub fn with_hooks(self, hooks: Hooks) -> Turn {
        Turn { hooks, ..self }
    }

    /// Goes on to the first model call, if hooks let it.
    pub(super) fn begin(&mut self, effects: &mut Vec<Effect>) {
        match self.hooks.session_start {
            true => self.ask_hooks(Moment::SessionStart, effects),
            false => self.greet(effects),
        }
    }

    fn greet(&mut self, effects: &mut Vec<Effect>) {
        match self.hooks.user_prompt_submit {
            true => self.ask_hooks(Moment::UserPromptSubmit, effects),
            false => self.open(1, effects),
        }
    }

    /// Ends the turn well, if hooks let it.
    pub(super) fn rest(
        &mut self,
        message_id: String,
        finish_reason: String,
        effects: &mut Vec<Effect>,
    ) {
        match self.hooks.stop && self.stops() < MOST_STOPS {
            true => self.ask_hooks(Moment::Stop { message_id, finish_reason }, effects),
            false => self.complete(message_id, finish_reason, effects),
        }
    }

    fn ask_hooks(&mut self, moment: Moment, effects: &mut Vec<Effect>) {
        effects.push(Effect::RunHooks { event: moment.event(), stops: self.stops() });
        self.phase = Phase::Hooking(moment);
    }

    /// How often hooks have sent the model on.
    fn stops(&self) -> usize {
        let notes = self.steps.iter().filter_map(|step| Note::of(&step.parts));
        notes.filter(|note| note.event == Event::Stop).count()
    }

    pub(super) fn hooked(&mut self, hooked: Hooked, effects: &mut Vec<Effect>) {
        let Phase::Hooking(moment) = &self.phase else { return };
        // An answer to what was asked before.
        if moment.event() != hooked.event {
            return;
        }
        let moment = moment.clone();
        let Hooked { event, facts, verdict, context, message_id, metadata } = hooked;
        // They are about the turn and not about one of its steps.
        let facts = facts.into_iter().map(|fact| Fact { step_id: String::new(), ..fact });
        effects.extend(facts.map(|fact| Effect::Append(Box::new(fact))));
        let (blocked, text) = match verdict {
            Verdict::Continue => (false, context),
            Verdict::Block(reason) => (true, reason),
            Verdict::Unavailable(message) => {
                let reason = "tool_host_unavailable";
                return self.end_badly("failed", reason, message, String::new(), true, effects);
            }
        };
        if blocked || !text.is_empty() {
            let note = Note { event, blocked, text: text.clone() };
            let (status, parts) = (MessageStatus::Completed, vec![note.part()]);
            self.steps.push(Step { message_id, status, metadata, parts });
            effects.push(Effect::SaveMessage);
            effects.push(Effect::SavePart(0));
        }
        match (moment, blocked) {
            (Moment::SessionStart, false) => self.greet(effects),
            (Moment::UserPromptSubmit, false) => self.open(1, effects),
            (Moment::Stop { message_id, finish_reason }, false) => {
                self.complete(message_id, finish_reason, effects);
            }
            (Moment::SessionStart | Moment::UserPromptSubmit, true) => {
                self.end_badly("failed", "hook", text, String::new(), false, effects);
            }
            (Moment::Stop { .. }, true) => self.open(1, effects),
        }
    }
}
