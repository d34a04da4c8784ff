use std::{collections::HashMap, fmt::Write as _};

use expect_test::expect;
use proptest::prelude::*;
use proto::event::v1::{Event, ModelRequested, Payload, SessionCreated, ToolMetadata, Usage};

use super::*;
use crate::message::ToolState;

const LIMITS: Limits = Limits { steps: 4, attempts: 3 };

fn began() -> Input {
    Input::Began { agent: "default".into(), agent_version: 1, attempt: 1 }
}

fn opened(message_id: MessageId) -> Input {
    Input::StepOpened {
        message_id,
        request: ModelRequested::default(),
        metadata: Metadata::default(),
    }
}

fn finished() -> Input {
    Input::Finished(Finished {
        finish_reason: "stop".into(),
        usage: Usage { input: 10, output: 5, ..Usage::default() },
        cost_micros: 7,
        provider: "scripted".into(),
        model: "demo".into(),
    })
}

fn failed(transient: bool) -> Input {
    let (kind, message) = ("transient".into(), "overloaded".into());
    Input::Failed(Failure { kind, message, transient, retry_after: None })
}

fn allowed(id: ToolCallId, input_json: &str) -> Input {
    let input_json = input_json.to_owned();
    Input::Evaluated { id, decision: Decision::Allow, facts: vec![], input_json }
}

fn ended(id: ToolCallId) -> Input {
    let outcome = Outcome::Result { data_json: "1".into(), metadata: ToolMetadata::default() };
    Input::ToolEnded { id, outcome }
}

/// The effects of a turn, one per line, without ids.
fn play(turn: &mut Turn, inputs: Vec<Input>) -> String {
    let mut lines = String::new();
    for input in inputs {
        for effect in turn.step(input) {
            match effect {
                Effect::Append(event) => writeln!(lines, "append {}", event.r#type),
                Effect::OpenStep { message_id, attempt } => {
                    writeln!(lines, "open step, attempt {attempt}, again {}", message_id.is_some())
                }
                Effect::Evaluate(_) => writeln!(lines, "evaluate"),
                Effect::Execute(_) => writeln!(lines, "execute"),
                effect => writeln!(lines, "{effect:?}"),
            }
            .unwrap();
        }
    }
    lines
}

#[test]
fn a_turn_with_a_tool_call() {
    let (call, first, second) = (ToolCallId::new(), MessageId::new(), MessageId::new());
    let mut turn = Turn::new(LIMITS);
    let lines = play(
        &mut turn,
        vec![
            began(),
            opened(first),
            Input::Text("let me ".into()),
            Input::Text("look".into()),
            Input::CallStarted { id: call, tool: "bash".into() },
            Input::CallCompleted { id: call, input_json: "{}".into() },
            finished(),
            allowed(call, "{}"),
            ended(call),
            opened(second),
            Input::Text("done".into()),
            finished(),
        ],
    );
    expect![[r#"
        append turn.started
        open step, attempt 1, again false
        append model.requested
        SaveMessage
        append model.delta
        SavePart(0)
        append model.delta
        SavePart(0)
        SavePart(1)
        append tool.started
        append tool.args
        SavePart(1)
        append model.completed
        SaveMessage
        Spend { usage: Usage { input: 10, output: 5, reasoning: 0, cache_read: 0, cache_write: 0 }, cost_micros: 7 }
        evaluate
        execute
        append tool.result
        SavePart(1)
        open step, attempt 1, again false
        append model.requested
        SaveMessage
        append model.delta
        SavePart(0)
        SavePart(0)
        append model.completed
        SaveMessage
        Spend { usage: Usage { input: 10, output: 5, reasoning: 0, cache_read: 0, cache_write: 0 }, cost_micros: 7 }
        append turn.completed
        Finish(Completed)
    "#]]
    .assert_eq(&lines);
}

#[test]
fn a_model_that_fails_is_asked_again_in_the_same_message() {
    let message = MessageId::new();
    let mut turn = Turn::new(LIMITS);
    let lines = play(
        &mut turn,
        vec![began(), opened(message), failed(true), Input::Rested, opened(message), finished()],
    );
    expect![[r#"
        append turn.started
        open step, attempt 1, again false
        append model.requested
        SaveMessage
        append model.failed
        append run.status
        Rest(500ms)
        open step, attempt 2, again true
        append model.requested
        SaveMessage
        append model.completed
        SaveMessage
        Spend { usage: Usage { input: 10, output: 5, reasoning: 0, cache_read: 0, cache_write: 0 }, cost_micros: 7 }
        append turn.completed
        Finish(Completed)
    "#]]
    .assert_eq(&lines);
}

#[test]
fn a_model_that_fails_after_it_spoke_is_not_asked_again() {
    let mut turn = Turn::new(LIMITS);
    let lines = play(
        &mut turn,
        vec![began(), opened(MessageId::new()), Input::Text("half a".into()), failed(true)],
    );
    expect![[r#"
        append turn.started
        open step, attempt 1, again false
        append model.requested
        SaveMessage
        append model.delta
        SavePart(0)
        append model.failed
        SavePart(0)
        SaveMessage
        append turn.failed
        Finish(Broken { message: "overloaded" })
    "#]]
    .assert_eq(&lines);
}

#[test]
fn a_host_that_restarts_leaves_no_call_open() {
    let call = ToolCallId::new();
    let mut turn = Turn::new(LIMITS);
    let inputs = vec![
        began(),
        opened(MessageId::new()),
        Input::CallStarted { id: call, tool: "bash".into() },
        Input::CallCompleted { id: call, input_json: "{}".into() },
        finished(),
        allowed(call, "{}"),
    ];
    play(&mut turn, inputs);

    let mut restored = Turn::restore(LIMITS, turn.steps().to_vec());
    let lines = play(&mut restored, vec![Input::Stopped(Stop::HostRestart), ended(call)]);

    expect![[r#"
        StopAll
        append tool.failed
        SavePart(0)
        append turn.failed
        Finish(Failed)
    "#]]
    .assert_eq(&lines);
    let tool_use = restored.call(call).unwrap();
    assert_eq!(tool_use.state, ToolState::OutputError);
    assert_eq!(tool_use.error_text.as_deref(), Some("aborted by host restart"));
}

/// What a driver and Postgres would have kept of a turn.
#[derive(Default)]
struct Storage {
    steps: Vec<Step>,
}

impl Storage {
    fn keep(&mut self, turn: &Turn, effect: &Effect) {
        match effect {
            Effect::SaveMessage => {
                let now = turn.steps().last().unwrap();
                match self.steps.last_mut().filter(|step| step.message_id == now.message_id) {
                    Some(step) => {
                        step.status = now.status;
                        step.metadata = now.metadata.clone();
                    }
                    None => self.steps.push(Step { parts: vec![], ..now.clone() }),
                }
            }
            Effect::SavePart(index) => {
                let part = turn.steps().last().unwrap().parts[*index].clone();
                let parts = &mut self.steps.last_mut().unwrap().parts;
                match parts.get_mut(*index) {
                    Some(old) => *old = part,
                    None => parts.push(part),
                }
            }
            _ => {}
        }
    }

    /// Readers add the deltas after what a part's row holds.
    fn read(&mut self, event: &Event) {
        let (index, text) = match event.payload.as_ref() {
            Some(Payload::ModelDelta(delta)) => (delta.part_index, &delta.text),
            Some(Payload::ReasoningDelta(delta)) => (delta.part_index, &delta.text),
            _ => return,
        };
        // The first delta of a part comes with the part, which holds it already.
        if let Some(part) = self.steps.last_mut().unwrap().parts.get_mut(index as usize) {
            part.extend(text);
        }
    }
}

/// A driver that answers what the machine asks for in any order, repeats itself, and
/// says things nobody asked for.
#[derive(Default)]
struct Chaos {
    steps_opened: usize,
    attempts: HashMap<MessageId, usize>,
    executed: Vec<ToolCallId>,
    running: Vec<ToolCallId>,
    evaluating: Vec<ToolCallId>,
    calls: Vec<ToolCallId>,
    message: Option<MessageId>,
    finishes: usize,
}

impl Chaos {
    fn input(&mut self, choice: u8, pick: u8) -> Input {
        let some = |ids: &[ToolCallId]| match ids.is_empty() {
            true => ToolCallId::new(),
            false => ids[pick as usize % ids.len()],
        };
        match choice % 18 {
            0..=2 => opened(self.message.unwrap_or_else(MessageId::new)),
            3 => Input::Text("word ".into()),
            4 => Input::Reasoning { text: "hm ".into(), signature: "s".into() },
            5 | 6 => {
                self.calls.push(ToolCallId::new());
                Input::CallStarted { id: *self.calls.last().unwrap(), tool: "bash".into() }
            }
            7 => Input::CallCompleted { id: some(&self.calls), input_json: "{\"a\":1}".into() },
            8 | 9 => finished(),
            10 => failed(true),
            11 => Input::Rested,
            12 | 13 => allowed(some(&self.evaluating), "{\"b\":2}"),
            14 => ended(some(&self.running)),
            15 => Input::Evaluated {
                id: some(&self.evaluating),
                decision: Decision::Deny { reason: "no".into() },
                facts: vec![],
                input_json: "{}".into(),
            },
            16 => Input::Fact(Event::fact(Payload::SessionCreated(SessionCreated::default()))),
            _ => ended(some(&self.calls)),
        }
    }

    fn watch(&mut self, turn: &Turn, effect: &Effect) {
        match effect {
            Effect::OpenStep { message_id, attempt } => {
                self.message = *message_id;
                // A step whose first attempt failed before it had a message is the same step.
                self.steps_opened += usize::from(message_id.is_none() && *attempt == 1);
                if let Some(id) = message_id {
                    *self.attempts.entry(*id).or_insert(1) += 1;
                }
            }
            Effect::Evaluate(id) => self.evaluating.push(*id),
            Effect::Execute(id) => {
                assert!(self.evaluating.contains(id), "nothing runs that was not allowed");
                assert!(!self.executed.contains(id), "nothing runs twice");
                let open = self
                    .running
                    .iter()
                    .filter(|id| turn.call(**id).is_some_and(|tool_use| !tool_use.state.is_over()));
                assert_eq!(open.count(), 0, "one call at a time");
                self.executed.push(*id);
                self.running.push(*id);
            }
            Effect::Finish(_) => self.finishes += 1,
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Whatever happens in whatever order: what is stored is what the machine knows, at
    /// every moment; and a turn that is stopped leaves nothing open.
    #[test]
    fn every_interleaving_keeps_the_promises(choices: Vec<(u8, u8)>, stop_is_restart: bool) {
        let mut turn = Turn::new(LIMITS);
        let (mut chaos, mut storage) = (Chaos::default(), Storage::default());
        for effect in turn.step(began()) {
            chaos.watch(&turn, &effect);
        }
        for (choice, pick) in choices {
            for effect in turn.step(chaos.input(choice, pick)) {
                storage.keep(&turn, &effect);
                chaos.watch(&turn, &effect);
                if let Effect::Append(event) = &effect {
                    storage.read(event);
                }
            }
            prop_assert_eq!(&storage.steps, turn.steps());
        }
        prop_assert!(chaos.steps_opened <= LIMITS.steps);
        prop_assert!(chaos.attempts.values().all(|tries| *tries <= LIMITS.attempts as usize));

        let stop = match stop_is_restart {
            true => Stop::HostRestart,
            false => Stop::Interrupted { subject: "ann".into(), reason: "enough".into() },
        };
        for effect in turn.step(Input::Stopped(stop)) {
            storage.keep(&turn, &effect);
            chaos.watch(&turn, &effect);
        }
        prop_assert!(turn.is_over());
        prop_assert_eq!(chaos.finishes, 1);
        prop_assert_eq!(&storage.steps, turn.steps());
        for step in turn.steps() {
            prop_assert_ne!(step.status, MessageStatus::Streaming);
            for part in &step.parts {
                match part {
                    Part::Tool(tool_use) => prop_assert!(tool_use.state.is_over()),
                    Part::Text(text) | Part::Reasoning(text) => prop_assert!(!text.streaming),
                    _ => {}
                }
            }
        }
        prop_assert_eq!(turn.step(Input::Text("late".into())), vec![]);
    }
}
