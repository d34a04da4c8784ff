//! Every row of "what dies, and what then", and the tests that keep it. Those that need an
//! instant between two statements are beside the code, those that need real processes here.
//!
//! | at this moment | dies | kept by |
//! |---|---|---|
//! | before a submission commits | anything | `the_last_thing_a_process_did_is_kept` (here: `nobody_heard_the_submission`); `submit.rs` in the store |
//! | after the commit, before the push | replica or Redis | the same (`the_submission_was_never_pushed`); `redis_may_lose_everything` in `servers.rs` |
//! | after the claim, before the first append | worker | the same (`the_claim_was_the_last_thing`, `the_claim_was_never_answered`); `lease.rs` in the store |
//! | while streaming | worker | `restart_finalises_orphans` in `restart.rs`; `a_crash_takes_back_nothing_that_was_seen` in `crash.rs` |
//! | flush sent, connection lost | network | `a_connection_cut_after_the_commit_doubles_and_loses_nothing`; `flusher/tests.rs` |
//! | tool started, not finished | worker | `restart_finalises_orphans` |
//! | a tool's evaluation was asked for | tools | `a_call_that_tools_did_not_answer_is_asked_for_again`; `rolling_restart.rs` |
//! | tool about to run, owner paused past its lease | – | `an_owner_that_slept_past_its_lease_neither_acts_nor_writes` |
//! | waiting for a person | everything | `everything_may_die_while_a_person_thinks` in `servers.rs` |
//! | after the end commits, before it is published | worker | `the_last_thing_a_process_did_is_kept` (`the_end_was_never_published`) |
//! | Redis loses all data | – | `redis_may_lose_everything` in `servers.rs` |
//! | Postgres away | – | `postgres_away_for_several_leases_starts_no_takeover`; `a_restart_of_postgres…` in `servers.rs` |
//! | a submission commits while an end waits | – | `flush.rs` in the store, both ways round |
//! | an answer is faster than the wait | – | `people.rs` in the store |
//! | a workspace is filled, put back or deleted | tools | `whoever_is_killed_leaves_the_old_or_the_new` in `workspaces.rs`; `snapshots.rs` and `workspaces.rs` in the tests of `tools` |
//! | files put back, messages not hidden yet | session | `a_rewind_that_was_cut_off_is_repeated` in `rewind_with_files.rs` |
//! | at rest | the replica that has a workspace | `a_session_works_wherever_its_workspace_is` in `workspaces.rs` |
//! | a child or its parent runs, or mail is on its way | worker | `every_parent_is_told_exactly_once` in `subagents/tree.rs`; `subagents.rs` in the store |
//! | a child waits for a person, and its parent for it | everything | `a_child_that_waits_for_a_person_outlives_everything` in `subagents/tree.rs` |
//! | a firing is stored and not delivered, or delivered and not written down | triggers | `a_year_of_schedules_fires_each_due_time_once` in `triggers/year.rs`; `schedules` |
//! | a task's attempt or a job's item runs | worker | `a_task_whose_host_dies_is_lost_and_can_be_retried`, `ten_thousand_items_add_up_whatever_dies` |
//! | a tool prints NUL bytes | – | `a_connection_cut_after_the_commit_doubles_and_loses_nothing` (`a_tool_prints_nul`) |

use std::time::Duration;

use local::{Servers, Service};
use proto::{
    event::v1::{Event, Payload},
    session::v1::{Turn, part::Content, subscribe_request::From, turn::Status},
};
use tests::{Client, Proxy, Reader, Session, Witness, World, explain, is_passing, text_of};
pub use tests::{LEASE, plan, submit};
use tokio::time::{Instant, sleep, timeout};

/// Long enough for a debug build on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A fleet whose first session process reaches Postgres over a wire of ours.
async fn wired() -> (World, Proxy) {
    let servers = Servers::throwaway().await.unwrap();
    let wire = Proxy::to_url(servers.database_url()).await;
    let plan = plan().detour(Service::Session, 0, "DATABASE_URL", wire.address());
    (World::on(servers, plan).await, wire)
}

/// Waits, but not for ever.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match timeout(PATIENCE, future).await {
        Ok(done) => done,
        Err(_) => panic!("nothing happens: {what}"),
    }
}

fn count(events: &[Event], name: &str, turn_id: &str) -> usize {
    let events = events.iter().filter(|event| event.r#type == name);
    events.filter(|event| event.turn_id == turn_id).count()
}

fn end_of(events: &[Event], turn_id: &str) -> (String, String) {
    let mut ends = events.iter().filter(|event| event.turn_id == turn_id).filter_map(|event| {
        match &event.payload {
            Some(Payload::TurnCompleted(_)) => Some(("completed".to_owned(), String::new())),
            Some(Payload::TurnFailed(failed)) => {
                Some((failed.status.clone(), failed.reason.clone()))
            }
            _ => None,
        }
    });
    let end = ends.next().unwrap();
    assert_eq!(ends.next(), None, "the turn has ended twice");
    end
}

fn completed() -> (String, String) {
    ("completed".into(), String::new())
}

/// A replica of tools goes away right when it is asked. Another takes its place, and the turn need
/// not know.
#[tokio::test]
async fn a_call_that_tools_did_not_answer_is_asked_for_again() {
    let servers = Servers::throwaway().await.unwrap();
    let to_tools = Proxy::to_url(servers.database_url()).await;
    let plan = plan().detour(Service::Session, 0, "TOOLS_URL", to_tools.address());
    let mut world = World::on(servers, plan).await;
    to_tools.redirect(world.fleet.get(Service::Tools).address().parse().unwrap());
    let session = world.client("acme").await.create_session().await;
    let witness = Witness::of(&world, "acme", &session).await;

    to_tools.lose_answer_to("echo ran");
    let seen =
        session.run("call bash {\"command\": \"echo ran >> witness\"}\n---\nsay Done.").await;
    soon("its answer is lost", to_tools.sprung()).await;
    assert_eq!(end_of(&seen, &seen.last().unwrap().turn_id), completed());
    assert!(seen.iter().all(|event| event.r#type != "tool.failed"), "{seen:?}");
    assert_eq!(text_of(&seen), "Done.");
    assert_eq!(witness.lines(), ["ran"]);
}

/// The owner is stopped after it has committed that a tool is about to run and before it has
/// asked for it; and again after it has asked, with its request still on the wire.
#[tokio::test]
async fn an_owner_that_slept_past_its_lease_neither_acts_nor_writes() {
    let servers = Servers::throwaway().await.unwrap();
    let to_postgres = Proxy::to_url(servers.database_url()).await;
    let to_tools = Proxy::to(to_postgres.address()).await;
    let plan = plan().detour(Service::Session, 0, "DATABASE_URL", to_postgres.address()).detour(
        Service::Session,
        0,
        "TOOLS_URL",
        to_tools.address(),
    );
    let mut world = World::on(servers, plan).await;
    to_tools.redirect(world.fleet.get(Service::Tools).address().parse().unwrap());
    let owner = world.client("acme").await;
    world.fleet.add(Service::Session).await.unwrap();
    let other = owner.at(&mut world.fleet, 1);

    for asked in [false, true] {
        // Only the first can take the turn.
        world.fleet.replica(Service::Session, 1).kill().await.unwrap();
        let session = owner.create_session().await;
        let witness = Witness::of(&world, "acme", &session).await;
        to_postgres.keep_answer_to(r#""running":true"#);
        let turn = session.submit(r#"call bash {"command": "echo ran >> witness"}"#).await;
        soon("the tool is about to run", to_postgres.sprung()).await;
        if asked {
            to_tools.hold();
            to_postgres.release();
            soon("the tool is asked for", to_tools.held()).await;
        }
        world.fleet.replica(Service::Session, 0).pause().unwrap();

        world.fleet.replica(Service::Session, 1).restart().await.unwrap();
        let session = Session { client: other.clone(), ..session };
        let mut reader = Reader::new(&session, std::slice::from_ref(&other));
        soon("somebody takes over", reader.until_ended(&turn.turn_id)).await;
        assert_eq!(end_of(&reader.seen, &turn.turn_id), ("failed".into(), "host_restart".into()));
        let log = session.log().await;

        // It wakes, and everything it wanted arrives at last.
        world.fleet.replica(Service::Session, 0).resume().unwrap();
        match asked {
            true => to_tools.resume(),
            false => to_postgres.release(),
        }
        let next = session.run("say Somebody else is here.").await;
        assert_eq!(text_of(&next), "Somebody else is here.");
        soon("who was taken for dead leaves", async {
            while world.fleet.replica(Service::Session, 0).process().pid().is_some() {
                sleep(Duration::from_millis(50)).await;
            }
        })
        .await;

        assert_eq!(witness.lines(), [""; 0], "a tool ran for somebody who had lost the session");
        let afterwards = session.log().await;
        assert_eq!(afterwards[..log.len()], log);
        assert_eq!(afterwards[log.len()..], next, "somebody wrote who had lost the session");
        let messages = session.messages().await.into_iter();
        let parts = messages.filter(|message| message.turn_id == turn.turn_id);
        let tools = parts.flat_map(|message| message.parts).filter_map(|part| match part.content {
            Some(Content::Tool(tool)) => Some((tool.state, tool.error_text)),
            _ => None,
        });
        assert_eq!(
            tools.collect::<Vec<_>>(),
            [("output-error".to_owned(), "aborted by host restart".to_owned())]
        );
        world.fleet.replica(Service::Session, 0).restart().await.unwrap();
    }
}

#[tokio::test]
async fn a_connection_cut_after_the_commit_doubles_and_loses_nothing() {
    let (mut world, wire) = wired().await;
    let client = world.client("acme").await;

    // Wherever in a turn that happens.
    for words in [
        r#""turn.started""#,
        r#""model.requested""#,
        r#""model.delta""#,
        r#""permission.evaluated""#,
        r#""tool.result""#,
        r#""turn.completed""#,
    ] {
        let session = client.create_session().await;
        let witness = Witness::of(&world, "acme", &session).await;
        let mut events = session.subscribe(From::FromStart(true)).await;
        wire.lose_answer_to(words);
        let script = "say One. \ncall bash {\"command\": \"echo ran >> witness\"}\n---\nsay Two.";
        let turn = session.submit(script).await;
        let next = session.submit("say Three.").await;
        let seen = events.until_ended(&next.turn_id).await;
        soon(words, wire.sprung()).await;

        let log = session.log().await;
        assert_eq!(log, seen);
        assert_eq!(text_of(&log), "One. Two.Three.", "{words}");
        for turn in [&turn, &next] {
            assert_eq!(count(&log, "turn.started", &turn.turn_id), 1, "{words}");
            assert_eq!(end_of(&log, &turn.turn_id), completed(), "{words}");
        }
        assert_eq!(count(&log, "tool.result", &turn.turn_id), 1, "{words}");
        assert_eq!(witness.lines(), ["ran"], "{words}");
        let session = session.get().await;
        assert_eq!((session.active_turn_id.as_str(), session.queued_turns), ("", 0), "{words}");
    }
    a_tool_prints_nul(&client.create_session().await).await;
}

/// What Postgres cannot store does not reach it.
async fn a_tool_prints_nul(session: &Session) {
    let seen = session
        .run("call bash {\"command\": \"printf 'a\\\\0b'\"}\n---\nsay It said {{tool_result}}.")
        .await;
    assert_eq!(seen.last().unwrap().r#type, "turn.completed");
    let results = seen.iter().filter_map(|event| match &event.payload {
        Some(Payload::ToolResult(result)) => Some(result.data_json.as_str()),
        _ => None,
    });
    let results: Vec<_> = results.collect();
    assert!(results.len() == 1 && results[0].contains("a\u{FFFD}b"), "{results:?}");
    assert!(text_of(&seen).contains("a\u{FFFD}b"), "{}", text_of(&seen));
    assert_eq!(text_of(&session.run("say Still here.").await), "Still here.");
}

#[tokio::test]
async fn the_last_thing_a_process_did_is_kept() {
    let (mut world, wire) = wired().await;
    let client = world.client("acme").await;
    nobody_heard_the_submission(&client, &wire).await;
    the_claim_was_never_answered(&mut world, &client, &wire).await;
    the_submission_was_never_pushed(&mut world, &client, &wire).await;
    the_claim_was_the_last_thing(&mut world, &client, &wire).await;
    the_end_was_never_published(&mut world, &client, &wire).await;
}

/// Before it commits, or after: who gets no answer calls again, and there is one turn.
async fn nobody_heard_the_submission(client: &Client, wire: &Proxy) {
    let session = client.create_session().await;
    let request = session.turn("say Once.");
    wire.lose_answer_to(&request.request_id);
    let status = client.turns().submit_turn(request.clone()).await.unwrap_err();
    assert!(is_passing(&status), "{}", explain(&status));
    soon("the answer is lost", wire.sprung()).await;
    let turn = submit(std::slice::from_ref(client), &request).await;
    let again = submit(std::slice::from_ref(client), &request).await;
    assert_eq!(turn.turn_id, again.turn_id);

    let mut reader = Reader::new(&session, std::slice::from_ref(client));
    soon("the turn runs", reader.until_ended(&turn.turn_id)).await;
    let submitted = reader.seen.iter().filter(|event| event.r#type == "turn.submitted");
    assert_eq!(submitted.count(), 1);
    assert_eq!(text_of(&session.log().await), "Once.");
}

/// A replica owns a session and does not know it.
async fn the_claim_was_never_answered(world: &mut World, client: &Client, wire: &Proxy) {
    let session = client.create_session().await;
    let turn = queued(world, &session, "say Found.").await;
    wire.lose_answer_to(claim_of(&session));
    world.fleet.get(Service::Models).resume().unwrap();
    soon("the claim is lost", wire.sprung()).await;
    let mut reader = Reader::new(&session, std::slice::from_ref(client));
    soon("the turn runs", reader.until_ended(&turn.turn_id)).await;
    assert_eq!(text_of(&reader.seen), "First.Found.");
    assert_eq!(count(&reader.seen, "turn.started", &turn.turn_id), 1);
}

/// A turn behind another one, whose model does not answer yet: whoever submits to a session at
/// rest gets the turn with it, and nobody claims.
async fn queued(world: &mut World, session: &Session, script: &str) -> Turn {
    world.fleet.get(Service::Models).pause().unwrap();
    session.submit("say First.").await;
    session.submit(script).await
}

/// The replica dies with the submission committed and nobody told.
async fn the_submission_was_never_pushed(world: &mut World, client: &Client, wire: &Proxy) {
    let session = client.create_session().await;
    let request = session.turn("say Here.");
    wire.keep_answer_to(&request.request_id);
    let calling = tokio::spawn({
        let (mut turns, request) = (client.turns(), request.clone());
        async move { turns.submit_turn(request).await }
    });
    soon("the submission is committed", wire.sprung()).await;
    world.fleet.get(Service::Session).kill().await.unwrap();
    assert!(is_passing(&calling.await.unwrap().unwrap_err()));
    world.fleet.get(Service::Session).restart().await.unwrap();

    let mut reader = Reader::new(&session, std::slice::from_ref(client));
    soon("the turn runs", reader.until(|event| event.r#type == "turn.completed")).await;
    assert_eq!(text_of(&reader.seen), "Here.");
    let turn = submit(std::slice::from_ref(client), &request).await;
    assert_eq!(turn.status(), Status::Completed);
    assert_eq!(session.log().await, reader.seen);
}

/// The worker dies before its turn wrote anything: the turn begins anew.
async fn the_claim_was_the_last_thing(world: &mut World, client: &Client, wire: &Proxy) {
    let session = client.create_session().await;
    let turn = queued(world, &session, "say Second try.").await;
    wire.keep_answer_to(claim_of(&session));
    world.fleet.get(Service::Models).resume().unwrap();
    soon("the claim is committed", wire.sprung()).await;
    world.fleet.get(Service::Session).kill().await.unwrap();
    world.fleet.get(Service::Session).restart().await.unwrap();

    let mut reader = Reader::new(&session, std::slice::from_ref(client));
    soon("the turn runs", reader.until_ended(&turn.turn_id)).await;
    assert_eq!(text_of(&reader.seen), "First.Second try.");
    let seen = reader.seen.iter().filter(|event| event.turn_id == turn.turn_id);
    let attempts = seen.filter_map(|event| match &event.payload {
        Some(Payload::TurnStarted(started)) => Some(started.attempt),
        _ => None,
    });
    assert_eq!(attempts.collect::<Vec<_>>(), [2], "how often a worker took it is not counted");
}

/// The worker dies with the end committed and nobody told: not readers, not workers.
async fn the_end_was_never_published(world: &mut World, client: &Client, wire: &Proxy) {
    let session = client.create_session().await;
    world.fleet.get(Service::Models).pause().unwrap();
    let mut events = session.subscribe(From::FromStart(true)).await;
    let turn = session.submit("say The end.").await;
    let next = session.submit("say The next.").await;
    events.until(|event| event.r#type == "turn.started").await;

    world.fleet.add(Service::Session).await.unwrap();
    let other = client.at(&mut world.fleet, 1);
    let session = Session { client: other, ..session };
    let mut events = session.subscribe(From::FromStart(true)).await;
    wire.keep_answer_to(r#""turn.completed""#);
    world.fleet.get(Service::Models).resume().unwrap();
    soon("the end is committed", wire.sprung()).await;
    world.fleet.get(Service::Session).kill().await.unwrap();

    let seen = events.until_ended(&turn.turn_id).await;
    assert_eq!(end_of(&seen, &turn.turn_id), completed());
    events.until_ended(&next.turn_id).await;
    let log = session.log().await;
    assert_eq!(text_of(&log), "The end.The next.");
    assert_eq!(count(&log, "turn.started", &turn.turn_id), 1);
}

/// How Postgres hears that a worker wants this session: as the first element of an array, behind
/// the number where it begins to count.
fn claim_of(session: &Session) -> Vec<u8> {
    let mut words = vec![0, 0, 0, 1];
    words.extend((session.id.len() as u32).to_be_bytes());
    words.extend(session.id.as_bytes());
    words
}

/// Nobody is judged by what could not be written, and turns go on where they were.
#[tokio::test]
async fn postgres_away_for_several_leases_starts_no_takeover() {
    let servers = Servers::throwaway().await.unwrap();
    let wire = Proxy::to_url(servers.database_url()).await;
    let plan = plan()
        .replicas(Service::Session, 2)
        .detour(Service::Session, 0, "DATABASE_URL", wire.address())
        .detour(Service::Session, 1, "DATABASE_URL", wire.address());
    let mut world = World::on(servers, plan).await;
    let client = world.client("acme").await;
    let replicas = [client.clone(), client.at(&mut world.fleet, 1)];
    let processes: Vec<_> = world.fleet.pids().collect();

    // Some wait for a model, some are in the middle of an answer, some have a tool running.
    let mut running = Vec::new();
    for script in [
        "delay 5s\nsay Late.",
        "pace 20ms\nrepeat 300 \"word \"",
        "call bash {\"command\": \"echo begun >> witness; sleep 5\"}\n---\nsay Done.",
    ] {
        for _ in 0..2 {
            let session = client.create_session().await;
            let turn = session.submit(script).await;
            let mut reader = Reader::new(&session, &replicas);
            soon("it begins", reader.until(|event| event.r#type == "model.requested")).await;
            running.push((session, turn, reader));
        }
    }
    let session = client.create_session().await;
    wire.hold();
    let begun = Instant::now();
    let request = session.turn("say Back.");
    for client in &replicas {
        let status = client.turns().submit_turn(request.clone()).await.unwrap_err();
        assert_eq!(tests::reason(&status), "REASON_DEPENDENCY_UNAVAILABLE");
        assert!(is_passing(&status), "{}", explain(&status));
    }
    sleep((LEASE * 4).saturating_sub(begun.elapsed())).await;
    wire.resume();

    let back = submit(&replicas, &request).await;
    let mut reader = Reader::new(&session, &replicas);
    soon("turns run again", reader.until_ended(&back.turn_id)).await;
    for (session, turn, reader) in &mut running {
        soon("turns go on", reader.until_ended(&turn.turn_id)).await;
        assert_eq!(end_of(&reader.seen, &turn.turn_id), completed());
        assert_eq!(count(&reader.seen, "turn.started", &turn.turn_id), 1);
        assert_eq!(session.log().await, reader.seen);
    }
    // Whoever would be judged, would be judged by now.
    sleep(LEASE * 2).await;
    assert_eq!(world.fleet.pids().collect::<Vec<_>>(), processes, "somebody was taken for dead");
    assert_eq!(text_of(&session.run("say Well.").await), "Well.");
}
