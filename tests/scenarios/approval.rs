use local::{Fleet, Service};
use proto::{
    event::v1::{Event, Payload},
    session::v1::{
        part::Content, respond_action_request::Decision, session::Status, subscribe_request::From,
    },
};
use tests::{Session, World, reason, text_of};

/// Shows whether it ran, and how often.
const APPEND: &str = r#"call bash {"command": "echo ran >> witness; cat witness"}"#;

#[tokio::test]
async fn approval_gate() {
    let mut world = World::start().await;
    let session = world.client("acme").await.create_careful_session().await;
    let mut events = session.subscribe(From::FromStart(true)).await;
    let action = session.asks(&format!("{APPEND}\n---\nsay Done: {{{{tool_result}}}}")).await;

    let seen = events.until(|event| event.r#type == "action.required").await;
    let required = seen.last().unwrap();
    assert_eq!(required.action_id, action.action_id);
    assert_eq!(
        (&required.turn_id, &required.tool_call_id),
        (&action.turn_id, &action.tool_call_id)
    );
    let request = action.request.clone().unwrap();
    assert_eq!(request.decisions, ["once", "session", "project", "reject"]);
    assert!(serde_json::from_str::<serde_json::Value>(&request.answer_schema_json).is_ok());
    assert_eq!((request.kind.as_str(), request.tool.as_str()), ("approval", "bash"));
    assert_eq!(APPEND.strip_prefix("call bash "), Some(request.input_json.as_str()));
    assert!(!ran(&session.log().await), "it ran before anybody said yes");

    let waiting = session.get().await;
    assert_eq!(waiting.status(), Status::WaitingOnApproval);
    let thread = session.snapshot().await.snapshot.unwrap().threads.remove(0);
    assert_eq!(thread.status, "blocked");
    assert_eq!(thread.pending_requests[0].action_id, action.action_id);

    // What waits for a person needs no process, and outlives them all.
    for service in Service::ALL {
        world.fleet.get(service).kill().await.unwrap();
    }
    for service in Service::ALL {
        world.fleet.get(service).restart().await.unwrap();
    }
    assert_eq!(session.actions().await, std::slice::from_ref(&action));
    assert_eq!(session.get().await.status(), Status::WaitingOnApproval);

    let mut events = session.subscribe(From::FromStart(true)).await;
    let approved = session.respond(&action, Decision::Once).await.unwrap();
    assert_eq!(
        (approved.status.as_str(), approved.action_id),
        ("approved", action.action_id.clone())
    );
    let seen = events.until_ended(&action.turn_id).await;
    assert_eq!(text_of(&seen), r#"Done: {"exit_code":0,"output":"ran\n"}"#);
    assert_eq!(input_of(&seen, "tool.args"), request.input_json);

    let again = session.respond(&action, Decision::Reject).await.unwrap_err();
    assert_eq!(again.code(), tonic::Code::FailedPrecondition);
    assert_eq!(reason(&again), "REASON_ACTION_RESOLVED");
    assert_eq!(session.get().await.status(), Status::Idle);
    assert_eq!(session.log().await, seen);
}

#[tokio::test]
async fn a_decision_reaches_as_far_as_it_says() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    let script = format!("{APPEND}\n---\nsay Done.");

    let session = client.create_careful_session().await;
    let action = session.asks(&script).await;
    let mut events = session.subscribe(From::Live(true)).await;
    session.respond(&action, Decision::Session).await.unwrap();
    events.until_ended(&action.turn_id).await;
    assert!(ran(&session.run(&script).await), "the same command is asked about twice");
    let other = session.asks("call bash {\"command\": \"ls\"}\n---\nsay Done.").await;

    let mut events = session.subscribe(From::Live(true)).await;
    session.respond(&other, Decision::Reject).await.unwrap();
    let seen = events.until_ended(&other.turn_id).await;
    assert!(!ran(&seen));
    assert_eq!(text_of(&seen), "Done.", "the model did not go on after a rejection");
    assert_eq!(error_text(&session, &other.tool_call_id).await, "the user rejected this");
    assert_eq!(client.create_careful_session().await.asks(&script).await.status, "open");
}

#[tokio::test]
async fn a_question_that_nobody_answers_expires() {
    let plan = Fleet::plan().env_of(Service::Session, "ACTION_EXPIRY", "0.5");
    let mut world = World::planned(plan.env_of(Service::Session, "HEARTBEAT", "0.2")).await;
    let session = world.client("acme").await.create_careful_session().await;
    let seen = session.run(&format!("{APPEND}\n---\nsay Well then.")).await;
    assert!(!ran(&seen));
    assert_eq!(text_of(&seen), "Well then.");
    let resolved = seen.iter().filter_map(|event| match &event.payload {
        Some(Payload::ActionResolved(resolved)) => Some(resolved.status.as_str()),
        _ => None,
    });
    assert_eq!(resolved.collect::<Vec<_>>(), ["expired"]);
}

fn ran(events: &[Event]) -> bool {
    events.iter().any(|event| event.r#type == "sandbox.applied" || event.r#type == "tool.result")
}

fn input_of(events: &[Event], name: &str) -> String {
    let event = events.iter().find(|event| event.r#type == name).unwrap();
    match &event.payload {
        Some(Payload::ToolArgs(args)) => args.input_json.clone(),
        other => panic!("{other:?}"),
    }
}

/// What a reload shows of a call that failed.
async fn error_text(session: &Session, tool_call_id: &str) -> String {
    let messages = session.messages().await;
    let mut parts = messages.into_iter().flat_map(|message| message.parts);
    let text = parts.find_map(|part| match part.content {
        Some(Content::Tool(tool)) if tool.tool_call_id == tool_call_id => Some(tool.error_text),
        _ => None,
    });
    text.unwrap()
}
