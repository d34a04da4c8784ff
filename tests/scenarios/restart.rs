use local::Service;
use proto::{
    event::v1::{Answer, Payload},
    session::v1::{
        Action, AnswerQuestionRequest, Message, message::Role, part::Content,
        respond_action_request::Decision, session::Status, subscribe_request::From,
    },
};
use tests::{Reader, Session, Witness, World, text_of};

use crate::what_dies::{plan, soon};

/// A long tool call behind a piece of text, and two more turns behind it.
const CALLING: &str = r#"say Before. 
call bash {"command": "echo begun >> witness; sleep 600; echo ended >> witness"}
---
say Never said."#;

const TALKING: &str = "pace 20ms\nrepeat 100000 \"word \"";

const ASKING: &str = r#"call bash {"command": "echo approved >> witness"}
---
say Thank you."#;

const WONDERING: &str = r#"call question {"questions": [{"prompt": "Who?", "free_text": true}]}
---
say {{tool_result}}"#;

#[tokio::test]
async fn restart_finalises_orphans() {
    let mut world = World::planned(plan()).await;
    let client = world.client("acme").await;
    let calling = client.create_session().await;
    let talking = client.create_session().await;
    let asking = client.create_careful_session().await;
    let wondering = client.create_session().await;
    let witness = Witness::of(&world, "acme", &calling).await;
    let approved = Witness::of(&world, "acme", &asking).await;
    let mut said = talking.subscribe(From::FromStart(true)).await;
    let mut turns = Vec::new();
    for (session, script) in
        [(&calling, CALLING), (&talking, TALKING), (&asking, ASKING), (&wondering, WONDERING)]
    {
        let turn = session.submit(script).await;
        let second = session.submit("say Second.").await;
        let third = session.submit("say Third.").await;
        turns.push([turn, second, third].map(|turn| turn.turn_id));
    }
    witness.says("begun").await;
    let mut seen = said.until(|event| event.r#type == "model.delta").await;
    for (session, waits) in
        [(&asking, Status::WaitingOnApproval), (&wondering, Status::WaitingOnUserInput)]
    {
        soon("the turn waits", async { while session.get().await.status() != waits {} }).await;
    }
    let (action, question) = (open_action(&asking).await, open_action(&wondering).await);

    // The other one finds out by itself.
    world.fleet.add(Service::Session).await.unwrap();
    world.fleet.get(Service::Session).kill().await.unwrap();
    while let Ok(event) = said.next().await {
        seen.push(event);
    }
    let other = client.at(&mut world.fleet, 1);
    let sessions = [calling, talking, asking, wondering]
        .map(|session| Session { client: other.clone(), ..session });
    for (session, turns) in sessions[..2].iter().zip(&turns) {
        let mut reader = Reader::new(session, std::slice::from_ref(&other));
        soon("the queue drains", reader.until_ended(&turns[2])).await;
        let log = session.log().await;
        assert_eq!(reader.seen, log);
        let ends = log.iter().filter_map(|event| match &event.payload {
            Some(Payload::TurnCompleted(_)) => Some((event.turn_id.as_str(), "completed", "")),
            Some(Payload::TurnFailed(failed)) => {
                Some((event.turn_id.as_str(), failed.status.as_str(), failed.reason.as_str()))
            }
            _ => None,
        });
        assert_eq!(
            ends.collect::<Vec<_>>(),
            [
                (turns[0].as_str(), "failed", "host_restart"),
                (turns[1].as_str(), "completed", ""),
                (turns[2].as_str(), "completed", ""),
            ]
        );
        let started = log.iter().filter(|event| event.r#type == "turn.started");
        let started: Vec<_> = started.map(|event| event.turn_id.as_str()).collect();
        assert_eq!(started, turns[..], "a turn ran twice or out of order");
        let shown = session.get().await;
        assert_eq!((shown.status(), shown.queued_turns), (Status::Idle, 0));
    }

    // What was said stays, and what was seen was said.
    let [calling, talking, asking, wondering] = &sessions;
    let log = talking.log().await;
    assert_eq!(log[..seen.len()], seen);
    let answer = answers(talking, &turns[1][0]).await;
    assert_eq!(texts(&answer), text_of(log.iter().filter(|event| event.turn_id == turns[1][0])));
    // What ran was aborted, and does not run again.
    let answer = answers(calling, &turns[0][0]).await;
    assert_eq!(texts(&answer), "Before. ");
    let calls =
        answer.iter().flat_map(|message| &message.parts).filter_map(|part| match &part.content {
            Some(Content::Tool(tool)) => Some((tool.state.as_str(), tool.error_text.as_str())),
            _ => None,
        });
    assert_eq!(calls.collect::<Vec<_>>(), [("output-error", "aborted by host restart")]);
    assert_eq!(witness.lines(), ["begun"]);

    // Who waits for a person was not running, and still waits.
    for (session, waits, action) in [
        (asking, Status::WaitingOnApproval, &action),
        (wondering, Status::WaitingOnUserInput, &question),
    ] {
        let shown = session.get().await;
        assert_eq!((shown.status(), shown.queued_turns), (waits, 2));
        assert_eq!(open_action(session).await, *action);
    }
    assert_eq!(approved.lines(), [""; 0]);
    asking.respond(&action, Decision::Once).await.unwrap();
    let answer = AnswerQuestionRequest {
        session_id: wondering.id.clone(),
        action_id: question.action_id,
        answers: vec![Answer { text: "Me.".into(), ..Answer::default() }],
    };
    other.turns().answer_question(answer).await.unwrap();
    for (session, turns, said) in [(asking, &turns[2], "Thank you."), (wondering, &turns[3], "Me.")]
    {
        let mut reader = Reader::new(session, std::slice::from_ref(&other));
        soon("the turn goes on", reader.until_ended(&turns[2])).await;
        let text = text_of(&reader.seen);
        assert!(text.contains(said) && text.ends_with("Second.Third."), "{text}");
    }
    assert_eq!(approved.lines(), ["approved"]);
}

/// The one thing that people are asked.
pub async fn open_action(session: &Session) -> Action {
    let mut actions = session.actions().await;
    assert_eq!(actions.len(), 1, "{actions:?}");
    let action = actions.remove(0);
    assert_eq!(action.status, "open");
    action
}

/// What the model said in a turn.
async fn answers(session: &Session, turn_id: &str) -> Vec<Message> {
    let messages = session.messages().await.into_iter();
    let of_turn =
        |message: &Message| message.role() == Role::Assistant && message.turn_id == turn_id;
    messages.filter(of_turn).collect()
}

fn texts(messages: &[Message]) -> String {
    let parts = messages.iter().flat_map(|message| &message.parts);
    let texts = parts.filter_map(|part| match &part.content {
        Some(Content::Text(text)) => Some(text.text.as_str()),
        _ => None,
    });
    texts.collect()
}
