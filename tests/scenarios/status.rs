use proto::{
    event::v1::{Event, Payload},
    session::v1::{
        AnswerQuestionRequest, part::Content, respond_action_request::Decision, session::Status,
        subscribe_request::From,
    },
};
use tests::{Session, World, text_of};

const ASK: &str = r#"call question {"questions": [{"prompt": "Which?", "options": [{"value": "a", "label": "A"}]}]}"#;

#[tokio::test]
async fn status_machine() {
    let mut world = World::start().await;
    let session = world.client("acme").await.create_careful_session().await;
    let mut events = session.subscribe(From::FromStart(true)).await;
    assert_eq!(session.get().await.status(), Status::Idle);

    session.submit("say busy\nhang").await;
    events.until(|event| text_of([event]) == "busy").await;
    assert_eq!(session.get().await.status(), Status::Busy);
    let turn = session.interrupt("").await;
    events.until_ended(&turn.turn_id).await;
    assert_eq!(session.get().await.status(), Status::Idle);

    // The model fails for longer than we look.
    let retrying = session.submit("fail rate_limit 600s 5").await;
    let seen = events.until(|event| event.r#type == "run.status").await;
    let Some(Payload::RunStatus(status)) = &seen.last().unwrap().payload else { panic!() };
    assert_eq!((status.status.as_str(), status.attempt), ("retrying", 2));
    assert!(status.delay_ms >= 600_000 && !status.message.is_empty());
    let shown = until(&session, Status::Retrying).await;
    assert!(shown.status_message.contains("attempt 2"), "{}", shown.status_message);
    session.interrupt("").await;
    events.until_ended(&retrying.turn_id).await;

    // People are waited for, and what is queued waits with them.
    let action = session.asks("call bash {\"command\": \"ls\"}\n---\nsay Listed.").await;
    assert_eq!(session.get().await.status(), Status::WaitingOnApproval);
    let behind = session.submit("say Behind.").await;
    assert_eq!(session.get().await.queued_turns, 1);
    session.respond(&action, Decision::Once).await.unwrap();
    let seen = events.until_ended(&behind.turn_id).await;
    assert_eq!(text_of(&seen), "Listed.Behind.");

    let question = session.asks(&format!("{ASK}\n---\nsay Thanks.")).await;
    assert_eq!(session.get().await.status(), Status::WaitingOnUserInput);
    let request = AnswerQuestionRequest {
        session_id: session.id.clone(),
        action_id: question.action_id,
        answers: vec![proto::event::v1::Answer { values: vec!["a".into()], text: String::new() }],
    };
    session.client.turns().answer_question(request).await.unwrap();
    events.until_ended(&question.turn_id).await;

    // A hard error holds the queue, and the next submission clears it.
    let broken = session.submit("delay 200ms\nfail auth").await;
    let held = session.submit("say Held.").await;
    events.until_ended(&broken.turn_id).await;
    let shown = session.get().await;
    assert_eq!((shown.status(), shown.queued_turns), (Status::Error, 1));
    assert!(!shown.status_message.is_empty());
    let last = session.submit("say Last.").await;
    let seen = events.until_ended(&last.turn_id).await;
    assert_eq!(text_of(&seen), "Held.Last.");
    assert!(seen.iter().any(|event| event.turn_id == held.turn_id));
    assert_eq!(session.get().await.status(), Status::Idle);
    assert_eq!(session.get().await.status_message, "");
}

#[tokio::test]
async fn error_buckets() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    let session = client.create_session().await;

    // Tools never throw: whatever goes wrong is an envelope, and the model goes on.
    let calls = [
        ("call bash {\"command\": 7}", "the input does not fit"),
        ("call bash \"{broken\"", "the input does not fit"),
        ("call nosuch {}", "there is no tool named"),
        ("call bash {\"command\": \"exit 3\"}", ""),
        ("call bash {\"command\": \"kill -9 $$\"}", ""),
        ("call bash {\"command\": \"sleep 60\", \"timeout_ms\": 100}", "100 ms"),
    ];
    for (call, text) in calls {
        let seen = session.run(&format!("{call}\n---\nsay went on")).await;
        assert_eq!(text_of(&seen), "went on", "{call}");
        let error = envelope(&session).await;
        assert!(error.contains(text), "{call}: {error}");
    }
    let denied = {
        client.put_agent_that("strict", proto::tools::v1::rule::Action::Deny).await;
        client.create_session_with("strict").await
    };
    let seen = denied.run("call bash {\"command\": \"ls\"}\n---\nsay went on").await;
    assert_eq!(text_of(&seen), "went on");
    assert_eq!(failure_kinds(&seen), ["denied"]);

    // What passes is tried again, and shows.
    let seen = session.run("fail transient 2\nsay third time lucky").await;
    assert_eq!(text_of(&seen), "third time lucky");
    let attempts = seen.iter().filter_map(|event| match &event.payload {
        Some(Payload::RunStatus(status)) if status.status == "retrying" => Some(status.attempt),
        _ => None,
    });
    assert_eq!(attempts.collect::<Vec<_>>(), [2, 3]);

    // What does not pass is an error that says so.
    let seen = session.run("fail auth").await;
    let Some(Payload::TurnFailed(failed)) = &seen.last().unwrap().payload else { panic!() };
    assert_eq!((failed.status.as_str(), failed.reason.as_str()), ("failed", "provider_error"));
    assert_eq!(session.get().await.status(), Status::Error);

    // An abort is a signal and not an error.
    let mut events = session.subscribe(From::Live(true)).await;
    let turn = session.submit("say here\nhang").await;
    events.until(|event| text_of([event]) == "here").await;
    session.interrupt("").await;
    let seen = events.until_ended(&turn.turn_id).await;
    let Some(Payload::TurnFailed(failed)) = &seen.last().unwrap().payload else { panic!() };
    assert_eq!(failed.status, "cancelled");
    assert_eq!(session.get().await.status(), Status::Idle);
}

/// The session once it has this status.
async fn until(session: &Session, status: Status) -> proto::session::v1::Session {
    loop {
        let shown = session.get().await;
        if shown.status() == status {
            return shown;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

/// What a reload shows of the last call: it is over, one way or the other.
async fn envelope(session: &Session) -> String {
    let messages = session.messages().await;
    let parts = messages.into_iter().flat_map(|message| message.parts);
    let tools = parts.filter_map(|part| match part.content {
        Some(Content::Tool(tool)) => Some(tool),
        _ => None,
    });
    let tool = tools.into_iter().next_back().unwrap();
    match tool.state.as_str() {
        "output-available" => tool.output_json,
        "output-error" => tool.error_text,
        state => panic!("{state}"),
    }
}

fn failure_kinds(events: &[Event]) -> Vec<&str> {
    let kinds = events.iter().filter_map(|event| match &event.payload {
        Some(Payload::ToolFailed(failed)) => Some(failed.kind.as_str()),
        _ => None,
    });
    kinds.collect()
}
