use proto::{
    event::v1::{Event, Payload},
    session::v1::{SubmitTurnRequest, message::Role, session::Status},
};
use tests::{Session, World, text_of};

use crate::compaction::{completed, started};

const SMALL: &str = "scripted/small";

fn on(model: &str, turn: SubmitTurnRequest) -> SubmitTurnRequest {
    SubmitTurnRequest { model: model.into(), ..turn }
}

/// The model that answered last.
async fn answered(session: &Session) -> String {
    let messages = session.messages().await;
    let mut answers = messages.into_iter().rev();
    answers.find(|one| one.role() == Role::Assistant && !one.synthetic).unwrap().model
}

fn compactions(events: &[Event]) -> usize {
    events.iter().filter(|event| event.r#type.starts_with("context.compaction")).count()
}

#[tokio::test]
async fn per_turn_model_switch() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    let session = client.create_session_on("scripted/demo").await;

    // The model is per message, and only for that.
    session.run_turn(on(SMALL, session.turn("say Small."))).await;
    assert_eq!(answered(&session).await, SMALL);
    for _ in 0..2 {
        let seen = session.run_turn(session.long_turn(16_000, "say Large.")).await;
        assert_eq!((compactions(&seen), text_of(&seen).as_str()), (0, "Large."));
        assert_eq!(answered(&session).await, "scripted/demo");
    }

    // What the large one has read is too much for the small one: first a summary, then the answer.
    let seen = session.run_turn(on(SMALL, session.turn("say Small again."))).await;
    assert_eq!((started(&seen).trigger.as_str(), compactions(&seen)), ("model_switch", 2));
    assert!(completed(&seen).tokens_after < 6_000);
    assert_eq!(text_of(&seen), "Small again.");
    assert_eq!(answered(&session).await, SMALL);
    let seen = session.run("say Large again.").await;
    assert_eq!((compactions(&seen), answered(&session).await.as_str()), (0, "scripted/demo"));

    // A message that no summary makes smaller fails, and says what to do.
    let seen = session.run_turn(on(SMALL, session.long_turn(40_000, "say Never."))).await;
    assert_eq!(text_of(&seen), "");
    let ways_out = seen.iter().find_map(|event| match &event.payload {
        Some(Payload::ContextCompactionFailed(failed)) => Some(failed.ways_out.clone()),
        _ => None,
    });
    assert_eq!(ways_out.unwrap(), ["switch_model", "fork", "rewind"]);
    match &seen.last().unwrap().payload {
        Some(Payload::TurnFailed(failed)) => {
            assert_eq!(failed.reason, "context_too_large");
            assert!(failed.message.contains("scripted/small has room for 6000"), "{failed:?}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(session.get().await.status(), Status::Error);

    // And that helps.
    assert_eq!(text_of(&session.run("say On the large one.").await), "On the large one.");
}
