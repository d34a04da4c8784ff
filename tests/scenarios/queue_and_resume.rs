use local::{Fleet, Service};
use proto::{
    event::v1::{Event, Payload},
    session::v1::{
        Session as Shown, SubmitTurnRequest, session, submit_turn_request::RunPolicy,
        subscribe_request::From, turn::Status,
    },
};
use tests::{Session, World, explain, text_of};
use tonic_types::StatusExt as _;

#[tokio::test]
async fn queue_and_resume() {
    // Somebody takes over within a second instead of ten.
    let plan = Fleet::plan().env_of(Service::Session, "HEARTBEAT", "0.2").env_of(
        Service::Session,
        "LEASE",
        "1",
    );
    let mut world = World::planned(plan).await;
    let session = world.client("acme").await.create_session().await;
    let mut events = session.subscribe(From::FromStart(true)).await;
    // Whatever runs, runs until we let the model speak.
    world.fleet.get(Service::Models).pause().unwrap();
    let mut turns = vec![session.submit("say 0").await.turn_id];
    events.until(|event| event.r#type == "turn.started").await;
    for place in 1..=5 {
        let turn = session.submit(&format!("say {place}")).await;
        assert_eq!((turn.status(), turn.queue_position), (Status::Queued, place));
        turns.push(turn.turn_id);
    }
    who_will_not_wait_is_told(&session, &turns[0]).await;

    // Postgres has the queue, and nobody else.
    world.fleet.get(Service::Session).kill().await.unwrap();
    world.fleet.get(Service::Session).restart().await.unwrap();
    let mut events = session.subscribe(From::FromStart(true)).await;
    let fired = |event: &Event| changed(event) == Some("fired");
    let mut seen = events.until(fired).await;
    // What ran is over and the next one runs; the rest still waits.
    assert_eq!(session.get_turn(&turns[0]).await.status(), Status::Failed);
    assert_eq!(session.get().await.active_turn_id, turns[1]);
    assert_eq!(session.queued().await, turns[2..]);
    assert_eq!(session.queue().await.paused_by, "");

    session.edit(&turns[2], "say two").await.unwrap();
    session.cancel(&turns[3]).await.unwrap();
    session.promote(&turns[5]).await.unwrap();
    assert_eq!(session.queued().await, [turns[5].as_str(), &turns[2], &turns[4]]);
    let order = [turns[4].as_str(), &turns[5], &turns[2]];
    let reordered = session.reorder(&order).await.unwrap();
    assert_eq!(reordered.iter().map(|turn| turn.queue_position).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(session.queued().await, order);
    let stale = session.reorder(&[&turns[3], &turns[4], &turns[5], &turns[2]]).await.unwrap_err();
    assert_eq!(
        explain(&stale),
        format!(
            "FailedPrecondition REASON_TURN_NOT_QUEUED: turn {} is not queued, it is cancelled",
            turns[3]
        )
    );
    let partial = session.reorder(&order[..2]).await.unwrap_err();
    assert_eq!(tests::reason(&partial), "REASON_INVALID_FIELD");
    // There is nothing to resume.
    assert_eq!(session.resume_queue().await.queued_turns, 3);

    world.fleet.get(Service::Models).resume().unwrap();
    seen.extend(events.until_ended(&turns[2]).await);
    assert_eq!(text_of(&seen), "145two");
    let started = seen.iter().filter(|event| event.r#type == "turn.started");
    let started: Vec<_> = started.map(|event| event.turn_id.as_str()).collect();
    assert_eq!(started, [&turns[0], &turns[1], &turns[4], &turns[5], &turns[2]]);
    let changes: Vec<_> = seen.iter().filter_map(changed).collect();
    assert_eq!(
        changes[5..],
        ["fired", "edited", "cancelled", "promoted", "reordered", "fired", "fired", "fired"]
    );

    a_hard_error_stops_the_queue_until_somebody_resumes_it(&mut world, &session).await;
}

async fn who_will_not_wait_is_told(session: &Session, running: &str) {
    let request =
        SubmitTurnRequest { run_policy: RunPolicy::Reject.into(), ..session.turn("say never") };
    let refused = session.client.turns().submit_turn(request).await.unwrap_err();
    let info = refused.get_details_error_info().unwrap();
    assert_eq!(
        (info.reason.as_str(), info.metadata["turn_id"].as_str()),
        ("REASON_SESSION_BUSY", running)
    );
}

async fn a_hard_error_stops_the_queue_until_somebody_resumes_it(
    world: &mut World,
    session: &Session,
) {
    world.fleet.get(Service::Models).pause().unwrap();
    let mut events = session.subscribe(From::Live(true)).await;
    let broken = session.submit("fail auth").await.turn_id;
    let (next, last) =
        (session.submit("say next").await.turn_id, session.submit("say last").await.turn_id);
    world.fleet.get(Service::Models).resume().unwrap();
    events.until_ended(&broken).await;
    world.fleet.get(Service::Session).kill().await.unwrap();
    world.fleet.get(Service::Session).restart().await.unwrap();

    let queue = session.queue().await;
    assert_eq!(queue.turns.iter().map(|turn| &turn.turn_id).collect::<Vec<_>>(), [&next, &last]);
    assert_eq!(queue.messages.len(), 2);
    assert_eq!(queue.paused_by, "error");
    let Shown { status, queued_turns, .. } = session.get().await;
    assert_eq!((status, queued_turns), (session::Status::Error as i32, 2));

    let mut events = session.subscribe(From::Live(true)).await;
    let resumed = session.resume_queue().await;
    assert_ne!(resumed.status(), session::Status::Error);
    let seen = events.until_ended(&last).await;
    assert_eq!(text_of(&seen), "nextlast");
    assert_eq!(changed(&seen[0]), Some("resumed"));
    let idle = session.get().await;
    assert_eq!((idle.status(), idle.queued_turns), (session::Status::Idle, 0));
}

/// What an event changed in the queue.
fn changed(event: &Event) -> Option<&str> {
    match &event.payload {
        Some(Payload::QueueChanged(changed)) => Some(&changed.change),
        _ => None,
    }
}
