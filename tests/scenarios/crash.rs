use local::{Fleet, Service};
use proto::{
    event::v1::{Event, Payload},
    session::v1::{Message, message::Role, part::Content, subscribe_request::From, turn},
};
use tests::{Session, World, text_of};

const SLOW: &str = "pace 50ms\nrepeat 1000 \"word \"";

#[tokio::test]
async fn a_crash_takes_back_nothing_that_was_seen() {
    // Somebody takes over within a second instead of ten.
    let plan = Fleet::plan().env_of(Service::Session, "HEARTBEAT", "0.2").env_of(
        Service::Session,
        "LEASE",
        "1",
    );
    let mut world = World::planned(plan).await;
    let session = world.client("acme").await.create_session().await;
    let mut events = session.subscribe(From::FromStart(true)).await;
    let turn = session.submit(SLOW).await;

    let mut seen = Vec::new();
    while seen.iter().filter(|event: &&Event| event.r#type == "model.delta").count() < 5 {
        seen.push(events.next().await.unwrap());
    }
    world.fleet.get(Service::Session).kill().await.unwrap();
    while let Ok(event) = events.next().await {
        seen.push(event);
    }
    world.fleet.get(Service::Session).restart().await.unwrap();

    let answer = answer(&session, &turn.turn_id).await;
    let log = session.log().await;
    assert_eq!(log[..seen.len()], seen, "what was seen is not what is stored");
    assert_eq!(text(&answer), text_of(&log));

    let last = seen.last().unwrap().sequence;
    let mut events = session.subscribe(From::AfterSequence(last)).await;
    let rest = events.until_ended(&turn.turn_id).await;
    match rest.last().and_then(|event| event.payload.as_ref()) {
        Some(Payload::TurnFailed(failed)) => {
            assert_eq!(
                (failed.status.as_str(), failed.reason.as_str()),
                ("failed", "host_restart")
            );
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(session.get_turn(&turn.turn_id).await.status(), turn::Status::Failed);
    let afterwards = self::answer(&session, &turn.turn_id).await;
    assert_eq!(text(&afterwards), text(&answer), "the partial answer is not kept");
    assert_eq!(afterwards.status, "failed");

    let next = session.run("say Back again.").await;
    assert_eq!(next.last().unwrap().r#type, "turn.completed");
    assert_eq!(text_of(&next), "Back again.");
    let log = session.log().await;
    let starts = log.iter().filter(|event| event.r#type == "turn.started");
    assert_eq!(starts.count(), 2, "the turn that crashed has run again");
}

/// The one message that the model filled in a turn.
async fn answer(session: &Session, turn_id: &str) -> Message {
    let messages = session.messages().await.into_iter();
    let mut answers =
        messages.filter(|message| message.role() == Role::Assistant && message.turn_id == turn_id);
    let answer = answers.next().unwrap();
    assert_eq!(answers.next(), None);
    answer
}

fn text(message: &Message) -> String {
    let parts = message.parts.iter().map(|part| match &part.content {
        Some(Content::Text(text)) => text.text.as_str(),
        other => panic!("not text: {other:?}"),
    });
    parts.collect()
}
