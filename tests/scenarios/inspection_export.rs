use futures::{StreamExt as _, stream};
use local::{Fleet, Service};
use proto::session::v1::{ListSessionsRequest, Message, session::Status};
use serde_json::Value;
use tests::{Client, Session, World, reason, request, request_id, text_of};
use tokio::{
    task::JoinSet,
    time::{Duration, sleep},
};
use tonic_types::StatusExt as _;

const WORK: &str = r#"think Let me see.
say I look.
call bash {"command": "echo found"}
---
say It said {{tool_result}}"#;

#[tokio::test]
async fn inspection_export() {
    let mut world = World::planned(Fleet::plan().env_of(Service::Session, "SWEEP", "0.2")).await;
    let client = world.client("acme").await;
    let session = client.create_session().await;
    session.run(WORK).await;
    session.run("say Two.\ncut").await;
    let last = session.run("say Three.").await.last().unwrap().sequence;
    assert!(session.sealed(last).await.intact);

    // A session line, then each message with its parts, then the log with its seals.
    let lines = session.export(true).await;
    let parsed: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<_> = parsed.iter().map(|line| line["type"].as_str().unwrap()).collect();
    let messages = session.messages().await;
    assert_eq!(kinds[0], "session");
    assert_eq!(parsed[0]["session"]["sessionId"], session.id);
    assert!(kinds[1..=messages.len()].iter().all(|kind| *kind == "message"));
    for (line, message) in parsed[1..].iter().zip(&messages) {
        assert_eq!(line["message"]["messageId"], message.message_id);
        assert_eq!(line["message"]["parts"].as_array().unwrap().len(), message.parts.len());
    }
    let log = session.log_json().await;
    let events: Vec<_> = parsed.iter().filter(|line| line["type"] == "event").collect();
    assert_eq!(events.len(), log.len());
    for (line, event) in events.iter().zip(&log) {
        let event: Value = serde_json::from_str(event).unwrap();
        assert_eq!(
            (&line["event"]["eventId"], &line["event"]["type"]),
            (&event["eventId"], &event["type"])
        );
    }
    assert_eq!(*kinds.last().unwrap(), "seal");
    let plain = session.export(false).await;
    assert_eq!(plain[1..], lines[1..=messages.len()]);

    // It round-trips: another session shows the same.
    let request_id = request_id();
    let copy = client.import(&request_id, &lines).await.unwrap();
    assert_ne!(copy.id, session.id);
    same_view(&session, &copy).await;
    let again = copy.export(false).await;
    assert_eq!(again[1..], plain[1..]);
    let types: Vec<_> = copy.log().await.into_iter().map(|event| event.r#type).collect();
    assert_eq!(types, ["session.created", "thread.started", "history.reconstructed"]);

    // Repeated, it is the same one; with something else under its name, it is refused.
    assert_eq!(client.import(&request_id, &lines).await.unwrap().id, copy.id);
    let reused = client.import(&request_id, &plain).await.err().unwrap();
    assert_eq!(reason(&reused), "REASON_REQUEST_ID_REUSED");
    let sessions = count(&client).await;
    assert_eq!(sessions, 2);

    // It goes on as the original would, and is sealed like any other.
    let events = copy.run("say And on.").await;
    assert_eq!(text_of(&events), "And on.");
    assert!(copy.sealed(events.last().unwrap().sequence).await.intact);
    assert_eq!(copy.messages().await.len(), messages.len() + 2);

    refusals(&client, &lines).await;
    assert_eq!(count(&client).await, sessions, "something is left of what was refused");

    // It belongs to whoever imported it, and shares nothing with the original.
    let stranger = world.client("umbrella").await;
    let theirs = stranger.import(&request_id, &lines).await.unwrap();
    same_view(&session, &theirs).await;
    assert_ne!(theirs.get().await.workspace_id, session.get().await.workspace_id);
    assert_eq!(count(&client).await, sessions);
    slow_ones_are_in_nobodys_way(&client, &stranger, &session, &lines).await;
}

async fn slow_ones_are_in_nobodys_way(
    client: &Client,
    stranger: &Client,
    session: &Session,
    lines: &[String],
) {
    let mut slow: JoinSet<()> = JoinSet::new();
    for _ in 0..2 {
        let (client, lines) = (client.clone(), lines.to_vec());
        slow.spawn(async move {
            // Whoever comes first has the place; it is tried until it is this one.
            loop {
                let begun = stream::iter(request(&request_id(), &lines));
                let _ = client.sessions().import_session(begun.chain(stream::pending())).await;
                sleep(Duration::from_millis(10)).await;
            }
        });
    }
    let same = request_id();
    let refused = session.eventually(async || client.import(&same, lines).await.err()).await;
    assert_eq!(reason(&refused), "REASON_OVERLOADED");
    stranger.import(&request_id(), lines).await.unwrap();
    slow.shutdown().await;
    session.eventually(async || client.import(&same, lines).await.ok()).await;
}

async fn refusals(client: &Client, lines: &[String]) {
    let event = lines.iter().position(|line| line.starts_with(r#"{"type":"event""#)).unwrap();
    let seal = lines.iter().position(|line| line.starts_with(r#"{"type":"seal""#)).unwrap();
    let mut altered = lines.to_vec();
    altered[event + 3] = altered[event + 3].replacen("2", "3", 1);
    let mut cut = lines.to_vec();
    cut.remove(event);
    let mut twice = lines.to_vec();
    twice.insert(2, lines[1].clone());
    let nonsense = vec![lines[0].clone(), "{\"type\":\"message\"".to_owned()];
    let headless = lines[1..].to_vec();
    for (lines, line) in [
        (altered, None),
        (cut, Some(seal)),
        (twice, Some(3)),
        (nonsense, Some(2)),
        (headless, Some(1)),
        (vec!["[]".to_owned()], Some(1)),
    ] {
        let error = client.import(&request_id(), &lines).await.err().unwrap();
        assert_eq!(reason(&error), "REASON_IMPORT_INVALID", "{error:?}");
        let info = error.get_details_error_info().unwrap();
        if let Some(line) = line {
            assert_eq!(info.metadata["line"], line.to_string(), "{}", error.message());
        }
    }
}

/// Everything that people see but whose session it is.
async fn same_view(session: &Session, copy: &Session) {
    let of = |messages: Vec<Message>| -> Vec<Message> {
        let messages = messages.into_iter();
        messages.map(|message| Message { session_id: String::new(), ..message }).collect()
    };
    assert_eq!(of(copy.messages().await), of(session.messages().await));
    let (one, other) =
        (session.snapshot().await.snapshot.unwrap(), copy.snapshot().await.snapshot.unwrap());
    let (one, other) = (&one.threads[0], &other.threads[0]);
    assert_eq!(other.turns, one.turns);
    assert_eq!(other.cost_state, one.cost_state);
    assert_eq!(other.incidents, one.incidents);
    let (one, other) = (session.get().await, copy.get().await);
    assert_eq!((&other.title, &other.agent), (&one.title, &one.agent));
    assert_eq!((other.input_tokens, other.output_tokens), (one.input_tokens, one.output_tokens));
    assert_eq!(other.status(), Status::Idle);
}

async fn count(client: &Client) -> usize {
    let request = ListSessionsRequest::default();
    client.sessions().list_sessions(request).await.unwrap().into_inner().sessions.len()
}
