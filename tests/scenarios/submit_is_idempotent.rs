use local::Service;
use proto::{
    event::v1::Event,
    session::v1::{SubmitTurnRequest, Turn, subscribe_request::From, turn::Status},
};
use tests::{Session, World, explain, says};

/// What submissions wrote; the first turn goes on beside them.
async fn taken_in(session: &Session) -> Vec<Event> {
    let mut log = session.log().await;
    log.retain(|event| ["turn.submitted", "queue.changed"].contains(&event.r#type.as_str()));
    log
}

#[tokio::test]
async fn submit_is_idempotent() {
    let mut world = World::start().await;
    let session = world.client("acme").await.create_session().await;
    world.fleet.get(Service::Models).pause().unwrap();
    let requests = ["say one", "say two", "say three"].map(|script| session.turn(script));
    let mut turns = Vec::new();
    for request in &requests {
        turns.push(submit(&session, request).await);
    }
    let [first, fires, cancelled] = &turns[..] else { unreachable!() };

    // While it runs or waits, at once from several callers.
    let taken_in = taken_in(&session).await;
    let (a, b, c) = tokio::join!(
        submit(&session, &requests[0]),
        submit(&session, &requests[1]),
        submit(&session, &requests[1])
    );
    assert_eq!(
        [&a.turn_id, &b.turn_id, &c.turn_id],
        [&first.turn_id, &fires.turn_id, &fires.turn_id]
    );
    assert_eq!((&b, &c), (fires, fires));
    assert_eq!(self::taken_in(&session).await, taken_in);

    // After it was edited, promoted and cancelled.
    session.edit(&cancelled.turn_id, "say something else").await.unwrap();
    session.promote(&cancelled.turn_id).await.unwrap();
    let again = submit(&session, &requests[2]).await;
    assert_eq!((&again.turn_id, again.queue_position), (&cancelled.turn_id, 1));
    session.cancel(&cancelled.turn_id).await.unwrap();
    let again = submit(&session, &requests[2]).await;
    assert_eq!((&again.turn_id, again.status()), (&cancelled.turn_id, Status::Cancelled));
    assert_eq!((again.queue_position, &again.message_id), (0, &cancelled.message_id));

    // After it fired and ended.
    let mut events = session.subscribe(From::FromStart(true)).await;
    world.fleet.get(Service::Models).resume().unwrap();
    events.until_ended(&fires.turn_id).await;
    let log = session.log().await;
    let again = submit(&session, &requests[1]).await;
    assert_eq!((&again.turn_id, again.status()), (&fires.turn_id, Status::Completed));

    // The same id for something else is refused, whatever became of the first.
    for request in &requests {
        for other in [
            SubmitTurnRequest { parts: vec![says("Something else.")], ..request.clone() },
            SubmitTurnRequest { agent: "default".into(), ..request.clone() },
        ] {
            let refused = session.client.turns().submit_turn(other).await.unwrap_err();
            assert_eq!(
                explain(&refused),
                format!(
                    "AlreadyExists REASON_REQUEST_ID_REUSED: request id {} was used before for something else",
                    request.request_id
                )
            );
        }
    }
    assert_eq!(session.log().await, log);
}

async fn submit(session: &Session, request: &SubmitTurnRequest) -> Turn {
    let response = session.client.turns().submit_turn(request.clone()).await.unwrap();
    response.into_inner().turn.unwrap()
}
