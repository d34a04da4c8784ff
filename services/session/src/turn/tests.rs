use std::{collections::HashMap, fmt::Write as _};

use expect_test::expect;
use proptest::prelude::*;
use proto::event::v1::{
    ActionRequired, CompactionCompleted, Event, HookStarted, ModelRequested, Payload,
    SessionCreated, SnapshotUpdated, ToolMetadata, Usage,
};

use super::{hooking::MOST_STOPS, *};
use crate::{
    hook::{self, Note},
    ids::{SessionId, SubagentId},
    message::ToolState,
    subagent,
    testing::spawn,
};

const LIMITS: Limits = Limits { steps: 4, attempts: 3, tokens: None };

fn answering() -> Turn {
    Turn::new(LIMITS, Purpose::Answer)
}

fn began() -> Input {
    Input::Began { agent: "default".into(), agent_version: 1, attempt: 1 }
}

fn opened(message_id: MessageId) -> Input {
    Input::StepOpened {
        message_id,
        request: ModelRequested::default(),
        metadata: Metadata::default(),
        facts: vec![],
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

fn started(id: ToolCallId, read_only: bool) -> Input {
    Input::CallStarted { id, tool: "bash".into(), read_only }
}

fn delegating(id: ToolCallId) -> Input {
    Input::CallStarted { id, tool: TASK.into(), read_only: false }
}

fn spawned(id: ToolCallId, background: bool) -> Input {
    let spawn = spawn(SessionId::from_uuid(id.uuid()), id, background);
    Input::Spawned { id, spawn: Box::new(spawn) }
}

fn told(id: ToolCallId, status: &str) -> Input {
    let subagent_id = id.subagent();
    Input::Told(Box::new(Told {
        note: subagent::Note {
            subagent_id,
            session_id: subagent_id.session(),
            agent: "explore".into(),
            status: status.into(),
            output: "found".into(),
            reason: String::new(),
            transcript: None,
        },
        ended: Default::default(),
        tool_call_id: id,
        metadata: Metadata::default(),
    }))
}

fn returned() -> Resolution {
    let (data_json, metadata) = (r#"{"output":"found"}"#.into(), ToolMetadata::default());
    Resolution::Returned(Outcome::Result { data_json, metadata })
}

fn asked(id: ToolCallId) -> Input {
    let request = ActionRequired { kind: "approval".into(), ..ActionRequired::default() };
    let decision = Decision::Ask(Box::new(Asking { request, rule: None }));
    Input::Evaluated { id, decision, facts: vec![], input_json: "{}".into() }
}

fn too_large() -> Input {
    Input::TooLarge { trigger: Trigger::Auto, why: "too much".into() }
}

fn compaction_began() -> Input {
    Input::CompactionBegan { turn_ids: vec![], tokens_before: 100 }
}

fn compacted() -> Input {
    let data = serde_json::json!({"summary": "s", "tail_start_id": null, "auto": true, "summary_tokens": 1});
    let usage = Usage { input: 20, output: 2, ..Usage::default() };
    Input::Compacted(Box::new(Compaction {
        message_id: MessageId::new(),
        marker: Part::Data { kind: compaction::KIND.into(), data },
        completed: CompactionCompleted::default(),
        metadata: Metadata { usage: Some(usage), cost_micros: Some(3), ..Metadata::default() },
    }))
}

fn overflow() -> Input {
    let (kind, message) = ("context_overflow".into(), "too long".into());
    Input::Failed(Failure { kind, message, transient: false, retry_after: None })
}

fn allowed(id: ToolCallId, input_json: &str) -> Input {
    let input_json = input_json.to_owned();
    Input::Evaluated { id, decision: Decision::Allow, facts: vec![], input_json }
}

fn settled(id: ToolCallId) -> Input {
    let (decision, input_json) = (Decision::Settled, "{}".to_owned());
    Input::Evaluated { id, decision, facts: vec![], input_json }
}

fn hooked(event: hook::Event, verdict: Verdict, context: &str) -> Input {
    let started = HookStarted { hook_id: "guard".into(), ..HookStarted::default() };
    Input::Hooked(Box::new(Hooked {
        event,
        facts: vec![Event::fact(Payload::HookStarted(started))],
        verdict,
        context: context.to_owned(),
        message_id: MessageId::new(),
        metadata: Metadata::default(),
    }))
}

const ALL_HOOKS: Hooks = Hooks { session_start: true, user_prompt_submit: true, stop: true };

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
                Effect::Execute { approved, .. } => writeln!(lines, "execute, approved {approved}"),
                Effect::Ask { .. } => writeln!(lines, "ask"),
                Effect::Spawn(_) => writeln!(lines, "spawn"),
                Effect::Delegate(_) => writeln!(lines, "delegate"),
                Effect::Tell(_) => writeln!(lines, "tell"),
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
    let mut turn = answering();
    let lines = play(
        &mut turn,
        vec![
            began(),
            opened(first),
            Input::Text("let me ".into()),
            Input::Text("look".into()),
            started(call, false),
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
        SavePart(1)
        execute, approved false
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
    let mut turn = answering();
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
        Rest { delay: 500ms, message: "attempt 2 comes next: overloaded" }
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
    let mut turn = answering();
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
fn a_budget_is_a_limit_and_no_fault_of_the_provider() {
    for (kind, reason) in [("budget", "limit"), ("auth", "provider_error")] {
        let mut turn = answering();
        play(&mut turn, vec![began(), opened(MessageId::new())]);
        let message = "have the budget raised".to_owned();
        let kind = kind.to_owned();
        let failure = Failure { kind, message, transient: false, retry_after: None };
        let failed =
            turn.step(Input::Failed(failure)).into_iter().find_map(|effect| match effect {
                Effect::Append(event) => match event.payload {
                    Some(Payload::TurnFailed(failed)) => Some((failed.reason, failed.message)),
                    _ => None,
                },
                _ => None,
            });
        assert_eq!(failed.unwrap(), (reason.to_owned(), "have the budget raised".to_owned()));
    }
}

#[test]
fn a_host_that_restarts_leaves_no_call_open() {
    let call = ToolCallId::new();
    let mut turn = answering();
    let inputs = vec![
        began(),
        opened(MessageId::new()),
        started(call, false),
        Input::CallCompleted { id: call, input_json: "{}".into() },
        finished(),
        allowed(call, "{}"),
    ];
    play(&mut turn, inputs);

    let mut restored = Turn::restore(LIMITS, Purpose::Answer, turn.steps().to_vec());
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

#[test]
fn a_call_that_was_put_off_runs_when_its_files_are_kept() {
    let call = ToolCallId::new();
    let mut turn = answering();
    let inputs = vec![
        began(),
        opened(MessageId::new()),
        started(call, false),
        Input::CallCompleted { id: call, input_json: "{}".into() },
        finished(),
        allowed(call, "{}"),
    ];
    play(&mut turn, inputs);
    let kept = || {
        let fact = Event::fact(Payload::SnapshotUpdated(SnapshotUpdated::default()));
        let put_off = Box::new(Effect::Execute { id: call, approved: false });
        Input::Kept { id: call, fact: Some(Box::new(fact)), put_off }
    };
    let lines = play(&mut turn, vec![kept(), ended(call), kept()]);

    // Kept too late, it runs no more.
    expect![[r#"
        append snapshot.updated
        execute, approved false
        append tool.result
        SavePart(0)
        open step, attempt 1, again false
    "#]]
    .assert_eq(&lines);
}

#[test]
fn a_turn_that_asks_waits_and_goes_on_with_exactly_what_was_approved() {
    let (read, write, later) = (ToolCallId::new(), ToolCallId::new(), ToolCallId::new());
    let completed = |id| Input::CallCompleted { id, input_json: "{}".into() };
    let mut turn = answering();
    let inputs = vec![
        began(),
        opened(MessageId::new()),
        started(read, true),
        completed(read),
        started(write, false),
        completed(write),
        started(later, false),
        completed(later),
        finished(),
        asked(write),
        allowed(later, "{}"),
        allowed(read, "{}"),
        ended(read),
    ];
    let lines = play(&mut turn, inputs);
    let lines = lines.split_once("Spend").unwrap().1.split_once('\n').unwrap().1;
    expect![[r#"
        evaluate
        evaluate
        evaluate
        SavePart(1)
        append action.required
        ask
        SavePart(0)
        execute, approved false
        append tool.result
        SavePart(0)
        append run.status
        Park
    "#]]
    .assert_eq(lines);
    assert!(turn.rests() && turn.asks());

    let mut restored = Turn::restore(LIMITS, Purpose::Answer, turn.steps().to_vec());
    assert_eq!(restored, turn);
    let decided = Input::Resumed(vec![(write, Resolution::Approved)]);
    let lines = play(&mut restored, vec![decided, ended(write), allowed(later, "{}")]);
    expect![[r#"
        append run.status
        SavePart(1)
        evaluate
        SavePart(1)
        execute, approved true
        append tool.result
        SavePart(1)
        SavePart(2)
        execute, approved false
    "#]]
    .assert_eq(&lines);
}

#[test]
fn a_prompt_that_does_not_fit_is_compacted_first() {
    let mut turn = answering();
    let lines = play(
        &mut turn,
        vec![
            began(),
            too_large(),
            compaction_began(),
            failed(true),
            Input::Rested,
            Input::Summarized { usage: Usage::default(), cost_micros: 3 },
            compacted(),
            opened(MessageId::new()),
            finished(),
        ],
    );
    expect![[r#"
        append turn.started
        open step, attempt 1, again false
        Compact { trigger: Auto, attempt: 1 }
        append context.compaction.started
        append run.status
        Rest { delay: 500ms, message: "attempt 2 comes next: overloaded" }
        Compact { trigger: Auto, attempt: 2 }
        Spend { usage: Usage { input: 0, output: 0, reasoning: 0, cache_read: 0, cache_write: 0 }, cost_micros: 3 }
        append context.compaction.completed
        SaveMessage
        SavePart(0)
        open step, attempt 1, again false
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
fn a_host_that_dies_beside_an_open_question_leaves_it_open() {
    let (read, write) = (ToolCallId::new(), ToolCallId::new());
    let completed = |id| Input::CallCompleted { id, input_json: "{}".into() };
    let mut turn = answering();
    let inputs = vec![
        began(),
        opened(MessageId::new()),
        started(read, true),
        completed(read),
        started(write, false),
        completed(write),
        finished(),
        allowed(read, "{}"),
        asked(write),
    ];
    play(&mut turn, inputs);
    let mut restored = Turn::restore(LIMITS, Purpose::Answer, turn.steps().to_vec());
    let lines = play(&mut restored, vec![Input::Orphaned]);
    expect![[r#"
        append tool.failed
        SavePart(0)
        append run.status
        Park
    "#]]
    .assert_eq(&lines);
    assert_eq!(restored.call(read).unwrap().error_text.as_deref(), Some("aborted by host restart"));
    let comment = "not today".to_owned();
    let lines =
        play(&mut restored, vec![Input::Resumed(vec![(write, Resolution::Rejected { comment })])]);
    expect![[r#"
        append run.status
        append tool.failed
        SavePart(1)
        open step, attempt 1, again false
    "#]]
    .assert_eq(&lines);
    let rejected = restored.call(write).unwrap();
    assert_eq!(rejected.error_text.as_deref(), Some("the user rejected this: not today"));
}

#[test]
fn a_prompt_that_still_does_not_fit_ends_the_turn_with_ways_out() {
    let mut turn = answering();
    let lines = play(&mut turn, vec![began(), too_large(), compacted(), too_large()]);
    expect![[r#"
        append turn.started
        open step, attempt 1, again false
        Compact { trigger: Auto, attempt: 1 }
        append context.compaction.completed
        SaveMessage
        SavePart(0)
        open step, attempt 1, again false
        append context.compaction.failed
        append turn.failed
        Finish(Broken { message: "too much, even after the history was summarized; switch to a model with a larger context, fork from an earlier message, or rewind" })
    "#]]
    .assert_eq(&lines);
}

#[test]
fn a_provider_that_says_it_is_too_much_is_asked_once_more() {
    let mut turn = answering();
    let again = vec![
        began(),
        opened(MessageId::new()),
        overflow(),
        compacted(),
        opened(MessageId::new()),
        overflow(),
    ];
    let lines = play(&mut turn, again);
    expect![[r#"
        append turn.started
        open step, attempt 1, again false
        append model.requested
        SaveMessage
        append model.failed
        SaveMessage
        Compact { trigger: Overflow, attempt: 1 }
        append context.compaction.completed
        SaveMessage
        SavePart(0)
        open step, attempt 1, again false
        append model.requested
        SaveMessage
        append model.failed
        append context.compaction.failed
        SaveMessage
        append turn.failed
        Finish(Broken { message: "too long, even after the history was summarized; switch to a model with a larger context, fork from an earlier message, or rewind" })
    "#]]
    .assert_eq(&lines);
}

#[test]
fn a_turn_that_only_compacts_asks_no_model_for_an_answer() {
    let mut turn = Turn::new(LIMITS, Purpose::Compact);
    let lines = play(&mut turn, vec![began(), compaction_began(), compacted()]);
    expect![[r#"
        append turn.started
        Compact { trigger: Manual, attempt: 1 }
        append context.compaction.started
        append context.compaction.completed
        SaveMessage
        SavePart(0)
        append turn.completed
        Finish(Completed)
    "#]]
    .assert_eq(&lines);

    let mut turn = Turn::new(LIMITS, Purpose::Compact);
    let lines = play(&mut turn, vec![began(), Input::NothingToCompact]);
    expect![[r#"
        append turn.started
        Compact { trigger: Manual, attempt: 1 }
        append turn.completed
        Finish(Completed)
    "#]]
    .assert_eq(&lines);
}

#[test]
fn a_turn_that_used_up_its_tokens_ends() {
    let call = ToolCallId::new();
    let mut turn = Turn::new(Limits { tokens: Some(15), ..LIMITS }, Purpose::Answer);
    let inputs = vec![
        began(),
        opened(MessageId::new()),
        started(call, false),
        Input::CallCompleted { id: call, input_json: "{}".into() },
        finished(),
        allowed(call, "{}"),
    ];
    play(&mut turn, inputs);
    expect![[r#"
        append tool.result
        SavePart(0)
        append turn.failed
        Finish(Broken { message: "the turn reached its limit of 15 tokens; raise the agent's limit or ask for less at once" })
    "#]]
    .assert_eq(&play(&mut turn, vec![ended(call)]));
}

#[test]
fn hooks_have_a_say_before_the_first_step_and_after_the_last() {
    let mut turn = answering().with_hooks(ALL_HOOKS);
    let block = || Verdict::Block("the hook guard blocks it: not done".into());
    let lines = play(
        &mut turn,
        vec![
            began(),
            hooked(hook::Event::SessionStart, Verdict::Continue, "be kind"),
            // An answer that came twice.
            hooked(hook::Event::SessionStart, Verdict::Continue, "be kind"),
            hooked(hook::Event::UserPromptSubmit, Verdict::Continue, ""),
            opened(MessageId::new()),
            finished(),
            hooked(hook::Event::Stop, block(), ""),
            opened(MessageId::new()),
            finished(),
            hooked(hook::Event::Stop, Verdict::Continue, ""),
        ],
    );
    expect![[r#"
        append turn.started
        RunHooks { event: SessionStart, stops: 0 }
        append hook.started
        SaveMessage
        SavePart(0)
        RunHooks { event: UserPromptSubmit, stops: 0 }
        append hook.started
        open step, attempt 1, again false
        append model.requested
        SaveMessage
        append model.completed
        SaveMessage
        Spend { usage: Usage { input: 10, output: 5, reasoning: 0, cache_read: 0, cache_write: 0 }, cost_micros: 7 }
        RunHooks { event: Stop, stops: 0 }
        append hook.started
        SaveMessage
        SavePart(0)
        open step, attempt 1, again false
        append model.requested
        SaveMessage
        append model.completed
        SaveMessage
        Spend { usage: Usage { input: 10, output: 5, reasoning: 0, cache_read: 0, cache_write: 0 }, cost_micros: 7 }
        RunHooks { event: Stop, stops: 1 }
        append hook.started
        append turn.completed
        Finish(Completed)
    "#]].assert_eq(&lines);
    let notes: Vec<_> = turn.steps().iter().filter_map(|step| Note::of(&step.parts)).collect();
    assert_eq!(
        notes.iter().map(Note::told).collect::<Vec<_>>(),
        ["A hook says:\n\nbe kind", "You cannot stop yet: the hook guard blocks it: not done",]
    );
}

#[test]
fn a_message_that_a_hook_blocks_is_seen_by_no_model() {
    let mut turn = answering().with_hooks(ALL_HOOKS);
    let lines = play(
        &mut turn,
        vec![
            began(),
            hooked(hook::Event::SessionStart, Verdict::Continue, ""),
            hooked(hook::Event::UserPromptSubmit, Verdict::Block("secrets".into()), ""),
        ],
    );
    expect![[r#"
        append turn.started
        RunHooks { event: SessionStart, stops: 0 }
        append hook.started
        RunHooks { event: UserPromptSubmit, stops: 0 }
        append hook.started
        SaveMessage
        SavePart(0)
        append turn.failed
        Finish(Failed)
    "#]]
    .assert_eq(&lines);
    assert!(Note::of(&turn.steps()[0].parts).unwrap().hides_the_message());
}

#[test]
fn hooks_that_cannot_be_asked_end_the_turn() {
    let mut turn = answering().with_hooks(Hooks { stop: true, ..Hooks::default() });
    let nobody = Verdict::Unavailable("nobody is there".into());
    let inputs =
        vec![began(), opened(MessageId::new()), finished(), hooked(hook::Event::Stop, nobody, "")];
    let lines = play(&mut turn, inputs);
    let lines = lines.split_once("Spend").unwrap().1.split_once('\n').unwrap().1;
    expect![[r#"
        RunHooks { event: Stop, stops: 0 }
        append hook.started
        append turn.failed
        Finish(Broken { message: "nobody is there" })
    "#]]
    .assert_eq(lines);
}

#[test]
fn hooks_send_the_model_on_only_so_often() {
    let limits = Limits { steps: 10, ..LIMITS };
    let hooks = Hooks { stop: true, ..Hooks::default() };
    let mut turn = Turn::new(limits, Purpose::Answer).with_hooks(hooks);
    turn.step(began());
    for round in 0..=MOST_STOPS {
        assert!(!turn.is_over(), "round {round}");
        play(&mut turn, vec![opened(MessageId::new()), finished()]);
        let block = Verdict::Block("go on".into());
        turn.step(hooked(hook::Event::Stop, block, ""));
    }
    assert!(turn.is_over());
    assert_eq!(turn.model_calls(), MOST_STOPS + 1);
}

#[test]
fn a_turn_that_only_compacts_asks_no_hooks() {
    let mut turn = Turn::new(LIMITS, Purpose::Compact).with_hooks(ALL_HOOKS);
    let lines = play(&mut turn, vec![began(), compaction_began(), compacted()]);
    assert!(!lines.contains("RunHooks") && turn.is_over(), "{lines}");
}

#[test]
fn what_a_hook_allows_runs_as_what_a_person_approved_and_is_asked_about_after_a_wait() {
    let (first, second) = (ToolCallId::new(), ToolCallId::new());
    let mut turn = answering();
    let mut inputs = vec![began(), opened(MessageId::new())];
    for id in [first, second] {
        inputs.extend([started(id, false), Input::CallCompleted { id, input_json: "{}".into() }]);
    }
    inputs.extend([finished(), settled(second), asked(first)]);
    play(&mut turn, inputs);
    let mut restored = Turn::restore(LIMITS, Purpose::Answer, turn.steps().to_vec());
    assert_eq!(restored, turn);
    let decided = Input::Resumed(vec![(first, Resolution::Approved)]);
    let lines = play(&mut restored, vec![decided, ended(first), settled(second)]);
    expect![[r#"
        append run.status
        SavePart(0)
        evaluate
        SavePart(0)
        execute, approved true
        append tool.result
        SavePart(0)
        SavePart(1)
        execute, approved true
    "#]]
    .assert_eq(&lines);
}

#[test]
fn children_work_side_by_side_and_what_changes_something_waits_for_all_of_them() {
    let [first, second, write] = [ToolCallId::new(), ToolCallId::new(), ToolCallId::new()];
    let completed = |id| Input::CallCompleted { id, input_json: "{}".into() };
    let mut turn = answering();
    let mut inputs = vec![began(), opened(MessageId::new())];
    for id in [first, second] {
        inputs.extend([delegating(id), completed(id)]);
    }
    inputs.extend([started(write, false), completed(write), finished()]);
    inputs.extend([first, second, write].map(|id| allowed(id, "{}")));
    inputs.extend([spawned(first, false), spawned(second, false)]);
    let lines = play(&mut turn, inputs);
    let lines = lines.split_once("Spend").unwrap().1.split_once('\n').unwrap().1;
    expect![[r#"
        evaluate
        evaluate
        evaluate
        spawn
        spawn
        append subagent.spawned
        delegate
        SavePart(0)
        append subagent.spawned
        delegate
        SavePart(1)
        append run.status
        Park
    "#]]
    .assert_eq(lines);
    assert!(turn.rests() && !turn.asks());

    let mut restored = Turn::restore(LIMITS, Purpose::Answer, turn.steps().to_vec());
    assert_eq!(restored, turn);
    let resumed = Input::Resumed(vec![(first, returned()), (second, returned())]);
    let lines = play(&mut restored, vec![resumed, allowed(write, "{}")]);
    expect![[r#"
        append run.status
        append tool.result
        SavePart(0)
        append tool.result
        SavePart(1)
        evaluate
        SavePart(2)
        execute, approved false
    "#]]
    .assert_eq(&lines);
}

#[test]
fn a_child_in_the_background_keeps_nobody_and_is_told_of_between_two_steps() {
    let call = ToolCallId::new();
    let mut turn = answering();
    let lines = play(
        &mut turn,
        vec![
            began(),
            opened(MessageId::new()),
            delegating(call),
            Input::CallCompleted { id: call, input_json: "{}".into() },
            finished(),
            allowed(call, "{}"),
            spawned(call, true),
            told(call, "completed"),
            // Somebody says it twice.
            told(call, "completed"),
            opened(MessageId::new()),
            told(call, "completed"),
            finished(),
        ],
    );
    let lines = lines.split_once("Spend").unwrap().1.split_once('\n').unwrap().1;
    expect![[r#"
        evaluate
        spawn
        append subagent.spawned
        delegate
        append tool.result
        SavePart(0)
        open step, attempt 1, again false
        append subagent.completed
        SaveMessage
        SavePart(0)
        tell
        open step, attempt 1, again false
        append model.requested
        SaveMessage
        append model.completed
        SaveMessage
        Spend { usage: Usage { input: 10, output: 5, reasoning: 0, cache_read: 0, cache_write: 0 }, cost_micros: 7 }
        append turn.completed
        Finish(Completed)
    "#]].assert_eq(lines);
    assert_eq!((turn.steps().len(), turn.model_calls()), (3, 2));
}

#[test]
fn who_stops_a_parent_stops_its_children() {
    let [call, beside] = [ToolCallId::new(), ToolCallId::new()];
    let waits = || {
        let mut turn = answering();
        let mut inputs = vec![began(), opened(MessageId::new())];
        inputs.extend([delegating(call), started(beside, true)]);
        inputs
            .extend([call, beside].map(|id| Input::CallCompleted { id, input_json: "{}".into() }));
        inputs.extend([
            finished(),
            allowed(call, "{}"),
            allowed(beside, "{}"),
            spawned(call, false),
        ]);
        play(&mut turn, inputs);
        turn
    };
    let mut turn = waits();
    let stop = Stop::Interrupted { subject: "ann".into(), reason: String::new() };
    let lines = play(&mut turn, vec![Input::Stopped(stop)]);
    expect![[r#"
        StopAll
        StopChildren(All)
        append tool.failed
        SavePart(0)
        append tool.failed
        SavePart(1)
        append turn.failed
        Finish(Cancelled)
    "#]]
    .assert_eq(&lines);
    let errors = [call, beside].map(|id| turn.call(id).unwrap().error_text.clone().unwrap());
    assert_eq!(errors, ["aborted by parent", "aborted by the user"]);

    // A limit stops what the turn waits for and nothing else.
    let lines = play(&mut waits(), vec![Input::Stopped(Stop::Timeout { seconds: 1 })]);
    assert!(lines.contains("StopChildren(OfTurn)"), "{lines}");

    // A host that dies does not: the child has a host of its own.
    let mut turn = waits();
    let lines = play(&mut turn, vec![Input::Orphaned]);
    expect![[r#"
        append tool.failed
        SavePart(1)
        append run.status
        Park
    "#]]
    .assert_eq(&lines);
    assert!(turn.rests() && !turn.is_over());

    // And a child that its parent stops says so of everything it did.
    let mut turn = waits();
    let reason = subagent::ABORTED.to_owned();
    play(&mut turn, vec![Input::Stopped(Stop::Interrupted { subject: "ann".into(), reason })]);
    let errors = [call, beside].map(|id| turn.call(id).unwrap().error_text.clone().unwrap());
    assert_eq!(errors, ["aborted by parent", "aborted by parent"]);
}

#[test]
fn a_call_that_gets_no_child_is_an_error_and_the_model_goes_on() {
    let call = ToolCallId::new();
    let mut turn = answering();
    let inputs = vec![
        began(),
        opened(MessageId::new()),
        delegating(call),
        Input::CallCompleted { id: call, input_json: "{}".into() },
        finished(),
        allowed(call, "{}"),
    ];
    play(&mut turn, inputs);
    let (text, kind) = ("there is no subagent".to_owned(), "failed".to_owned());
    let outcome = Outcome::Error { text, kind, metadata: ToolMetadata::default() };
    let lines = play(&mut turn, vec![Input::ToolEnded { id: call, outcome }, spawned(call, false)]);
    expect![[r#"
        append tool.failed
        SavePart(0)
        open step, attempt 1, again false
    "#]]
    .assert_eq(&lines);
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
    /// Files are kept before whatever changes them.
    snapshots: bool,
    /// What waits for that, and whatever has waited.
    put_off: Vec<(ToolCallId, Effect)>,
    kept: Vec<ToolCallId>,
    calls: Vec<ToolCallId>,
    waiting: Vec<ToolCallId>,
    spawning: Vec<ToolCallId>,
    delegated: Vec<ToolCallId>,
    told: Vec<SubagentId>,
    stopped_children: bool,
    message: Option<MessageId>,
    finishes: usize,
    compactions: usize,
    /// What hooks were asked last.
    asked_of: Option<hook::Event>,
    stops: usize,
}

impl Chaos {
    fn input(&mut self, choice: u8, pick: u8) -> Input {
        let some = |ids: &[ToolCallId]| match ids.is_empty() {
            true => ToolCallId::new(),
            false => ids[pick as usize % ids.len()],
        };
        match choice % 42 {
            0..=2 => opened(self.message.unwrap_or_else(MessageId::new)),
            3 => Input::Text("word ".into()),
            4 => Input::Reasoning { text: "hm ".into(), signature: "s".into() },
            5 | 6 => {
                let id = ToolCallId::new();
                self.calls.push(id);
                match pick % 3 {
                    0 => delegating(id),
                    _ => started(id, pick.is_multiple_of(2)),
                }
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
            16 | 17 => asked(some(&self.evaluating)),
            18 | 19 => {
                let decisions = [
                    Resolution::Approved,
                    Resolution::Rejected { comment: "no".into() },
                    Resolution::Answered(vec![]),
                    Resolution::Expired,
                ];
                let decision = &decisions[pick as usize % decisions.len()];
                let waiting = self.waiting.iter().map(|id| (*id, decision.clone()));
                let ended = self.delegated.iter().map(|id| (*id, returned()));
                Input::Resumed(waiting.chain(ended).collect())
            }
            20 => Input::Fact(Event::fact(Payload::SessionCreated(SessionCreated::default()))),
            21 => ended(some(&self.calls)),
            22 => too_large(),
            23 => compaction_began(),
            24 | 25 => compacted(),
            26 => overflow(),
            27 => settled(some(&self.evaluating)),
            28..=32 => {
                let events =
                    [hook::Event::SessionStart, hook::Event::UserPromptSubmit, hook::Event::Stop];
                let verdict = match pick % 8 {
                    0 => Verdict::Unavailable("away".into()),
                    1 | 2 => Verdict::Block("no".into()),
                    _ => Verdict::Continue,
                };
                let context = if pick.is_multiple_of(2) { "by the way" } else { "" };
                hooked(self.asked_of.unwrap_or(events[pick as usize % 3]), verdict, context)
            }
            33..=35 => spawned(some(&self.spawning), pick.is_multiple_of(3)),
            36 => ended(some(&self.spawning)),
            37 | 38 => {
                told(some(&self.delegated), ["completed", "failed", "closed"][pick as usize % 3])
            }
            39 | 40 => match self.put_off.pop() {
                Some((id, put_off)) => {
                    let fact = Event::fact(Payload::SnapshotUpdated(SnapshotUpdated::default()));
                    Input::Kept { id, fact: Some(Box::new(fact)), put_off: Box::new(put_off) }
                }
                None => Input::Rested,
            },
            _ => Input::NothingToCompact,
        }
    }

    fn watch(&mut self, turn: &Turn, effect: &Effect) {
        match effect {
            Effect::Execute { id, .. } | Effect::Spawn(id)
                if self.snapshots
                    && !turn.call(*id).unwrap().read_only
                    && !self.kept.contains(id) =>
            {
                self.put_off.push((*id, effect.clone()));
                self.kept.push(*id);
            }
            Effect::OpenStep { message_id, attempt } => {
                self.message = *message_id;
                // A step whose first attempt failed before it had a message is the same step.
                self.steps_opened += usize::from(message_id.is_none() && *attempt == 1);
                if let Some(id) = message_id {
                    *self.attempts.entry(*id).or_insert(1) += 1;
                }
            }
            Effect::Compact { attempt: 1, .. } => self.compactions += 1,
            Effect::Evaluate(id) => self.evaluating.push(*id),
            Effect::Ask { id, .. } => {
                assert!(!self.waiting.contains(id), "people are asked once");
                self.waiting.push(*id);
            }
            Effect::RunHooks { event, stops } => {
                let before = turn.model_calls() > 0;
                assert_eq!(before, *event == hook::Event::Stop, "each at its time");
                assert!(*stops < MOST_STOPS);
                self.stops += usize::from(*event == hook::Event::Stop);
                self.asked_of = Some(*event);
            }
            Effect::Park => {
                let open = turn.steps().last().unwrap().parts.iter();
                let running = |part: &Part| matches!(part, Part::Tool(call) if call.running);
                assert_eq!(open.filter(|part| running(part)).count(), 0, "nothing runs meanwhile");
            }
            Effect::Execute { id, approved } => {
                assert!(self.evaluating.contains(id), "nothing runs that was not allowed");
                assert!(!self.executed.contains(id), "nothing runs twice");
                assert!(
                    *approved || !self.waiting.contains(id),
                    "what people approved is approved"
                );
                let parts = turn.steps().last().unwrap().parts.iter();
                let calls = parts.filter_map(|part| match part {
                    Part::Tool(tool_use) => Some(tool_use),
                    _ => None,
                });
                let before = calls.take_while(|tool_use| tool_use.tool_call_id != *id);
                let mut open = before.filter(|tool_use| !tool_use.state.is_over());
                let reads = turn.call(*id).unwrap().read_only;
                // What children do is looked at where they do it.
                let beside = |other: &ToolUse| other.read_only || other.tool == TASK;
                assert!(open.all(|other| beside(other) && reads), "writes run alone, in order");
                self.executed.push(*id);
                self.running.push(*id);
            }
            Effect::Spawn(id) => {
                assert!(self.evaluating.contains(id), "nobody is spawned that was not allowed");
                assert!(!self.spawning.contains(id), "a child is looked for once");
                self.spawning.push(*id);
            }
            Effect::Delegate(spawn) => {
                let id = spawn.origin.tool_call_id;
                assert!(self.spawning.contains(&id), "a child is there for a call");
                assert!(!self.delegated.contains(&id), "a call has one child");
                self.delegated.push(id);
            }
            Effect::Tell(id) => {
                assert!(!self.told.contains(id), "a child ends once");
                self.told.push(*id);
            }
            Effect::StopChildren(_) => self.stopped_children = true,
            Effect::Finish(_) => self.finishes += 1,
            _ => {}
        }
    }
}

/// A turn without what only its worker knows: which attempt it is, what was just asked for.
/// Exactly this must survive the worker.
fn remembered(turn: &Turn) -> Turn {
    let mut turn = turn.clone();
    turn.phase = match (&turn.phase, turn.steps.last()) {
        (Phase::Over, _) => Turn::restore(LIMITS, Purpose::Answer, turn.steps.clone()).phase,
        (_, None) => Phase::Opening { attempt: 1 },
        (_, Some(step)) if step.status == MessageStatus::Streaming => {
            Phase::Streaming { attempt: 1 }
        }
        (Phase::Acting(calls), _) => {
            let mut calls = calls.clone();
            for (call, stored) in calls.iter_mut().zip(turn.calls()) {
                if matches!(
                    call.progress,
                    Progress::Evaluating
                        | Progress::Spawning
                        | Progress::Allowed(By::Rules | By::Hook)
                ) {
                    *call = stored;
                }
            }
            match is_parked(&calls) {
                true => Phase::Parked(calls),
                false => Phase::Acting(calls),
            }
        }
        (Phase::Parked(calls), _) => Phase::Parked(calls.clone()),
        // The next step was asked for and has no message yet.
        _ => Phase::Acting(turn.calls()),
    };
    turn
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Whatever happens in whatever order: what is stored is what the machine knows, at
    /// every moment; and a turn that is stopped leaves nothing open.
    #[test]
    fn every_interleaving_keeps_the_promises(
        choices: Vec<(u8, u8)>,
        stop_is_restart: bool,
        hooks: [bool; 3],
        snapshots: bool,
    ) {
        let [session_start, user_prompt_submit, stop] = hooks;
        let hooks = Hooks { session_start, user_prompt_submit, stop };
        let mut turn = answering().with_hooks(hooks);
        let (mut chaos, mut storage) = (Chaos { snapshots, ..Chaos::default() }, Storage::default());
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
            let restored = Turn::restore(LIMITS, Purpose::Answer, storage.steps.clone());
            let restored = restored.with_hooks(hooks);
            prop_assert_eq!(&restored, &remembered(&turn));
            if turn.asks() || turn.delegates() {
                let (mut there, mut here) = (restored, remembered(&turn));
                prop_assert_eq!(there.step(Input::Orphaned), here.step(Input::Orphaned));
                prop_assert_eq!(there, here);
            }
        }
        prop_assert!(chaos.stops <= MOST_STOPS + LIMITS.steps);
        let told = chaos.told.len();
        prop_assert!(chaos.steps_opened <= LIMITS.steps + chaos.compactions + told);
        prop_assert!(chaos.compactions <= LIMITS.steps + 1 + told, "only steps make history longer");
        prop_assert!(chaos.attempts.values().all(|tries| *tries <= LIMITS.attempts as usize));

        let stop = match stop_is_restart {
            true => Stop::HostRestart,
            false => Stop::Interrupted { subject: "ann".into(), reason: "enough".into() },
        };
        let delegates = turn.delegates();
        for effect in turn.step(Input::Stopped(stop)) {
            storage.keep(&turn, &effect);
            chaos.watch(&turn, &effect);
        }
        prop_assert!(turn.rests() && !turn.asks());
        prop_assert!(!delegates || chaos.stopped_children, "nobody is left to work for nobody");
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
