//! A turn that runs again: what is recorded of it stands in for tools, hooks and models. The loop
//! is the same, and so are its moves; only who answers is another.

use std::collections::HashMap;

use proto::event::v1::{CompactionCompleted, ModelFailed, Payload};

use super::{Driver, Inputs, own};
use crate::{
    compaction,
    error::Result,
    hook::{self, Note},
    host::Host,
    ids::{MessageId, ToolCallId},
    message::{MessageStatus, Metadata, Part, Replay, ToolState, ToolUse},
    offer::Offer,
    store::{
        self,
        events::PAGE_BYTES,
        evidence::Selection,
        messages::{self, split},
    },
    turn::{
        Compaction, Decision, Failure, Finished, Hooked, Hooks, Input, Outcome, Step, Trigger,
        Verdict,
    },
};

/// What the log tells beyond what the messages hold.
const NAMES: [&str; 3] = ["tool.args", "tool.failed", "model.failed"];

/// How many events are read at once.
const PAGE: i64 = 1000;

/// What is recorded of a turn.
#[derive(Debug)]
pub struct Recorded {
    replay: Replay,
    /// On which it was submitted.
    pub day: String,
    steps: Vec<Step>,
    /// What the model asked for, where a hook put something else in its place.
    asked: HashMap<String, String>,
    /// How calls failed.
    kinds: HashMap<String, String>,
    /// How models failed, by message.
    failures: HashMap<String, Failure>,
}

impl Recorded {
    pub async fn load(host: &Host, replay: &Replay) -> Result<Recorded> {
        let Replay { session_id, turn_id, .. } = *replay;
        let mut db = host.db.acquire().await?;
        let stored = messages::past(&mut db, session_id, turn_id, false).await?;
        let day = stored.first().map(|message| super::day(message.created_at));
        let (_, steps) = split(stored, turn_id)?;
        let mut recorded = Recorded {
            replay: replay.clone(),
            day: day.unwrap_or_default(),
            steps,
            asked: HashMap::new(),
            kinds: HashMap::new(),
            failures: HashMap::new(),
        };
        let selection =
            Selection { session_id, whole: false, turns: vec![turn_id], task_id: String::new() };
        let mut after = 0;
        loop {
            let page = store::evidence::rows(
                &mut *db,
                &selection,
                after,
                i64::MAX,
                &NAMES,
                PAGE,
                PAGE_BYTES,
            );
            let page = page.await?;
            let Some(last) = page.last() else { return Ok(recorded) };
            after = last.seq;
            for row in page {
                let event = row.into_event()?;
                recorded.note(event.tool_call_id, event.payload);
            }
        }
    }

    fn note(&mut self, call: String, payload: Option<Payload>) {
        match payload {
            Some(Payload::ToolArgs(args)) => {
                self.asked.entry(call).or_insert(args.input_json);
            }
            Some(Payload::ToolFailed(failed)) => drop(self.kinds.insert(call, failed.kind)),
            Some(Payload::ModelFailed(failed)) if !failed.will_retry => {
                let ModelFailed { message_id, kind, message, .. } = failed;
                let failure = Failure { kind, message, transient: false, retry_after: None };
                self.failures.insert(message_id, failure);
            }
            _ => {}
        }
    }

    /// The hooks that left something.
    pub fn hooks(&self) -> Hooks {
        let left = |event| {
            self.steps
                .iter()
                .filter_map(|step| Note::of(&step.parts))
                .any(|note| note.event == event)
        };
        Hooks {
            session_start: left(hook::Event::SessionStart),
            user_prompt_submit: left(hook::Event::UserPromptSubmit),
            stop: left(hook::Event::Stop),
        }
    }

    pub fn stands_in_for_tools(&self) -> bool {
        self.replay.recorded_tools
    }

    pub fn stands_in_for_models(&self) -> bool {
        self.replay.recorded_model
    }

    /// What the model said in the step with this index, and how that ended.
    fn answer(&self, index: usize, offer: &Offer) -> Vec<Input> {
        let Some(step) = self.steps.iter().filter(|step| answers(step)).nth(index) else {
            return vec![Input::Failed(Failure {
                kind: "invalid".into(),
                message: "the record has no further answer".into(),
                transient: false,
                retry_after: None,
            })];
        };
        let mut said = Vec::new();
        for part in &step.parts {
            match part {
                Part::Text(text) => said.push(Input::Text(text.text.clone())),
                Part::Reasoning(text) => said.push(Input::Reasoning {
                    text: text.text.clone(),
                    signature: text.signature.clone(),
                }),
                Part::Tool(recorded) => {
                    let (id, tool) = (ToolCallId::new(), recorded.tool.clone());
                    let read_only = offer.read_only.contains(&tool);
                    said.push(Input::CallStarted { id, tool, read_only });
                    let input_json = self.input(recorded).to_owned();
                    if !input_json.is_empty() {
                        said.push(Input::CallCompleted { id, input_json });
                    }
                }
                Part::File(_) | Part::Data { .. } => {}
            }
        }
        said.push(match step.status {
            MessageStatus::Completed => Input::Finished(finished(&step.metadata)),
            MessageStatus::Streaming | MessageStatus::Failed | MessageStatus::Cancelled => {
                let failure = self.failures.get(&step.message_id.to_string()).cloned();
                Input::Failed(failure.unwrap_or_else(|| Failure {
                    kind: "cut".into(),
                    message: "the recorded answer ends here".into(),
                    transient: false,
                    retry_after: None,
                }))
            }
        });
        said
    }

    /// What the model asked a tool for.
    fn input<'a>(&'a self, recorded: &'a ToolUse) -> &'a str {
        let asked = self.asked.get(&recorded.tool_call_id.to_string());
        asked.map_or(recorded.input_json.as_str(), String::as_str)
    }

    /// The recorded call in this place, if the model asks for the same now.
    fn call(&self, step: usize, place: usize, now: &ToolUse) -> Option<&ToolUse> {
        let step = self.steps.iter().filter(|step| answers(step)).nth(step)?;
        let recorded = calls(step).nth(place)?;
        // Either as the model asked, or as it was when it was evaluated.
        let same = [self.input(recorded), &recorded.input_json].contains(&now.input_json.as_str());
        (recorded.tool == now.tool && same).then_some(recorded)
    }

    fn outcome(&self, recorded: &ToolUse) -> Outcome {
        let metadata = recorded.metadata.clone().unwrap_or_default();
        match (recorded.state, &recorded.output_json) {
            (ToolState::OutputAvailable, Some(data_json)) => {
                Outcome::Result { data_json: data_json.clone(), metadata }
            }
            _ => Outcome::Error {
                text: recorded.error_text.clone().unwrap_or_default(),
                kind: self
                    .kinds
                    .get(&recorded.tool_call_id.to_string())
                    .cloned()
                    .unwrap_or_default(),
                metadata,
            },
        }
    }
}

/// Whether a step is a model's answer.
fn answers(step: &Step) -> bool {
    !step.is_compaction() && !step.is_note()
}

fn calls(step: &Step) -> impl Iterator<Item = &ToolUse> {
    step.parts.iter().filter_map(|part| match part {
        Part::Tool(tool_use) => Some(tool_use),
        _ => None,
    })
}

/// Nobody was asked, so it costs nothing.
fn finished(metadata: &Metadata) -> Finished {
    let model = metadata.model.clone().unwrap_or_default();
    let (provider, model) = model.split_once('/').unwrap_or(("", &model));
    Finished {
        finish_reason: metadata.finish_reason.clone().unwrap_or_default(),
        usage: metadata.usage.unwrap_or_default(),
        cost_micros: 0,
        provider: provider.to_owned(),
        model: model.to_owned(),
    }
}

impl Driver {
    fn tell_again(&mut self, said: Vec<Input>, inputs: &Inputs) {
        let inputs = inputs.clone();
        self.tasks.spawn(async move {
            let _ = inputs.send(said).await;
        });
    }

    /// Has the record answer in place of the model. False: the model is to be asked.
    pub(super) fn answer_again(&mut self, offer: &Offer, inputs: &Inputs) -> bool {
        let recorded = self.recorded.clone().filter(|record| record.stands_in_for_models());
        let Some(recorded) = recorded else { return false };
        let steps = self.turn.steps().iter().filter(|step| answers(step)).count();
        let said = recorded.answer(steps.saturating_sub(1), offer);
        self.tell_again(said, inputs);
        true
    }

    /// Has the record summarize in place of a model. False: one is to be asked.
    pub(super) fn compact_again(&mut self, trigger: Trigger, inputs: &Inputs) -> bool {
        let recorded = self.recorded.clone().filter(|record| record.stands_in_for_models());
        let Some(recorded) = recorded else { return false };
        let done = self.turn.steps().iter().filter(|step| step.is_compaction()).count();
        let mut markers = recorded.steps.iter().filter(|step| step.is_compaction());
        let said = match markers.nth(done) {
            Some(step) => {
                let message_id = MessageId::new();
                let completed = CompactionCompleted {
                    trigger: trigger.as_str().to_owned(),
                    message_id: message_id.to_string(),
                    ..CompactionCompleted::default()
                };
                let (marker, metadata) = (step.parts[0].clone(), step.metadata.clone());
                let metadata = Metadata { cost_micros: Some(0), ..metadata };
                debug_assert_eq!(marker.kind(), compaction::KIND);
                let compaction = Compaction { message_id, marker, completed, metadata };
                Input::Compacted(Box::new(compaction))
            }
            None => Input::NothingToCompact,
        };
        self.tell_again(vec![said], inputs);
        true
    }

    /// Has the record speak for the hooks. False: they are to be asked.
    pub(super) fn hook_again(&mut self, event: hook::Event, inputs: &Inputs) -> bool {
        let recorded = self.recorded.clone().filter(|record| record.stands_in_for_tools());
        let Some(recorded) = recorded else { return false };
        let of = |steps: &[Step]| -> Vec<Note> {
            let notes = steps.iter().filter_map(|step| Note::of(&step.parts));
            notes.filter(|note| note.event == event).collect()
        };
        let done = of(self.turn.steps()).len();
        let note = of(&recorded.steps).into_iter().nth(done);
        let (verdict, context) = match note {
            Some(Note { blocked: true, text, .. }) => (Verdict::Block(text), String::new()),
            Some(Note { text, .. }) => (Verdict::Continue, text),
            None => (Verdict::Continue, String::new()),
        };
        let metadata = Metadata { agent: Some(self.agent.id.clone()), ..Metadata::default() };
        let (message_id, facts) = (MessageId::new(), vec![]);
        let hooked = Hooked { event, facts, verdict, context, message_id, metadata };
        self.tell_again(vec![Input::Hooked(Box::new(hooked))], inputs);
        true
    }

    /// Has the record say whether a call may run: it did what is recorded. False: somebody is to be
    /// asked.
    pub(super) fn evaluate_again(&mut self, id: ToolCallId, inputs: &Inputs) -> bool {
        let recorded = self.recorded.clone().filter(|record| record.stands_in_for_tools());
        let (Some(recorded), Some(call)) = (recorded, self.turn.call(id)) else { return false };
        let input_json = match self.recorded_call(&recorded, id) {
            Some(recorded) => recorded.input_json.clone(),
            None => call.input_json.clone(),
        };
        let decision = Decision::Allow;
        self.tell_again(vec![Input::Evaluated { id, decision, facts: vec![], input_json }], inputs);
        true
    }

    /// Has the record say what a call came to. False: it is to be run. What the session service
    /// keeps outlives a turn, so its own tools are never run again.
    pub(super) async fn execute_again(&mut self, id: ToolCallId, inputs: &Inputs) -> bool {
        let (Some(recorded), Some(call)) = (self.recorded.clone(), self.turn.call(id)) else {
            return false;
        };
        let tool = call.tool.clone();
        if !recorded.stands_in_for_tools() && !own::hosts(&self.host, &self.caller, &tool).await {
            return false;
        }
        let outcome = match self.recorded_call(&recorded, id) {
            Some(call) => recorded.outcome(call),
            None => Outcome::Error {
                text: "the record has no such call, and no tool is run".into(),
                kind: "unavailable".into(),
                metadata: Default::default(),
            },
        };
        self.tell_again(vec![Input::ToolEnded { id, outcome }], inputs);
        true
    }

    fn recorded_call<'a>(&self, recorded: &'a Recorded, id: ToolCallId) -> Option<&'a ToolUse> {
        let steps = self.turn.steps();
        let index = steps.iter().filter(|step| answers(step)).count().checked_sub(1)?;
        let place = calls(steps.last()?).position(|call| call.tool_call_id == id)?;
        recorded.call(index, place, self.turn.call(id)?)
    }
}
