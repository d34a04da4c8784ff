use local::Service;
use proto::{
    event::v1::Payload,
    session::v1::{subscribe_request::From, turn::Status},
};
use tests::{World, explain, text_of};

#[tokio::test]
async fn queued_sends_fire_in_order() {
    let mut world = World::start().await;
    let session = world.client("acme").await.create_session().await;
    let mut events = session.subscribe(From::FromStart(true)).await;
    // The first one is busy for as long as we say, however slow this machine is.
    world.fleet.get(Service::Models).pause().unwrap();
    let first = session.submit("say first").await;
    let mut queued = Vec::new();
    for text in ["second", "wrong", "regretted", "last"] {
        queued.push(session.submit(&format!("say \" {text}\"")).await.turn_id);
    }
    // Stored at once, with the time at which they began to wait.
    let messages = session.messages().await;
    let waiting = messages.iter().filter(|message| message.queue_time.is_some());
    assert_eq!(
        waiting.map(|message| &message.turn_id).collect::<Vec<_>>(),
        queued.iter().collect::<Vec<_>>()
    );

    let edited = session.edit(&queued[1], "say \" third\"").await.unwrap();
    assert_eq!((edited.status(), edited.queue_position), (Status::Queued, 2));
    let cancelled = session.cancel(&queued[2]).await.unwrap();
    assert_eq!((cancelled.status(), cancelled.queue_position), (Status::Cancelled, 0));
    let regretted = queued.remove(2);
    assert_eq!(session.queued().await, queued);
    assert!(session.messages().await.iter().all(|message| message.turn_id != regretted));

    world.fleet.get(Service::Models).resume().unwrap();
    let seen = events.until_ended(&queued[2]).await;
    assert_eq!(text_of(&seen), "first second third last");
    // One turn ends before the next begins, and who was cancelled never began.
    let borders = seen
        .iter()
        .filter(|event| event.r#type == "turn.started" || event.r#type == "turn.completed");
    let borders: Vec<_> =
        borders.map(|event| (event.r#type.as_str(), event.turn_id.as_str())).collect();
    let ran = [&first.turn_id, &queued[0], &queued[1], &queued[2]];
    let expected = ran
        .iter()
        .flat_map(|turn| [("turn.started", turn.as_str()), ("turn.completed", turn.as_str())]);
    assert_eq!(borders, expected.collect::<Vec<_>>());
    let ended = seen.iter().find(|event| event.r#type == "turn.failed").unwrap();
    assert_eq!(ended.turn_id, regretted);
    match &ended.payload {
        Some(Payload::TurnFailed(failed)) => {
            assert_eq!(
                (failed.status.as_str(), failed.reason.as_str()),
                ("cancelled", "interrupted")
            );
            assert_eq!(failed.subject, "ann");
        }
        other => panic!("{other:?}"),
    }

    // Nobody waits any more, and what has run cannot be changed.
    assert!(session.messages().await.iter().all(|message| message.queue_time.is_none()));
    let before = session.log().await;
    for (turn, status) in [(&queued[0], "completed"), (&regretted, "cancelled")] {
        for refused in [
            session.edit(turn, "say no").await,
            session.cancel(turn).await,
            session.promote(turn).await,
        ] {
            assert_eq!(
                explain(&refused.unwrap_err()),
                format!(
                    "FailedPrecondition REASON_TURN_NOT_QUEUED: turn {turn} is not queued, it is {status}"
                )
            );
        }
    }
    assert_eq!(session.log().await, before);
    assert_eq!(session.get_turn(&regretted).await.status(), Status::Cancelled);
    let snapshot = session.snapshot().await.snapshot.unwrap();
    let statuses = snapshot.threads[0].turns.iter().map(|turn| turn.status.as_str());
    assert_eq!(
        statuses.collect::<Vec<_>>(),
        ["completed", "completed", "completed", "cancelled", "completed"]
    );
}
