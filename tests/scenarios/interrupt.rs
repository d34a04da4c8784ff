use proto::{
    event::v1::{Event, Payload},
    session::v1::{
        InterruptTurnRequest, message::Role, part::Content, session::Status,
        subscribe_request::From, turn,
    },
};
use tests::{Session, World, reason, text_of};

#[tokio::test]
async fn interrupt_leaves_truth() {
    let mut world = World::start().await;
    let session = world.client("acme").await.create_session().await;

    // A model that stopped in the middle of a sentence and says nothing more.
    let mut events = session.subscribe(From::FromStart(true)).await;
    let turn = session.submit("say half a\nhang").await;
    let next = session.submit("say The next one.").await;
    events.until(|event| text_of([event]).ends_with('a')).await;
    let stopped = session.interrupt("changed my mind").await;
    assert_eq!(stopped.turn_id, turn.turn_id);
    let seen = events.until_ended(&turn.turn_id).await;
    assert_interrupted(seen.last().unwrap());
    assert_eq!(session.get_turn(&turn.turn_id).await.status(), turn::Status::Cancelled);
    assert_eq!(shown(&session, &turn.turn_id).await, "text half a");
    let seen = events.until_ended(&next.turn_id).await;
    assert_eq!(text_of(&seen), "The next one.", "the queue does not go on");

    // A tool in the middle of its work.
    let turn = session.submit("call bash {\"command\": \"echo begun; sleep 600\"}").await;
    events.until(|event| event.r#type == "tool.progress").await;
    session.interrupt("changed my mind").await;
    let seen = events.until_ended(&turn.turn_id).await;
    assert_interrupted(seen.last().unwrap());
    assert_eq!(shown(&session, &turn.turn_id).await, "output-error aborted by the user");

    // A turn that waits for a person, and nobody runs.
    let careful = session.client.create_careful_session().await;
    let action = careful.asks("call bash {\"command\": \"ls\"}").await;
    let mut events = careful.subscribe(From::FromStart(true)).await;
    careful.interrupt("changed my mind").await;
    let seen = events.until_ended(&action.turn_id).await;
    assert_interrupted(seen.last().unwrap());
    assert_eq!(shown(&careful, &action.turn_id).await, "output-error aborted by the user");
    let resolved = seen.iter().find_map(|event| match &event.payload {
        Some(Payload::ActionResolved(resolved)) => Some(resolved.status.as_str()),
        _ => None,
    });
    assert_eq!(resolved, Some("cancelled"));
    assert_eq!(careful.get().await.status(), Status::Idle);

    // What a reload shows is what the log says, and there is nothing left to stop.
    assert_eq!(careful.log().await, seen);
    let request = InterruptTurnRequest {
        session_id: careful.id.clone(),
        turn_id: action.turn_id,
        ..InterruptTurnRequest::default()
    };
    let over = careful.client.turns().interrupt_turn(request).await.unwrap_err();
    assert_eq!(reason(&over), "REASON_TURN_OVER");
}

fn assert_interrupted(event: &Event) {
    let Some(Payload::TurnFailed(failed)) = &event.payload else { panic!("{event:?}") };
    assert_eq!((failed.status.as_str(), failed.reason.as_str()), ("cancelled", "interrupted"));
    assert_eq!((failed.message.as_str(), failed.subject.as_str()), ("changed my mind", "ann"));
}

/// What a reload shows of the answer in a turn: each part's state and text.
async fn shown(session: &Session, turn_id: &str) -> String {
    let messages = session.messages().await.into_iter();
    let answers =
        messages.filter(|message| message.turn_id == turn_id && message.role() == Role::Assistant);
    let parts = answers.flat_map(|message| message.parts);
    let lines = parts.map(|part| match part.content {
        Some(Content::Text(text)) if !text.streaming => format!("text {}", text.text),
        Some(Content::Tool(tool)) => format!("{} {}", tool.state, tool.error_text),
        other => panic!("{other:?}"),
    });
    lines.collect::<Vec<_>>().join(", ")
}
