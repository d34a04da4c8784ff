use local::Service;
use proto::{
    event::v1::Payload,
    session::v1::{subscribe_request::From, turn},
};
use tests::{World, text_of};

#[tokio::test]
async fn submit_and_first_status() {
    let mut world = World::start().await;
    let session = world.client("acme").await.create_session().await;
    let mut events = session.subscribe(From::FromStart(true)).await;

    // A model that is slow on any machine: it stands still until we have looked around.
    world.fleet.get(Service::Models).pause().unwrap();
    let turn = session.submit("delay 200ms\nsay At last.").await;
    assert_eq!(turn.status(), turn::Status::Accepted);
    let snapshot = session.snapshot().await.snapshot.unwrap();
    let log = session.log().await;
    assert_eq!(text_of(&log), "", "the model has spoken before submit was over");

    let thread = &snapshot.threads[0];
    assert!(["queued", "running"].contains(&thread.status.as_str()), "{thread:?}");
    assert_eq!(thread.active_turn_id, turn.turn_id);
    let view = thread.turns.iter().find(|view| view.turn_id == turn.turn_id).unwrap();
    assert!(["preparing", "queued", "running"].contains(&view.status.as_str()), "{view:?}");

    world.fleet.get(Service::Models).resume().unwrap();
    let seen = events.until_ended(&turn.turn_id).await;
    let of = |name| seen.iter().position(|event| event.r#type == name).unwrap();
    assert!(of("turn.submitted") < of("model.delta"));
    match &seen[of("turn.submitted")].payload {
        Some(Payload::TurnSubmitted(submitted)) => assert_eq!(submitted.status, "accepted"),
        other => panic!("{other:?}"),
    }
    assert_eq!(seen.last().unwrap().r#type, "turn.completed");
    assert_eq!(text_of(&seen), "At last.");
    assert_eq!(session.get_turn(&turn.turn_id).await.status(), turn::Status::Completed);
}
