use local::Service;
use proto::{
    event::v1::{Event, Payload},
    session::v1::{subscribe_request::From, turn::Status},
};
use tests::{World, text_of};

#[tokio::test]
async fn turns_submitted_while_busy_run_in_order() {
    let mut world = World::start().await;
    let session = world.client("acme").await.create_session().await;
    let mut events = session.subscribe(From::FromStart(true)).await;
    // The first one is busy for as long as we say, however slow this machine is.
    world.fleet.get(Service::Models).pause().unwrap();
    let first = session.submit("say 0").await;

    let mut turns = vec![first.turn_id];
    for place in 1..=3 {
        let turn = session.submit(&format!("say {place}")).await;
        assert_eq!((turn.status(), turn.queue_position), (Status::Queued, place));
        turns.push(turn.turn_id);
    }
    assert_eq!(session.get().await.queued_turns, 3);
    let snapshot = session.snapshot().await.snapshot.unwrap();
    let queued = snapshot.threads[0].queued_turns.iter().map(|turn| turn.turn_id.as_str());
    assert_eq!(queued.collect::<Vec<_>>(), turns[1..]);
    let waiting =
        session.messages().await.into_iter().filter(|message| message.queue_time.is_some());
    assert_eq!(waiting.map(|message| message.turn_id).collect::<Vec<_>>(), turns[1..]);

    world.fleet.get(Service::Models).resume().unwrap();
    let seen = events.until_ended(&turns[3]).await;
    assert_eq!(text_of(&seen), "0123");
    assert_eq!(of(&seen, "turn.started"), turns);
    assert_eq!(of(&seen, "turn.completed"), turns);
    // One turn ends before the next begins.
    let borders = seen.iter().map(|event| event.r#type.as_str());
    let borders = borders.filter(|name| ["turn.started", "turn.completed"].contains(name));
    assert_eq!(borders.collect::<Vec<_>>(), ["turn.started", "turn.completed"].repeat(4));

    let changes = seen.iter().filter_map(|event| match &event.payload {
        Some(Payload::QueueChanged(changed)) => {
            let turn = turns.iter().position(|turn| *turn == changed.turn_id).unwrap();
            Some((changed.change.as_str(), turn, changed.length))
        }
        _ => None,
    });
    assert_eq!(
        changes.collect::<Vec<_>>(),
        [
            ("queued", 1, 1),
            ("queued", 2, 2),
            ("queued", 3, 3),
            ("fired", 1, 2),
            ("fired", 2, 1),
            ("fired", 3, 0),
        ]
    );
    let idle = session.get().await;
    assert_eq!((idle.queued_turns, idle.active_turn_id.as_str()), (0, ""));
    let left = session.messages().await.into_iter().find(|message| message.queue_time.is_some());
    assert_eq!(left, None);
    assert_eq!(session.log().await, seen);
}

/// The turns that events of one name are about.
fn of(events: &[Event], name: &str) -> Vec<String> {
    let events = events.iter().filter(|event| event.r#type == name);
    events.map(|event| event.turn_id.clone()).collect()
}
