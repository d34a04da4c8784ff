use local::Service;
use proto::{
    event::v1::{CompactionCompleted, CompactionStarted, Event, ModelRequested, Payload},
    session::v1::{CompactSessionRequest, Message, message::Role, part::Content},
};
use serde_json::{Value, json};
use tests::{World, explain, request_id, text_of};

#[tokio::test]
async fn context_compaction() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    let session = client.create_session_on("scripted/small").await;
    session.run("say Kept.").await;
    let mut turns = 1;
    let seen = loop {
        let seen = session.run_turn(session.long_turn(6000, "say Fine.")).await;
        if seen.iter().any(|event| event.r#type.starts_with("context.compaction")) {
            break seen;
        }
        turns += 1;
        assert!(turns < 10, "a context of 6,000 tokens took {turns} messages of 1,500");
    };
    assert_eq!(seen.last().unwrap().r#type, "turn.completed");
    assert_eq!(text_of(&seen), "Fine.", "nobody reads along with a summarizer");

    let started = started(&seen);
    let completed = completed(&seen);
    let before = session.log().await;
    let submitted = before.iter().filter(|event| event.r#type == "turn.submitted");
    let submitted: Vec<_> = submitted.map(|event| event.turn_id.clone()).collect();
    assert_eq!((started.trigger.as_str(), completed.trigger.as_str()), ("auto", "auto"));
    // All but what is kept verbatim: at most a quarter, and that is this turn's message.
    assert_eq!(started.turn_ids, submitted[..turns]);
    assert_eq!(completed.turn_ids, started.turn_ids);
    assert_eq!(completed.tokens_before, started.tokens_before);
    assert!(completed.tokens_before > 4_500, "{completed:?}");
    assert!(completed.tokens_after < completed.tokens_before / 2, "{completed:?}");
    assert_eq!(completed.method, "summary");
    let order: Vec<_> = seen.iter().map(|event| event.r#type.as_str()).collect();
    let place = |name: &str| order.iter().position(|other| *other == name).unwrap();
    assert!(place("context.compaction.started") < place("context.compaction.completed"));
    assert!(place("context.compaction.completed") < place("model.requested"));

    // Nobody is forgotten: a turn that waits for people is not compacted.
    let messages = session.messages().await;
    let open = session.actions().await.into_iter().map(|action| action.action_id);
    assert_eq!(completed.open_action_ids, open.collect::<Vec<_>>());

    // The boundary: the model reads the summary and this turn, and the next begins behind it.
    assert_eq!(requested(&seen).messages, 2);
    let marker = messages.iter().find(|message| message.message_id == completed.message_id);
    assert_eq!(marker.unwrap().turn_id, seen[0].turn_id);
    let next = session.run("say Next.").await;
    assert_eq!((text_of(&next).as_str(), requested(&next).messages), ("Next.", 4));

    // What is kept outside of the conversation stays reachable.
    let session = client.create_session().await;
    session.run("call bash {\"command\": \"seq 1 20000\"}\n---\nsay Kept.").await;
    let completed = self::completed(&session.compact().await);
    let kept = evidence(&session.messages().await, &completed.turn_ids);
    assert_eq!((kept.len(), &completed.evidence_refs), (1, &kept));
}

#[tokio::test]
async fn compaction_storage() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    let session = client.create_session().await;
    for word in ["One.", "Two.", "Three."] {
        session.run(&format!("say {word}")).await;
    }
    let before = session.messages().await;
    let cost = session.get().await.cost_micros;

    // By hand: nothing is kept verbatim.
    let seen = session.compact().await;
    let completed = completed(&seen);
    assert_eq!((completed.trigger.as_str(), completed.tail_start_id.as_str()), ("manual", ""));
    let after = session.messages().await;
    assert_eq!(after[..before.len()], before, "summarized messages are touched");
    let added: Vec<_> =
        after[before.len()..].iter().map(|one| (one.role(), one.synthetic)).collect();
    assert_eq!(added, [(Role::User, true), (Role::Assistant, true)]);
    assert_eq!(after[before.len()].parts, []);
    let marker = after.last().unwrap();
    assert_eq!(marker.message_id, completed.message_id);
    let data = data(marker);
    assert_eq!((&data["tail_start_id"], &data["auto"]), (&Value::Null, &json!(false)));
    assert!(data["summary_tokens"].as_i64().unwrap() > 0);
    let fields: Vec<_> = data.as_object().unwrap().keys().cloned().collect();
    assert_eq!(fields, ["auto", "summary", "summary_tokens", "tail_start_id"]);
    assert!(marker.usage.is_some() && marker.cost_micros > 0);
    assert_eq!(session.get().await.cost_micros, cost + marker.cost_micros);

    // The view is resolved when it is read: the summary, and what is said from now on.
    let next = session.run("say Four.").await;
    assert_eq!((text_of(&next).as_str(), requested(&next).messages), ("Four.", 2));

    // Once per request id, and not beside another turn.
    let request =
        CompactSessionRequest { session_id: session.id.clone(), request_id: request_id() };
    let mut sessions = client.sessions();
    world.fleet.get(Service::Models).pause().unwrap();
    let first = sessions.compact_session(request.clone()).await.unwrap().into_inner().turn_id;
    let again = sessions.compact_session(request.clone()).await.unwrap().into_inner().turn_id;
    assert_eq!(first, again);
    let other = CompactSessionRequest { request_id: request_id(), ..request };
    let refused = sessions.compact_session(other).await.unwrap_err();
    assert!(explain(&refused).contains("REASON_SESSION_BUSY"), "{}", explain(&refused));
    world.fleet.get(Service::Models).resume().unwrap();

    // By itself: two turns are kept if they fit.
    let session = client.create_session_on("scripted/small").await;
    let mut asked = Vec::new();
    let completed = loop {
        let seen = session.run_turn(session.long_turn(2200, "say Fine.")).await;
        asked.push(seen[0].turn_id.clone());
        if seen.iter().any(|event| event.r#type == "context.compaction.completed") {
            break self::completed(&seen);
        }
        assert!(asked.len() < 20);
    };
    let messages = session.messages().await;
    let marker = messages.iter().find(|message| message.message_id == completed.message_id);
    let data = self::data(marker.unwrap());
    assert_eq!(data["auto"], json!(true));
    let tail = messages.iter().find(|message| message.message_id == completed.tail_start_id);
    let tail = tail.unwrap();
    assert_eq!(data["tail_start_id"], json!(tail.message_id));
    assert_eq!((tail.role(), &tail.turn_id), (Role::User, &asked[asked.len() - 2]));
}

pub fn started(events: &[Event]) -> CompactionStarted {
    let started = events.iter().find_map(|event| match &event.payload {
        Some(Payload::ContextCompactionStarted(started)) => Some(started.clone()),
        _ => None,
    });
    started.expect("nothing was compacted")
}

pub fn completed(events: &[Event]) -> CompactionCompleted {
    let completed = events.iter().find_map(|event| match &event.payload {
        Some(Payload::ContextCompactionCompleted(completed)) => Some(completed.clone()),
        _ => None,
    });
    completed.unwrap_or_else(|| panic!("nothing was compacted: {:#?}", events.last()))
}

/// What the model was asked last.
pub fn requested(events: &[Event]) -> ModelRequested {
    let requested = events.iter().rev().find_map(|event| match &event.payload {
        Some(Payload::ModelRequested(requested)) => Some(requested.clone()),
        _ => None,
    });
    requested.expect("no model was asked")
}

/// The one part of a marker.
fn data(marker: &Message) -> Value {
    assert_eq!(marker.parts.len(), 1);
    assert_eq!(marker.parts[0].r#type, "data-compaction");
    match &marker.parts[0].content {
        Some(Content::DataJson(json)) => serde_json::from_str(json).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// The refs of outputs in these turns, newest first.
fn evidence(messages: &[Message], turns: &[String]) -> Vec<String> {
    let parts =
        messages.iter().filter(|one| turns.contains(&one.turn_id)).flat_map(|one| &one.parts);
    let refs = parts.filter_map(|part| match &part.content {
        Some(Content::Tool(tool)) => Some(tool.metadata.clone()?.output_ref),
        _ => None,
    });
    let mut refs: Vec<_> = refs.filter(|text| !text.is_empty()).collect();
    refs.reverse();
    refs
}
