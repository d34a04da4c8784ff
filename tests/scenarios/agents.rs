use std::fs;

use local::{Fleet, Service};
use proto::{
    event::v1::Payload,
    session::v1::{
        Agent, CreateSessionRequest, DeleteAgentRequest, GetAgentRequest, ListAgentsRequest,
        Manifest, PutAgentRequest,
    },
};
use tests::{Client, Session, World, explain, request_id};

/// What ships, what the operator adds, and what every test has.
const AGENTS: [&str; 7] =
    ["compaction", "default", "explore", "helper", "scripted", "summary", "title"];

/// An operator's agents are everybody's, a tenant's own take their place, and a turn says
/// which one it ran.
#[tokio::test]
async fn agents_come_by_file_and_by_api() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("helper.yaml");
    fs::write(&file, "prompt: You help.\nmodel: scripted/demo\n").unwrap();
    let path = dir.path().to_string_lossy();
    let plan = Fleet::plan().env_of(Service::Session, "AGENTS", path);
    let mut world = World::planned(plan).await;
    let client = world.client("acme").await;
    assert_eq!(list(&client, 0).await, AGENTS);
    assert_eq!(list(&client, 1).await, AGENTS);

    let shipped = get(&client, 0).await;
    assert!(shipped.built_in);
    assert_eq!(get(&client, shipped.version).await, shipped);
    assert_eq!(runs(&client).await, shipped.version);

    // Of another content, of another version.
    fs::write(&file, "prompt: You help more.\nmodel: scripted/demo\n").unwrap();
    world.fleet.get(Service::Session).restart().await.unwrap();
    let changed = get(&client, 0).await;
    assert_ne!(changed.version, shipped.version);
    assert_eq!(runs(&client).await, changed.version);

    // A tenant's own takes its place, for this tenant.
    let manifest = Manifest { model: "scripted/demo".into(), ..Manifest::default() };
    let request = PutAgentRequest { agent: "helper".into(), manifest: Some(manifest) };
    client.agents().put_agent(request).await.unwrap();
    assert_eq!((get(&client, 0).await.version, runs(&client).await), (1, 1));
    assert_eq!(list(&client, 0).await, AGENTS);
    let other = world.client("other").await;
    assert_eq!(get(&other, 0).await, changed);

    // And gives it back when it is deleted; what ships stays.
    let delete = |agent: &str| DeleteAgentRequest { agent: agent.into() };
    for _ in 0..2 {
        client.agents().delete_agent(delete("helper")).await.unwrap();
        assert_eq!(get(&client, 0).await, changed);
        assert_eq!(get(&client, 1).await.version, 1);
    }
    for (agent, problem) in
        [("default", "ships with the server and cannot be deleted"), ("nobody", "not found")]
    {
        let refused = client.agents().delete_agent(delete(agent)).await.unwrap_err();
        assert_eq!(
            explain(&refused),
            format!("NotFound REASON_AGENT_NOT_FOUND: agent {agent} {problem}")
        );
    }

    // A manifest that cannot be meant stops the server, with the file and the field.
    fs::write(&file, "temperature: 7\n").unwrap();
    let session = world.fleet.get(Service::Session);
    let problem = format!("{:#}", session.restart().await.unwrap_err());
    for part in ["helper.yaml", "temperature: between 0 and 2"] {
        assert!(problem.contains(part), "{problem}");
    }
}

/// The names of all agents, so many at a time.
async fn list(client: &Client, page_size: i32) -> Vec<String> {
    let (mut names, mut page_token) = (Vec::new(), String::new());
    loop {
        let request = ListAgentsRequest { page_size, page_token };
        let page = client.agents().list_agents(request).await.unwrap().into_inner();
        names.extend(page.agents.into_iter().map(|agent| agent.agent));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return names;
        }
    }
}

async fn get(client: &Client, version: i32) -> Agent {
    let request = GetAgentRequest { agent: "helper".into(), version };
    client.agents().get_agent(request).await.unwrap().into_inner().agent.unwrap()
}

/// The version of the helper that a turn runs.
async fn runs(client: &Client) -> i32 {
    let request = CreateSessionRequest {
        request_id: request_id(),
        agent: "helper".into(),
        ..CreateSessionRequest::default()
    };
    let created = client.sessions().create_session(request).await.unwrap().into_inner();
    let session = Session { client: client.clone(), id: created.session.unwrap().session_id };
    let events = session.run("say Yes.").await;
    let started = events.iter().find_map(|event| match &event.payload {
        Some(Payload::TurnStarted(started)) => Some(started.agent_version),
        _ => None,
    });
    started.unwrap()
}
