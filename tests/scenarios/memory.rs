use proto::{
    event::v1::{Event, Payload, context_resolved::Section},
    session::v1::{
        DeleteMemoryRequest, ListMemoriesRequest, Manifest, Memory, ReadMemoryRequest,
        WriteMemoryRequest, part::Content,
    },
    tools::v1::{Permissions, Rule, rule::Action},
};
use serde_json::{Value, json};
use tests::{Client, Session, World, explain, text_of};
use tonic::Status;

fn memory(scope: &str, project: &str, name: &str, body: &str) -> Memory {
    Memory {
        scope: scope.into(),
        project: project.into(),
        name: name.into(),
        description: format!("About {name}"),
        r#type: "user".into(),
        body: body.into(),
        update_time: None,
    }
}

async fn write(client: &Client, memory: Memory) -> Result<Memory, Status> {
    let request = WriteMemoryRequest { memory: Some(memory) };
    Ok(client.memories().write_memory(request).await?.into_inner().memory.unwrap())
}

async fn read(client: &Client, scope: &str, project: &str, name: &str) -> Result<Memory, Status> {
    let (scope, project, name) = (scope.into(), project.into(), name.into());
    let request = ReadMemoryRequest { scope, project, name };
    Ok(client.memories().read_memory(request).await?.into_inner().memory.unwrap())
}

async fn names(client: &Client, scope: &str, project: &str) -> Vec<String> {
    let (scope, project) = (scope.into(), project.into());
    let request = ListMemoriesRequest { scope, project, ..ListMemoriesRequest::default() };
    let listed = client.memories().list_memories(request).await.unwrap().into_inner().memories;
    assert!(listed.iter().all(|memory| memory.body.is_empty()), "lists have no bodies");
    listed.into_iter().map(|memory| memory.name).collect()
}

/// A session whose agent may use the tools for memories.
async fn create_session(client: &Client) -> Session {
    let allow = Rule {
        permission: "memory_*".into(),
        pattern: "*".into(),
        action: Action::Allow.into(),
        ..Rule::default()
    };
    let manifest = Manifest {
        prompt: "You remember.".into(),
        model: "scripted/demo".into(),
        permissions: Some(Permissions { rules: vec![allow], ..Permissions::default() }),
        ..Manifest::default()
    };
    client.put_manifest("rememberer", manifest).await;
    client.create_session_with("rememberer").await
}

/// What the last tool of the session answered.
async fn answer(session: &Session) -> Result<Value, String> {
    let messages = session.messages().await;
    let parts = messages.into_iter().rev().flat_map(|message| message.parts);
    let tools = parts.filter_map(|part| match part.content {
        Some(Content::Tool(tool)) => Some(tool),
        _ => None,
    });
    let tool = tools.into_iter().next().unwrap();
    match tool.state.as_str() {
        "output-available" => Ok(serde_json::from_str(&tool.output_json).unwrap()),
        _ => Err(tool.error_text),
    }
}

/// The memories as the model was told of them.
fn section(events: &[Event]) -> Section {
    let resolved = events.iter().find_map(|event| match &event.payload {
        Some(Payload::ContextResolved(resolved)) => Some(resolved.clone()),
        _ => None,
    });
    let mut sections = resolved.unwrap().sections.into_iter();
    sections.find(|section| section.name == "memory").expect("the model is told of no memory")
}

#[tokio::test]
async fn memory_tools() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    let session = create_session(&client).await;

    // What an agent writes, its user finds; and the other way round.
    let before = section(&session.run("say Hello.").await);
    let tea = json!({
        "scope": "user", "name": "likes-tea", "description": "Drinks tea, never coffee",
        "type": "user", "body": "Green, without sugar.",
    });
    let seen = session.run(&format!("call memory_write {tea}\n---\nsay Noted.")).await;
    assert_eq!(text_of(&seen), "Noted.");
    let written = read(&client, "user", "", "likes-tea").await.unwrap();
    assert_eq!(written.body, "Green, without sugar.");
    assert_eq!(written.description, "Drinks tea, never coffee");

    // It was written in a turn that never was, and stays.
    let messages = session.messages().await;
    let asked = messages.iter().find(|message| message.turn_id == seen[0].turn_id).unwrap();
    session.rewind(&asked.message_id).await.unwrap();
    assert_eq!(read(&client, "user", "", "likes-tea").await.unwrap(), written);

    // Only the index enters a prompt, and it is there from the next turn on, in every session.
    let big = Memory { body: "word ".repeat(12_000), ..memory("user", "", "big", "") };
    write(&client, big).await.unwrap();
    let other = create_session(&client).await;
    let after = section(&other.run("say Hello.").await);
    assert_ne!(after.digest, before.digest);
    assert!((1..100).contains(&(after.tokens - before.tokens)), "{before:?} {after:?}");

    // Bodies are read on demand.
    other
        .run("call memory_read {\"scope\": \"user\", \"name\": \"likes-tea\"}\n---\nsay Ah.")
        .await;
    assert_eq!(answer(&other).await.unwrap()["body"], "Green, without sugar.");

    // What belongs to a project stays there.
    let note = json!({
        "scope": "project", "name": "deploys-on-friday", "description": "When it is deployed",
        "type": "project", "body": "On Fridays.",
    });
    other.run(&format!("call memory_write {note}\n---\nsay Noted.")).await;
    let project = other.get().await.workspace_id;
    assert_eq!(names(&client, "project", &project).await, ["deploys-on-friday"]);
    assert_eq!(names(&client, "user", "").await, ["big", "likes-tea"]);
    let elsewhere = session.get().await.workspace_id;
    assert_eq!(names(&client, "project", &elsewhere).await, [""; 0]);
    other.run("call memory_list {}\n---\nsay So many.").await;
    let listed = answer(&other).await.unwrap();
    let listed = listed["memories"].as_array().unwrap().iter();
    let listed: Vec<_> = listed.map(|line| line["name"].as_str().unwrap()).collect();
    assert_eq!(listed, ["deploys-on-friday", "big", "likes-tea"]);

    // Whatever is wrong is the model's to put right.
    let wrong = tea.to_string().replace("likes-tea", "Likes Tea");
    session.run(&format!("call memory_write {wrong}\n---\nsay Oh.")).await;
    assert!(answer(&session).await.is_err());
    session
        .run("call memory_delete {\"scope\": \"user\", \"name\": \"big\"}\n---\nsay Gone.")
        .await;
    assert_eq!(answer(&session).await.unwrap()["deleted"], true);
    session.run("call memory_read {\"scope\": \"user\", \"name\": \"big\"}\n---\nsay Oh.").await;
    assert!(answer(&session).await.unwrap_err().contains("there is no memory big"));

    // And from outside.
    let gone = read(&client, "user", "", "big").await.unwrap_err();
    let expected = "NotFound REASON_MEMORY_NOT_FOUND: there is no user memory big";
    assert_eq!(explain(&gone), expected);
    for wrong in [
        memory("team", "", "a", ""),
        memory("user", "garden", "a", ""),
        memory("project", "", "a", ""),
        memory("user", "", "Not Kebab", ""),
        memory("user", "", "a", &"x".repeat(65_537)),
        Memory { description: "two\nlines".into(), ..memory("user", "", "a", "") },
    ] {
        let refused = write(&client, wrong).await.unwrap_err();
        assert!(explain(&refused).starts_with("InvalidArgument"), "{}", explain(&refused));
    }
    let stranger = world.client("other").await;
    assert_eq!(names(&stranger, "user", "").await, [""; 0]);
    let request = DeleteMemoryRequest {
        scope: "user".into(),
        project: String::new(),
        name: "likes-tea".into(),
    };
    for _ in 0..2 {
        client.memories().delete_memory(request.clone()).await.unwrap();
    }
    assert_eq!(names(&client, "user", "").await, [""; 0]);
}
