//! The part of the loop in which history becomes a summary, because it no longer fits or
//! because somebody asked for it.

use proto::event::v1::{CompactionFailed, CompactionStarted, Payload, RunStatus, TurnCompleted};

use super::{
    Compaction, Effect, Ending, Failure, Input, Phase, Purpose, Step, Trigger, Turn, append, effect,
};
use crate::message::MessageStatus;

/// What a person can do about a history that does not fit, as in `CompactionFailed.ways_out`.
const WAYS_OUT: [&str; 3] = ["switch_model", "fork", "rewind"];
const WAYS_OUT_IN_WORDS: &str =
    "switch to a model with a larger context, fork from an earlier message, or rewind";

impl Turn {
    /// Asks for a compaction, unless there was one just now: it would not help again.
    pub(super) fn compact(&mut self, trigger: Trigger, why: String, effects: &mut Vec<Effect>) {
        let open = usize::from(self.open_step().is_some());
        if self.steps.iter().rev().nth(open).is_some_and(Step::is_compaction) {
            let why = format!("{why}, even after the history was summarized");
            return self.give_up(trigger, "context_too_large", why, effects);
        }
        // A step that the model will not answer.
        if self.open_step().is_some() {
            self.last_step().status = MessageStatus::Failed;
            effects.push(Effect::SaveMessage);
        }
        self.phase = Phase::Compacting { trigger, attempt: 1, resting: false };
        effects.push(Effect::Compact { trigger, attempt: 1 });
    }

    pub(super) fn on_compacting(
        &mut self,
        trigger: Trigger,
        attempt: u32,
        input: Input,
        effects: &mut Vec<Effect>,
    ) {
        match input {
            Input::CompactionBegan { turn_ids, tokens_before } => {
                effects.push(append(Payload::ContextCompactionStarted(CompactionStarted {
                    trigger: trigger.as_str().to_owned(),
                    turn_ids,
                    tokens_before,
                })));
            }
            // The summarizer's own routing and cost, which belong to no step.
            Input::Fact(mut fact) => {
                fact.step_id.clear();
                effects.push(Effect::Append(Box::new(fact)));
            }
            Input::Summarized { usage, cost_micros } => {
                effects.push(Effect::Spend { usage, cost_micros });
            }
            Input::Compacted(compaction) => self.compacted(*compaction, effects),
            Input::NothingToCompact if trigger == Trigger::Manual => {
                self.complete(String::new(), "stop".to_owned(), effects);
            }
            Input::NothingToCompact => {
                let why = "the message and the prompt alone do not fit into the model's context";
                self.give_up(trigger, "context_too_large", why.to_owned(), effects);
            }
            Input::Failed(failure) => self.not_compacted(trigger, attempt, failure, effects),
            // Only who rests can be rested: the summarizer is not asked beside itself.
            Input::Rested => {
                if let Phase::Compacting { resting: resting @ true, .. } = &mut self.phase {
                    *resting = false;
                    effects.push(Effect::Compact { trigger, attempt });
                }
            }
            _ => {}
        }
    }

    fn compacted(&mut self, compaction: Compaction, effects: &mut Vec<Effect>) {
        let Compaction { message_id, marker, completed, metadata } = compaction;
        self.usage += metadata.usage.unwrap_or_default();
        self.cost_micros += metadata.cost_micros.unwrap_or_default();
        effects.push(append(Payload::ContextCompactionCompleted(completed)));
        self.steps.push(Step {
            message_id,
            status: MessageStatus::Completed,
            metadata,
            parts: vec![marker],
        });
        effects.push(Effect::SaveMessage);
        effects.push(Effect::SavePart(0));
        match self.purpose {
            Purpose::Answer => self.open(1, effects),
            Purpose::Compact => self.complete(message_id.to_string(), "stop".to_owned(), effects),
        }
    }

    fn not_compacted(
        &mut self,
        trigger: Trigger,
        attempt: u32,
        failure: Failure,
        effects: &mut Vec<Effect>,
    ) {
        if failure.transient && attempt < self.limits.attempts {
            let delay = failure.retry_after.unwrap_or_else(|| effect::backoff(attempt));
            effects.push(append(Payload::RunStatus(RunStatus {
                status: "retrying".into(),
                attempt: attempt as i32 + 1,
                delay_ms: delay.as_millis() as i32,
                message: failure.message.clone(),
            })));
            self.phase = Phase::Compacting { trigger, attempt: attempt + 1, resting: true };
            let message = format!("attempt {} comes next: {}", attempt + 1, failure.message);
            effects.push(Effect::Rest { delay, message });
            return;
        }
        let reason = match (trigger, failure.kind.as_str()) {
            // A smaller history would not help.
            (_, "budget") => failure.reason(),
            (Trigger::Manual, kind) if kind != "context_overflow" => failure.reason(),
            _ => "context_too_large",
        };
        let why = format!("the history could not be summarized: {}", failure.message);
        self.give_up(trigger, reason, why, effects);
    }

    /// Leaves no compaction on record that has not ended.
    pub(super) fn stop_compacting(&self, error: &str, effects: &mut Vec<Effect>) {
        if let Phase::Compacting { trigger, .. } = self.phase {
            effects.push(append(Payload::ContextCompactionFailed(CompactionFailed {
                trigger: trigger.as_str().to_owned(),
                error: error.to_owned(),
                ways_out: vec![],
            })));
        }
    }

    fn give_up(
        &mut self,
        trigger: Trigger,
        reason: &str,
        error: String,
        effects: &mut Vec<Effect>,
    ) {
        let message = format!("{error}; {WAYS_OUT_IN_WORDS}");
        effects.push(append(Payload::ContextCompactionFailed(CompactionFailed {
            trigger: trigger.as_str().to_owned(),
            error,
            ways_out: WAYS_OUT.map(str::to_owned).to_vec(),
        })));
        self.end_badly("failed", reason, message, String::new(), true, effects);
    }

    /// Ends the turn well.
    pub(super) fn complete(
        &mut self,
        message_id: String,
        finish_reason: String,
        effects: &mut Vec<Effect>,
    ) {
        effects.push(append(Payload::TurnCompleted(TurnCompleted {
            message_id,
            finish_reason,
            steps: self.model_calls() as i32,
            usage: Some(self.usage),
            cost_micros: self.cost_micros,
        })));
        self.phase = Phase::Over;
        effects.push(Effect::Finish(Ending::Completed));
    }

    /// The steps in which a model was called to answer.
    pub(super) fn model_calls(&self) -> usize {
        let asks = |step: &&Step| !step.is_compaction() && !step.is_note() && !step.is_told();
        self.steps.iter().filter(asks).count()
    }
}
