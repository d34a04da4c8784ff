//! The part of the loop that runs tools, one by one, in the order in which the model asked.

use proto::event::v1::{Payload, ToolFailed, ToolMetadata, ToolResult};

use super::{Call, Decision, Effect, Input, Outcome, Phase, Progress, Turn};
use crate::{
    ids::ToolCallId,
    message::{Part, ToolState},
};

impl Turn {
    /// The calls of the last step that are not over.
    pub(super) fn calls(&self) -> Vec<Call> {
        let Some(step) = self.steps.last() else { return vec![] };
        let progress = |state: ToolState| match state.is_over() {
            true => Progress::Done,
            false => Progress::Pending,
        };
        step.parts
            .iter()
            .enumerate()
            .filter_map(|(part, content)| match content {
                Part::Tool(tool_use) => Some(Call { part, progress: progress(tool_use.state) }),
                _ => None,
            })
            .collect()
    }

    pub(super) fn act(&mut self, input: Input, effects: &mut Vec<Effect>) {
        match input {
            Input::Evaluated { id, decision, facts, input_json } => {
                for mut fact in facts {
                    fact.tool_call_id = id.to_string();
                    effects.push(Effect::Append(Box::new(self.in_step(fact))));
                }
                if self.progress(id) != Some(Progress::Evaluating) {
                    return;
                }
                match decision {
                    Decision::Allow => {
                        self.rewrite(id, input_json, effects);
                        self.set_progress(id, Progress::Running);
                        effects.push(Effect::Execute(id));
                    }
                    Decision::Deny { reason } => self.refuse(id, reason, "denied", effects),
                    Decision::Unavailable { reason } => {
                        self.refuse(id, reason, "unavailable", effects);
                    }
                }
            }
            Input::ToolFact { id, mut fact } => {
                fact.tool_call_id = id.to_string();
                effects.push(Effect::Append(Box::new(self.in_step(fact))));
            }
            Input::ToolEnded { id, outcome } if self.progress(id) == Some(Progress::Running) => {
                self.settle(id, outcome, effects);
                self.act_on(effects);
            }
            // What the model's stream still had to say about itself.
            Input::Fact(fact) => effects.push(Effect::Append(Box::new(self.in_step(fact)))),
            _ => {}
        }
    }

    /// Starts what may start now, or the next step when everything is done.
    pub(super) fn act_on(&mut self, effects: &mut Vec<Effect>) {
        let Phase::Acting(calls) = &mut self.phase else { return };
        let parts = match self.steps.last() {
            Some(step) => &step.parts,
            None => return,
        };
        if calls.iter().all(|call| call.progress == Progress::Done) {
            return self.open(1, effects);
        }
        let id = |call: &Call| match &parts[call.part] {
            Part::Tool(tool_use) => tool_use.tool_call_id,
            _ => unreachable!("calls are tool parts"),
        };
        for call in calls.iter_mut() {
            match call.progress {
                Progress::Done => {}
                Progress::Pending => {
                    call.progress = Progress::Evaluating;
                    effects.push(Effect::Evaluate(id(call)));
                    return;
                }
                Progress::Evaluating | Progress::Running => return,
            }
        }
    }

    fn refuse(&mut self, id: ToolCallId, text: String, kind: &str, effects: &mut Vec<Effect>) {
        let (kind, metadata) = (kind.to_owned(), ToolMetadata::default());
        self.settle(id, Outcome::Error { text, kind, metadata }, effects);
        self.act_on(effects);
    }

    /// A hook may have put another input in place of the model's.
    fn rewrite(&mut self, id: ToolCallId, input_json: String, effects: &mut Vec<Effect>) {
        if let Some((index, tool_use)) = self.call_mut(id)
            && tool_use.input_json != input_json
        {
            tool_use.input_json = input_json;
            effects.push(Effect::SavePart(index));
        }
    }

    pub(super) fn settle(&mut self, id: ToolCallId, outcome: Outcome, effects: &mut Vec<Effect>) {
        let Some((index, tool_use)) = self.call_mut(id) else { return };
        let payload = match outcome {
            Outcome::Result { data_json, metadata } => {
                tool_use.state = ToolState::OutputAvailable;
                tool_use.output_json = Some(data_json.clone());
                tool_use.metadata = Some(metadata.clone());
                Payload::ToolResult(ToolResult { data_json, metadata: Some(metadata) })
            }
            Outcome::Error { text, kind, metadata } => {
                tool_use.state = ToolState::OutputError;
                tool_use.error_text = Some(text.clone());
                tool_use.metadata = Some(metadata.clone());
                Payload::ToolFailed(ToolFailed { error_text: text, kind, metadata: Some(metadata) })
            }
        };
        effects.push(self.append_call(id, payload));
        effects.push(Effect::SavePart(index));
        self.set_progress(id, Progress::Done);
    }

    fn progress(&self, id: ToolCallId) -> Option<Progress> {
        let Phase::Acting(calls) = &self.phase else { return None };
        let part = self.part_of(id)?;
        calls.iter().find(|call| call.part == part).map(|call| call.progress)
    }

    fn set_progress(&mut self, id: ToolCallId, progress: Progress) {
        let part = self.part_of(id);
        if let Phase::Acting(calls) = &mut self.phase
            && let Some(call) = calls.iter_mut().find(|call| Some(call.part) == part)
        {
            call.progress = progress;
        }
    }

    fn part_of(&self, id: ToolCallId) -> Option<usize> {
        self.steps
            .last()?
            .parts
            .iter()
            .position(|part| matches!(part, Part::Tool(tool_use) if tool_use.tool_call_id == id))
    }
}
