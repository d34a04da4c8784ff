//! What must be true when all is quiet.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use proto::{
    event::v1::{Event, Payload},
    session::v1::{
        part::Content, respond_action_request::Decision, session::Status,
        turn::Status as TurnStatus,
    },
};
use tokio::time::{Instant, sleep};

use super::{Place, people::Submission, spending};
use crate::{Client, submit, text_of};

/// Enough for what was left in the queues of all sessions, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(240);

/// Approves what is still asked and clears errors, until nothing is left to do.
pub async fn becomes_quiet(place: &Place, replicas: &[Client]) {
    let session = &place.session;
    let begun = Instant::now();
    loop {
        let shown = session.get().await;
        match shown.status() {
            Status::Idle => return,
            Status::Error => {
                let request = session.turn("say Go on.");
                let turn = submit(replicas, &request).await;
                let turn_id = Some(turn.turn_id);
                let submission = Submission { request, marks: vec![], fails: None, turn_id };
                let id = submission.request.request_id.clone();
                place.notes.lock().unwrap().submissions.insert(id, submission);
            }
            Status::WaitingOnApproval => {
                for action in session.actions().await {
                    session.respond(&action, Decision::Once).await.unwrap();
                }
            }
            _ => {}
        }
        assert!(begun.elapsed() < PATIENCE, "it does not come to rest: {shown:?}");
        sleep(Duration::from_millis(50)).await;
    }
}

/// Returns the log that everything was compared with.
pub async fn promises_were_kept(
    place: &Place,
    replicas: &[Client],
    seen: &[(String, Vec<Event>)],
) -> Vec<Event> {
    let session = &place.session;
    let log = session.log().await;
    let turns = turns(&log);
    order_held(&log);
    nobody_ran_beside_another(&log);
    every_turn_ended_for_a_reason(place, &turns);
    every_submission_is_one_turn(place, replicas, &turns).await;
    tools_ran_once(place, &turns);

    for (id, piece) in seen {
        if let (true, Some(first)) = (*id == session.id, piece.first()) {
            let from = first.sequence as usize - 1;
            assert_eq!(log[from..from + piece.len()], piece[..], "somebody saw something else");
        }
    }
    let shown = session.get().await;
    assert_eq!((shown.queued_turns, shown.active_turn_id.as_str()), (0, ""));
    assert_eq!(shown.last_sequence, log.len() as i64);
    assert_eq!(session.actions().await, [], "somebody is asked who cannot answer any more");
    let snapshot = session.snapshot().await.snapshot.unwrap();
    assert_eq!(snapshot.as_of_sequence, log.len() as i64);
    let thread = &snapshot.threads[0];
    assert_eq!(thread.native_status, "idle");
    assert!(thread.queued_turns.is_empty() && thread.pending_requests.is_empty(), "{thread:?}");
    for view in &thread.turns {
        let end = turns[&view.turn_id].end.as_ref();
        assert_eq!(
            Some(view.status.as_str()),
            end.map(|end| end.status),
            "the read model says otherwise: {view:?}"
        );
    }
    messages_say_what_the_log_says(place, &log, &turns).await;

    let ended = log.iter().rfind(|event| is_end(event)).map_or(0, |event| event.sequence);
    let verified = session.sealed(ended).await;
    assert!(verified.intact && (ended == 0 || verified.seals > 0), "{verified:?}");
    let paid: i64 = spending::costs(&log).map(|(_, cost)| cost).sum();
    // Answers that broke off are on record with what they cost, and the session counts those that
    // it could use.
    assert!(shown.cost_micros <= paid, "the session paid for what is not in its log: {shown:?}");
    drop(turns);
    log
}

/// How many turns of a log triggers started.
pub fn from_triggers(log: &[Event]) -> usize {
    let submitted = log.iter().filter_map(|event| match &event.payload {
        Some(Payload::TurnSubmitted(submitted)) => Some(submitted),
        _ => None,
    });
    submitted.filter(|submitted| submitted.source == "trigger").count()
}

/// What the log says about a turn.
#[derive(Debug, Default)]
struct Told<'a> {
    events: Vec<&'a Event>,
    submitted: usize,
    started: usize,
    /// How the model failed last, if it did.
    model_failed: &'a str,
    end: Option<End<'a>>,
}

#[derive(Debug, PartialEq)]
struct End<'a> {
    status: &'a str,
    /// Of one that did not complete.
    reason: &'a str,
}

fn is_end(event: &Event) -> bool {
    matches!(event.payload, Some(Payload::TurnCompleted(_) | Payload::TurnFailed(_)))
}

fn turns(log: &[Event]) -> BTreeMap<String, Told<'_>> {
    let mut turns = BTreeMap::<_, Told<'_>>::new();
    for event in log.iter().filter(|event| !event.turn_id.is_empty()) {
        let told = turns.entry(event.turn_id.clone()).or_default();
        told.events.push(event);
        match &event.payload {
            Some(Payload::TurnSubmitted(_)) => told.submitted += 1,
            Some(Payload::TurnStarted(_)) => {
                told.started += 1;
                assert_eq!(told.end, None, "a turn ran after its end: {event:?}");
            }
            Some(Payload::ModelFailed(failed)) => told.model_failed = &failed.kind,
            _ => {}
        }
        let end = match &event.payload {
            Some(Payload::TurnCompleted(_)) => End { status: "completed", reason: "" },
            Some(Payload::TurnFailed(failed)) => {
                End { status: &failed.status, reason: &failed.reason }
            }
            _ => continue,
        };
        assert_eq!(told.end.replace(end), None, "a turn ended twice: {event:?}");
    }
    turns
}

/// The queue, played back: whoever fires was first.
fn order_held(log: &[Event]) {
    let mut queue = VecDeque::new();
    for event in log {
        let Some(Payload::QueueChanged(changed)) = &event.payload else { continue };
        let place = queue.iter().position(|turn| *turn == changed.turn_id);
        match changed.change.as_str() {
            "queued" => queue.push_back(changed.turn_id.clone()),
            "fired" => {
                assert_eq!(place, Some(0), "somebody jumped the queue: {event:?}");
                queue.pop_front();
            }
            "promoted" => {
                let turn = queue.remove(place.expect("promoted from nowhere")).unwrap();
                queue.push_front(turn);
            }
            "cancelled" => {
                queue.remove(place.expect("cancelled from nowhere"));
            }
            "edited" | "paused" | "resumed" => {}
            other => panic!("nobody asked for this: {other}"),
        }
        assert_eq!(changed.length as usize, queue.len(), "{event:?}");
    }
    assert!(queue.is_empty(), "nobody runs these: {queue:?}");
}

fn nobody_ran_beside_another(log: &[Event]) {
    let mut running = None;
    for event in log {
        match event.r#type.as_str() {
            "turn.started" => {
                assert_eq!(running.replace(&event.turn_id), None, "two at once: {event:?}");
            }
            // Turns that are taken out of the queue end without having run.
            "turn.completed" | "turn.failed" if running == Some(&event.turn_id) => running = None,
            "model.delta" | "tool.started" => {
                assert_eq!(running, Some(&event.turn_id), "it speaks and does not run: {event:?}");
            }
            _ => {}
        }
    }
}

/// Every turn ran once and well, unless somebody stopped it, its script has it fail, or somebody
/// was away whom it needed.
fn every_turn_ended_for_a_reason(place: &Place, turns: &BTreeMap<String, Told<'_>>) {
    let notes = place.notes.lock().unwrap();
    let mut stopped_blindly = 0;
    for (turn_id, told) in turns {
        let said = || format!("{turn_id} {told:?}");
        let end = told.end.as_ref().unwrap_or_else(|| panic!("without an end: {}", said()));
        let submission =
            notes.submissions.values().find(|known| known.turn_id.as_ref() == Some(turn_id));
        assert_eq!(told.submitted, 1, "{}", said());
        // One that is stopped while it waits never begins.
        assert!(told.started == 1 || told.started == 0 && end.status == "cancelled", "{}", said());
        match (end.status, end.reason) {
            ("completed", _) => {
                let fails = submission.and_then(|submission| submission.fails);
                let edited = notes.edits.contains_key(turn_id);
                assert!(fails.is_none() || edited, "it had to fail: {}", said());
            }
            ("cancelled", "interrupted") => {
                stopped_blindly += usize::from(!notes.stopped.contains(turn_id));
            }
            ("failed", "host_restart" | "tool_host_unavailable") => {}
            ("failed", "provider_error") => {
                // Nobody knows the script of a turn whose submission was not answered.
                let fails = submission.map_or(Some("auth"), |submission| submission.fails);
                let away = ["transient", "cut", "unavailable"].contains(&told.model_failed);
                assert!(away || fails == Some(told.model_failed), "{}", said());
            }
            _ => panic!("nobody asked for this end: {}", said()),
        }
    }
    let most = notes.stopped_blindly;
    assert!(stopped_blindly <= most, "{stopped_blindly} turns that nobody stopped, at most {most}");
}

async fn every_submission_is_one_turn(
    place: &Place,
    replicas: &[Client],
    turns: &BTreeMap<String, Told<'_>>,
) {
    let mut known = BTreeSet::new();
    let (submissions, cancelled, fired) = {
        let notes = place.notes.lock().unwrap();
        let submissions = notes.submissions.values();
        let submissions =
            submissions.map(|submission| (submission.request.clone(), submission.turn_id.clone()));
        let fired: Vec<String> = notes.fired.keys().cloned().collect();
        (submissions.collect::<Vec<_>>(), notes.cancelled.clone(), fired)
    };
    for turn_id in fired {
        assert!(turns.contains_key(&turn_id), "{turn_id} was fired and is lost");
        assert!(known.insert(turn_id), "two firings are one turn");
    }
    for (request, turn_id) in submissions {
        let Some(turn_id) = turn_id else { continue };
        let told = turns.get(&turn_id).expect("what was acknowledged is lost");
        let status = told.end.as_ref().map_or("", |end| end.status);
        if cancelled.contains(&turn_id) {
            assert_eq!((told.started, status), (0, "cancelled"), "cancelled, and it ran");
        }
        let again = submit(replicas, &request).await;
        assert_eq!(again.turn_id, turn_id, "asked again, it is another turn");
        let expected = match status {
            "completed" => TurnStatus::Completed,
            "cancelled" => TurnStatus::Cancelled,
            _ => TurnStatus::Failed,
        };
        assert_eq!(again.status(), expected);
        assert!(known.insert(turn_id), "two submissions are one turn");
    }
    // Nobody else asked for a turn, except those who never heard what became of it.
    let unheard = turns.keys().filter(|turn| !known.contains(*turn)).count();
    let notes = place.notes.lock().unwrap();
    let silent = notes.submissions.values().filter(|known| known.turn_id.is_none()).count();
    assert!(unheard <= silent, "{unheard} turns that nobody asked for, {silent} not answered");
}

/// The witness has every mark at most once, and once if the log says that its command ended well.
fn tools_ran_once(place: &Place, turns: &BTreeMap<String, Told<'_>>) {
    let mut counts = BTreeMap::<String, usize>::new();
    for line in place.witness.lines() {
        *counts.entry(line).or_default() += 1;
    }
    let twice = counts.iter().find(|(_, count)| **count > 1);
    assert_eq!(twice, None, "a command ran twice");

    let notes = place.notes.lock().unwrap();
    let mut known: BTreeSet<&str> = BTreeSet::new();
    for submission in notes.submissions.values() {
        known.extend(submission.marks.iter().map(String::as_str));
    }
    known.extend(notes.edits.values().flatten().map(|edit| edit.mark.as_str()));
    known.extend(notes.fired.values().flatten().map(String::as_str));
    for told in turns.values() {
        let mut commands = BTreeMap::new();
        for event in &told.events {
            match &event.payload {
                Some(Payload::ToolArgs(args)) => {
                    commands.insert(event.tool_call_id.as_str(), args.input_json.as_str());
                }
                Some(Payload::ToolResult(_)) => {
                    let command = commands[event.tool_call_id.as_str()];
                    let mark =
                        command.split("echo ").nth(1).and_then(|rest| rest.split(' ').next());
                    let mark = mark.unwrap_or_else(|| panic!("not one of ours: {command}"));
                    assert_eq!(counts.get(mark), Some(&1), "it says it ran: {command}");
                }
                _ => {}
            }
        }
    }
    let strange = counts.keys().find(|mark| !known.contains(mark.as_str()));
    assert_eq!(strange, None, "nobody asked for this command");
    for turn_id in &notes.cancelled {
        let marks = notes.submissions.values().filter(|one| one.turn_id.as_ref() == Some(turn_id));
        let ran = marks.flat_map(|one| &one.marks).find(|mark| counts.contains_key(*mark));
        assert_eq!(ran, None, "a command of a cancelled turn ran");
    }
    // What was replaced, as was acknowledged, does not run any more.
    for (turn_id, edits) in &notes.edits {
        if edits.iter().any(|edit| edit.acknowledged) {
            let marks =
                notes.submissions.values().filter(|one| one.turn_id.as_ref() == Some(turn_id));
            let ran = marks.flat_map(|one| &one.marks).find(|mark| counts.contains_key(*mark));
            assert_eq!(ran, None, "a command ran that was replaced");
        }
    }
}

/// Both ways: a message that is missing is as wrong as one that says something else.
async fn messages_say_what_the_log_says(
    place: &Place,
    log: &[Event],
    turns: &BTreeMap<String, Told<'_>>,
) {
    let mut said = BTreeMap::<_, String>::new();
    for message in place.session.all_messages().await {
        assert!(
            !["streaming", "queued"].contains(&message.status.as_str()),
            "not at rest: {message:?}"
        );
        for part in message.parts {
            match part.content {
                Some(Content::Text(text)) if message.role == 2 => {
                    said.entry(message.turn_id.clone()).or_default().push_str(&text.text);
                }
                Some(Content::Tool(tool)) => {
                    assert!(tool.state.starts_with("output-"), "a call without an end: {tool:?}");
                }
                _ => {}
            }
        }
    }
    for Event { turn_id, .. } in log.iter().filter(|event| event.r#type == "turn.started") {
        let said = said.remove(turn_id).unwrap_or_default();
        assert_eq!(text_of(turns[turn_id].events.iter().copied()), said, "{turn_id}");
    }
    assert_eq!(said, BTreeMap::new(), "words of turns that never began");
}
