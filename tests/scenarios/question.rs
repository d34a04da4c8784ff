use proto::{
    event::v1::{Answer, Event, Payload},
    session::v1::{
        AnswerQuestionRequest, RejectQuestionRequest, respond_action_request::Decision,
        session::Status, subscribe_request::From,
    },
};
use tests::{Session, World, reason, text_of};

const ASK: &str = r#"call question {"questions": [{"prompt": "Which colours?", "options": [{"value": "red", "label": "Red"}, {"value": "blue", "label": "Blue"}], "multi_select": true}, {"prompt": "Anything else?", "free_text": true}]}"#;

#[tokio::test]
async fn question_tool_round_trip() {
    let mut world = World::start().await;
    let session = world.client("acme").await.create_session().await;
    let script = format!("{ASK}\n---\nsay Noted: {{{{tool_result}}}}");

    let mut events = session.subscribe(From::FromStart(true)).await;
    let action = session.asks(&script).await;
    assert_eq!(session.get().await.status(), Status::WaitingOnUserInput);
    let request = action.request.clone().unwrap();
    assert_eq!((request.kind.as_str(), request.prompt.as_str()), ("question", "Which colours?"));
    assert_eq!(request.questions.len(), 2);
    assert!(request.questions[0].multi_select && request.questions[1].free_text);
    assert_eq!(request.questions[0].options[1].label, "Blue");

    // Answers that do not fit change nothing.
    let (red, blue) = (choice(&["red"]), choice(&["blue", "red"]));
    for wrong in [
        vec![red.clone()],
        vec![choice(&["green"]), text("no")],
        vec![choice(&[]), text("no")],
        vec![red.clone(), choice(&["red"])],
    ] {
        let error = answer(&session, &action.action_id, wrong).await.unwrap_err();
        assert_eq!(reason(&error), "REASON_ACTION_WRONG_ANSWER", "{error:?}");
    }
    let error = session.respond(&action, Decision::Once).await.unwrap_err();
    assert_eq!(reason(&error), "REASON_ACTION_WRONG_ANSWER");
    assert_eq!(session.actions().await, std::slice::from_ref(&action));

    answer(&session, &action.action_id, vec![blue, text("a bow")]).await.unwrap();
    let seen = events.until_ended(&action.turn_id).await;
    let said = text_of(&seen);
    assert!(said.contains("blue") && said.contains("red") && said.contains("a bow"), "{said}");
    let about = seen.iter().filter(|event| event.action_id == action.action_id);
    let about: Vec<_> = about.map(|event| event.r#type.as_str()).collect();
    assert_eq!(about, ["action.required", "action.resolved"]);
    assert_eq!(tool_ends(&seen), ["tool.result"], "the answer is not the result in the same turn");
    let error = answer(&session, &action.action_id, vec![red, text("late")]).await.unwrap_err();
    assert_eq!(reason(&error), "REASON_ACTION_RESOLVED");

    // Who will not answer makes the call fail, and the turn goes on.
    let action = session.asks(&script).await;
    let mut events = session.subscribe(From::Live(true)).await;
    let request = RejectQuestionRequest {
        session_id: session.id.clone(),
        action_id: action.action_id.clone(),
        comment: "ask me tomorrow".into(),
    };
    session.client.turns().reject_question(request).await.unwrap();
    let seen = events.until_ended(&action.turn_id).await;
    assert_eq!(tool_ends(&seen), ["tool.failed"]);
    assert!(text_of(&seen).contains("ask me tomorrow"));

    // Where nobody is, nobody is asked.
    let mut events = session.subscribe(From::Live(true)).await;
    let mut request = session.turn(&script);
    request.headless = true;
    let turn = session.client.turns().submit_turn(request).await.unwrap().into_inner().turn;
    let seen = events.until_ended(&turn.unwrap().turn_id).await;
    assert_eq!(tool_ends(&seen), ["tool.failed"]);
    assert!(seen.iter().all(|event| event.action_id.is_empty()), "somebody was asked");
    assert_eq!(seen.last().unwrap().r#type, "turn.completed");
}

fn choice(values: &[&str]) -> Answer {
    let values = values.iter().map(|value| (*value).to_owned()).collect();
    Answer { values, text: String::new() }
}

fn text(text: &str) -> Answer {
    Answer { values: vec![], text: text.into() }
}

async fn answer(
    session: &Session,
    action_id: &str,
    answers: Vec<Answer>,
) -> Result<(), tonic::Status> {
    let (session_id, action_id) = (session.id.clone(), action_id.to_owned());
    let request = AnswerQuestionRequest { session_id, action_id, answers };
    session.client.turns().answer_question(request).await.map(|_| ())
}

fn tool_ends(events: &[Event]) -> Vec<&str> {
    let ended = |event: &&Event| {
        matches!(event.payload, Some(Payload::ToolResult(_) | Payload::ToolFailed(_)))
    };
    events.iter().filter(ended).map(|event| event.r#type.as_str()).collect()
}
