//! The part of the loop that runs tools: all are evaluated at once, then they run in the order
//! in which the model asked, those that change nothing side by side.

use proto::event::v1::{
    Payload, PermissionRequested, RunStatus, ToolArgs, ToolFailed, ToolMetadata, ToolResult,
};

use super::{
    Asking, By, Call, Decision, Effect, Input, Outcome, Phase, Progress, Resolution, TASK, Turn,
    append, is_parked,
};
use crate::{
    ids::ToolCallId,
    message::{Asked, Part, ToolState, ToolUse},
};

/// How many calls that change nothing run side by side.
const SIDE_BY_SIDE: usize = 8;

impl Turn {
    /// The calls of the last step, as far as what is stored of them tells.
    pub(super) fn calls(&self) -> Vec<Call> {
        let Some(step) = self.steps.last() else { return vec![] };
        step.parts
            .iter()
            .enumerate()
            .filter_map(|(part, content)| match content {
                Part::Tool(tool_use) => Some(Call { part, progress: progress_of(tool_use) }),
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
                        self.set_progress(id, Progress::Allowed(By::Rules));
                    }
                    Decision::Settled => {
                        self.rewrite(id, input_json, effects);
                        self.set_progress(id, Progress::Allowed(By::Hook));
                    }
                    Decision::Ask(asking) => {
                        self.rewrite(id, input_json, effects);
                        self.ask(id, asking, effects);
                    }
                    Decision::Deny { reason } => self.refuse(id, reason, "denied", effects),
                    Decision::Unavailable { reason } => {
                        self.refuse(id, reason, "unavailable", effects);
                    }
                }
                self.act_on(effects);
            }
            Input::Kept { id, fact, put_off }
                if matches!(self.progress(id), Some(Progress::Running | Progress::Spawning)) =>
            {
                effects.extend(fact.map(|fact| Effect::Append(Box::new(self.in_step(*fact)))));
                effects.push(*put_off);
            }
            Input::ToolFact { id, mut fact } => {
                fact.tool_call_id = id.to_string();
                effects.push(Effect::Append(Box::new(self.in_step(fact))));
            }
            Input::ToolEnded { id, outcome }
                if matches!(self.progress(id), Some(Progress::Running | Progress::Spawning)) =>
            {
                self.settle(id, outcome, effects);
                self.act_on(effects);
            }
            Input::Spawned { id, spawn } if self.progress(id) == Some(Progress::Spawning) => {
                self.spawned(id, spawn, effects);
                self.act_on(effects);
            }
            // What the model's stream still had to say about itself.
            Input::Fact(fact) => effects.push(Effect::Append(Box::new(self.in_step(fact)))),
            _ => {}
        }
    }

    /// Starts what may start now, or the next step when everything is done.
    pub(super) fn act_on(&mut self, effects: &mut Vec<Effect>) {
        let (Phase::Acting(calls), Some(step)) = (&mut self.phase, self.steps.last_mut()) else {
            return;
        };
        if calls.iter().all(|call| call.progress == Progress::Done) {
            return self.open(1, effects);
        }
        for call in calls.iter_mut().filter(|call| call.progress == Progress::Pending) {
            call.progress = Progress::Evaluating;
            effects.push(Effect::Evaluate(tool_use(&mut step.parts, call).tool_call_id));
        }
        // A call that changes something runs alone, after all before it and before all behind it.
        let open = calls.iter_mut().filter(|call| call.progress != Progress::Done);
        for (beside, call) in open.enumerate() {
            let tool_use = tool_use(&mut step.parts, call);
            // Children work side by side, whatever each of them does.
            let side_by_side = tool_use.read_only || tool_use.tool == TASK;
            let may_start = match side_by_side {
                true => beside < SIDE_BY_SIDE,
                false => beside == 0,
            };
            if tool_use.tool == TASK && matches!(call.progress, Progress::Allowed(_)) && may_start {
                call.progress = Progress::Spawning;
                effects.push(Effect::Spawn(tool_use.tool_call_id));
            } else if let Progress::Allowed(by) = call.progress
                && may_start
            {
                call.progress = Progress::Running;
                tool_use.running = true;
                effects.push(Effect::SavePart(call.part));
                let (id, approved) = (tool_use.tool_call_id, by != By::Rules);
                effects.push(Effect::Execute { id, approved });
            }
            if !side_by_side {
                break;
            }
        }
        if is_parked(calls) {
            self.park(effects);
        }
    }

    /// Waits for people and children: whatever else could be done is done, or comes after what
    /// they say.
    pub(super) fn park(&mut self, effects: &mut Vec<Effect>) {
        let Phase::Acting(calls) = &mut self.phase else { return };
        let mut calls = std::mem::take(calls);
        for call in &mut calls {
            // What was allowed before the wait is asked about again after it.
            if matches!(call.progress, Progress::Allowed(By::Rules | By::Hook)) {
                call.progress = Progress::Pending;
            }
        }
        let mut questions =
            calls.iter().filter(|call| call.progress == Progress::Waiting).peekable();
        let asks = questions.peek().is_some();
        let only_questions = questions
            .filter_map(|call| self.steps.last()?.parts.get(call.part))
            .all(|part| matches!(part, Part::Tool(tool_use) if tool_use.tool == QUESTION));
        let (status, message) = match (asks, only_questions) {
            (false, _) => ("waiting_on_child", "waits for a subagent"),
            (true, true) => ("waiting_on_user_input", "waits for an answer"),
            (true, false) => ("waiting_on_approval", "waits for an approval"),
        };
        self.phase = Phase::Parked(calls);
        effects.push(append(Payload::RunStatus(RunStatus {
            status: status.into(),
            message: message.into(),
            ..RunStatus::default()
        })));
        effects.push(Effect::Park);
    }

    /// Goes on with what people decided and children returned. What is still open waits again.
    pub(super) fn resume(
        &mut self,
        resolutions: Vec<(ToolCallId, Resolution)>,
        effects: &mut Vec<Effect>,
    ) {
        let Phase::Parked(calls) = &mut self.phase else { return };
        self.phase = Phase::Acting(std::mem::take(calls));
        effects.push(append(Payload::RunStatus(RunStatus {
            status: "acting".into(),
            ..RunStatus::default()
        })));
        for (id, resolution) in resolutions {
            match (self.progress(id), resolution) {
                (Some(Progress::Delegated), Resolution::Returned(outcome)) => {
                    self.settle(id, outcome, effects);
                }
                (Some(Progress::Delegated), _) | (_, Resolution::Returned(_)) => {}
                (Some(Progress::Waiting), resolution) => self.resolve(id, resolution, effects),
                _ => {}
            }
        }
        self.act_on(effects);
    }

    fn resolve(&mut self, id: ToolCallId, resolution: Resolution, effects: &mut Vec<Effect>) {
        let Some((index, tool_use)) = self.call_mut(id) else { return };
        let (asked, error) = match resolution {
            Resolution::Approved => {
                tool_use.asked = Some(Asked::Approved);
                self.set_progress(id, Progress::Allowed(By::Person));
                effects.push(Effect::SavePart(index));
                return;
            }
            Resolution::Answered(answers) => {
                tool_use.asked = Some(Asked::Answered);
                let data_json = serde_json::json!({ "answers": answers }).to_string();
                let metadata = ToolMetadata::default();
                return self.settle(id, Outcome::Result { data_json, metadata }, effects);
            }
            Resolution::Rejected { comment } if comment.is_empty() => {
                (Asked::Rejected, "the user rejected this".to_owned())
            }
            Resolution::Rejected { comment } => {
                (Asked::Rejected, format!("the user rejected this: {comment}"))
            }
            Resolution::Expired => (Asked::Expired, "nobody answered in time".to_owned()),
            Resolution::Cancelled => (Asked::Cancelled, "the question was withdrawn".to_owned()),
            Resolution::Returned(outcome) => return self.settle(id, outcome, effects),
        };
        tool_use.asked = Some(asked);
        self.refuse(id, error, "denied", effects);
    }

    fn ask(&mut self, id: ToolCallId, asking: Box<Asking>, effects: &mut Vec<Effect>) {
        let Some((index, tool_use)) = self.call_mut(id) else { return };
        tool_use.asked = Some(Asked::Open);
        effects.push(Effect::SavePart(index));
        self.set_progress(id, Progress::Waiting);
        if let Some((permission, pattern)) = &asking.rule {
            let (permission, pattern) = (permission.clone(), pattern.clone());
            let requested = PermissionRequested { permission, pattern };
            effects.push(self.append_call(id, Payload::PermissionRequested(requested)));
        }
        let required = Payload::ActionRequired(asking.request.clone());
        if let Effect::Append(mut event) = self.append_call(id, required) {
            event.action_id = id.action().to_string();
            effects.push(Effect::Append(event));
        }
        effects.push(Effect::Ask { id, asking });
    }

    fn refuse(&mut self, id: ToolCallId, text: String, kind: &str, effects: &mut Vec<Effect>) {
        let (kind, metadata) = (kind.to_owned(), ToolMetadata::default());
        self.settle(id, Outcome::Error { text, kind, metadata }, effects);
    }

    /// A hook may have put another input in place of the model's.
    fn rewrite(&mut self, id: ToolCallId, input_json: String, effects: &mut Vec<Effect>) {
        if let Some((index, tool_use)) = self.call_mut(id)
            && tool_use.input_json != input_json
        {
            tool_use.input_json = input_json.clone();
            effects.push(self.append_call(id, Payload::ToolArgs(ToolArgs { input_json })));
            effects.push(Effect::SavePart(index));
        }
    }

    pub(super) fn settle(&mut self, id: ToolCallId, outcome: Outcome, effects: &mut Vec<Effect>) {
        let Some((index, tool_use)) = self.call_mut(id) else { return };
        tool_use.running = false;
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
        let (Phase::Acting(calls) | Phase::Parked(calls)) = &self.phase else { return None };
        let part = self.part_of(id)?;
        calls.iter().find(|call| call.part == part).map(|call| call.progress)
    }

    pub(super) fn set_progress(&mut self, id: ToolCallId, progress: Progress) {
        let part = self.part_of(id);
        if let Phase::Acting(calls) | Phase::Parked(calls) = &mut self.phase
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

/// The tool that asks people.
pub const QUESTION: &str = "question";

fn progress_of(tool_use: &ToolUse) -> Progress {
    match tool_use {
        ToolUse { state, .. } if state.is_over() => Progress::Done,
        ToolUse { running: true, .. } => Progress::Running,
        ToolUse { subagent: Some(_), .. } => Progress::Delegated,
        ToolUse { asked: Some(Asked::Open), .. } => Progress::Waiting,
        ToolUse { asked: Some(Asked::Approved), .. } => Progress::Allowed(By::Person),
        _ => Progress::Pending,
    }
}

fn tool_use<'a>(parts: &'a mut [Part], call: &Call) -> &'a mut ToolUse {
    match &mut parts[call.part] {
        Part::Tool(tool_use) => tool_use,
        _ => unreachable!("calls are tool parts"),
    }
}
