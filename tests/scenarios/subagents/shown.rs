use proto::{
    event::v1::{ContextResolved, Payload},
    session::v1::{
        CreateSessionRequest, GetAgentRequest, ListSessionsRequest, Manifest, manifest::Mode,
        subscribe_request::From,
    },
};
use serde_json::{Value, json};
use tests::{Client, Session, World, request_id, text_of};

use super::{WORKER, came_to, children, put_worker, results, session_of, task, tool_uses, worker};
use crate::what_dies::soon;

/// The sessions that a list shows.
async fn listed(client: &Client, include_ephemeral: bool) -> Vec<String> {
    let request = ListSessionsRequest { include_ephemeral, ..ListSessionsRequest::default() };
    let response = client.sessions().list_sessions(request).await.unwrap().into_inner();
    response.sessions.into_iter().map(|session| session.session_id).collect()
}

#[tokio::test]
async fn inspectable_and_opaque() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    put_worker(&client).await;
    client.put_manifest("reviewer", Manifest { inspectable: true, ..worker() }).await;
    let session = client.create_session().await;
    let work = "call bash {\"command\": \"echo deep inside\"}\n---\nsay found it";
    let calls = [task(WORKER, work), task("reviewer", work)].join("\n");
    let seen = session.run(&format!("{calls}\n---\nsay Done.")).await;
    let children = children(&session).await;
    let [opaque, inspectable] = &children[..] else { panic!("{children:?}") };

    // One is in the list and one is not, though it is there.
    let usual = listed(&client, false).await;
    assert!(usual.contains(&inspectable.session_id) && !usual.contains(&opaque.session_id));
    let all = listed(&client, true).await;
    assert!(all.contains(&inspectable.session_id) && all.contains(&opaque.session_id));
    assert_eq!(text_of(&session_of(&session, opaque).log().await), "found it");

    // The result of one points to its session, and the other has it inside.
    let came_to: Vec<Value> =
        results(&seen).iter().map(|result| serde_json::from_str(result).unwrap()).collect();
    assert!(came_to.contains(&json!({ "output": "found it" })), "{came_to:?}");
    let pointer = json!({ "session_id": inspectable.session_id, "output": "found it" });
    assert!(came_to.contains(&pointer), "{came_to:?}");
    let calls = tool_uses(&session).await;
    let transcripts = calls.iter().map(|call| call.metadata.clone().unwrap().transcript_json);
    let transcripts: Vec<_> = transcripts.collect();
    assert_eq!(transcripts[1], "");
    let transcript: Value = serde_json::from_str(&transcripts[0]).unwrap();
    assert_eq!(transcript["session_id"], json!(opaque.session_id));
    let messages = transcript["messages"].as_array().unwrap();
    let roles: Vec<_> = messages.iter().map(|message| message["role"].clone()).collect();
    assert_eq!(roles, [json!("user"), json!("assistant"), json!("assistant")]);
    assert!(messages[1]["parts"][0]["output"].as_str().unwrap().contains("deep inside"));
    // The model reads the end and not the way to it.
    let told = session.run("say Anything else?").await;
    let tokens = resolved(&told).remove(0).tokens;
    assert!(tokens < 20_000, "{tokens}");
}

fn resolved(events: &[proto::event::v1::Event]) -> Vec<ContextResolved> {
    let resolved = events.iter().filter_map(|event| match &event.payload {
        Some(Payload::ContextResolved(resolved)) => Some(resolved.clone()),
        _ => None,
    });
    resolved.collect()
}

#[tokio::test]
async fn caller_awareness_line() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    let line = "Your caller is another agent; return structured output.";
    let aware = Manifest { caller: "agent".into(), ..worker() };
    // The same words in the manifest are the same prompt, so the flag adds them and nothing else.
    let spelled = Manifest { prompt: format!("{}\n\n{line}", worker().prompt), ..worker() };
    client.put_manifest(WORKER, worker()).await;
    client.put_manifest("aware", aware).await;
    client.put_manifest("spelled", spelled).await;
    let session = client.create_session().await;
    let calls = [WORKER, "aware", "spelled"].map(|agent| task(agent, "say Hello.")).join("\n");
    session.run(&format!("{calls}\n---\nsay Done.")).await;

    let mut prompts = Vec::new();
    for child in children(&session).await {
        let log = session_of(&session, &child).log().await;
        prompts.push((child.agent, resolved(&log).remove(0)));
    }
    let prompt = |name: &str| {
        let found = prompts.iter().find(|(agent, _)| agent == name);
        found.map(|(_, resolved)| resolved.clone()).unwrap()
    };
    let (plain, aware) = (prompt(WORKER), prompt("aware"));
    assert_eq!(aware.prompt_digest, prompt("spelled").prompt_digest);
    assert_ne!(aware.prompt_digest, plain.prompt_digest);
    assert_ne!(aware.sections[0], plain.sections[0]);
    assert_eq!(aware.sections[1..], plain.sections[1..]);
    assert_eq!(aware.messages, plain.messages);
}

#[tokio::test]
async fn specialised_subagents() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    for agent in ["title", "summary", "compaction", "explore"] {
        let request = GetAgentRequest { agent: agent.into(), version: 0 };
        let response = client.agents().get_agent(request).await.unwrap().into_inner();
        let shipped = response.agent.unwrap();
        let manifest = shipped.manifest.unwrap();
        assert!(shipped.built_in && !manifest.inspectable, "{agent}");
        assert_eq!(manifest.mode(), Mode::Subagent, "{agent}");
        assert!(manifest.temperature.is_some_and(|value| value <= 0.3), "{agent}");
        assert!((1..=4000).contains(&manifest.max_output_tokens), "{agent}");
        assert!(["title", "summary", "explore"].contains(&manifest.profile.as_str()), "{agent}");
    }

    // They are called like any other, on a cheap model, and look without touching.
    let session = client.create_session().await;
    let look = "call glob {\"pattern\": \"*\"}\ncall write {\"path\": \"a\", \"content\": \"\"}\n---\nsay Nothing there.";
    let seen = session.run(&format!("{}\n---\nsay Done.", task("explore", look))).await;
    assert_eq!(results(&seen), [r#"{"output":"Nothing there."}"#]);
    let child = children(&session).await.remove(0);
    let log = session_of(&session, &child).log().await;
    let refused = came_to(&session_of(&session, &child)).await;
    assert!(refused[1].contains("does not have the tool write"), "{refused:?}");
    let tiers = log.iter().filter_map(|event| match &event.payload {
        Some(Payload::TaskProfileResolved(profile)) => Some(profile.profile.clone()),
        _ => None,
    });
    assert!(tiers.collect::<Vec<_>>().iter().all(|profile| profile == "explore"));
    let seen = session.run(&format!("{}\n---\nsay Done.", task("summary", "say ignored"))).await;
    assert!(results(&seen)[0].starts_with(r#"{"output":"#), "{:?}", results(&seen));

    // A session that nobody named gets a name beside its first turn.
    let named =
        Manifest { prompt: "#!script\nsay \"Lunch plans\"".into(), ..client.agent("title").await };
    client.put_manifest("title", named.clone()).await;
    let session = unnamed(&client).await;
    let mut events = session.subscribe(From::FromStart(true)).await;
    session.submit("say Hello.").await;
    events.until(|event| event.r#type == "session.updated").await;
    assert_eq!(session.get().await.title, "Lunch plans");
    session.run("say Again.").await;
    let log = session.log().await;
    assert_eq!(log.iter().filter(|event| event.r#type == "session.updated").count(), 1);

    // One that never answers keeps nobody, one that fails fails nobody.
    for prompt in ["#!script\nhang", "#!script\nfail auth"] {
        client.put_manifest("title", Manifest { prompt: prompt.into(), ..named.clone() }).await;
        let session = unnamed(&client).await;
        assert_eq!(text_of(&soon("the turn ends", session.run("say Hello.")).await), "Hello.");
        assert_eq!(session.get().await.title, "");
    }
}

/// A session that was created without a title.
async fn unnamed(client: &Client) -> Session {
    let request = CreateSessionRequest {
        request_id: request_id(),
        agent: "scripted".into(),
        ..CreateSessionRequest::default()
    };
    let response = client.sessions().create_session(request).await.unwrap().into_inner();
    Session { client: client.clone(), id: response.session.unwrap().session_id }
}
