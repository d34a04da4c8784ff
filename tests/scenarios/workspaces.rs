//! Workspaces on several disks, and while processes are killed.

use std::{fs, path::Path, time::Duration};

use local::{Fleet, Service};
use proto::{
    event::v1::{Event, Payload},
    session::v1::{
        CreateSessionRequest, Manifest, respond_action_request::Decision, session::Status,
        subscribe_request::From,
    },
    tools::v1::{
        CreateWorkspaceRequest, ImportWorkspaceRequest, ReadFileRequest, RestoreWorkspaceRequest,
        SnapshotWorkspaceRequest, WriteFileRequest, file_service_client::FileServiceClient,
        import_workspace_request::Format, rule::Action,
        workspace_service_client::WorkspaceServiceClient,
    },
};
use tests::{Calls, Client, Session, World, request_id, text_of};
use tokio::time::{sleep, timeout};

use crate::system_prompt::{resolved, sections};

/// How many files a tree has.
const FILES: usize = 400;

async fn create(workspaces: &mut WorkspaceServiceClient<Calls>) -> String {
    let request =
        CreateWorkspaceRequest { request_id: request_id(), ..CreateWorkspaceRequest::default() };
    let response = workspaces.create_workspace(request).await.unwrap().into_inner();
    response.workspace.unwrap().workspace_id
}

/// A session in a workspace that is there.
async fn session_in(client: &Client, agent: &str, workspace_id: &str) -> Session {
    let request = CreateSessionRequest {
        request_id: request_id(),
        agent: agent.into(),
        workspace_id: workspace_id.into(),
        ..CreateSessionRequest::default()
    };
    let response = client.sessions().create_session(request).await.unwrap().into_inner();
    Session { client: client.clone(), id: response.session.unwrap().session_id }
}

#[tokio::test]
async fn a_session_works_wherever_its_workspace_is() {
    let plan = Fleet::plan().replicas(Service::Tools, 2).separate_disks().env_of(
        Service::Session,
        "TOOLS_PATIENCE",
        "1",
    );
    let mut world = World::planned(plan).await;
    let client = world.client("acme").await;
    // The session service knows the first replica only, and the workspace is on the second.
    let second = client.at_tools(&mut world.fleet, 1);
    let mut there = WorkspaceServiceClient::new(second.to(Service::Tools));
    let id = create(&mut there).await;
    let mut files = FileServiceClient::new(client.to(Service::Tools));
    let request =
        WriteFileRequest { workspace_id: id.clone(), path: "file".into(), data: b"hello".to_vec() };
    files.write_file(request).await.unwrap();
    let folder = world.fleet.disk(1).join("acme").join(&id);
    assert_eq!(fs::read_to_string(folder.join("file")).unwrap(), "hello");

    let script = "call bash {\"command\": \"cat file; echo more > new\"}\n---\nsay {{tool_result}}";
    let session = session_in(&client, "scripted", &id).await;
    let text = text_of(&session.run(script).await);
    assert!(text.contains("hello"), "{text}");
    assert!(folder.join("new").exists());
    assert!(!world.fleet.disk(0).join("acme").join(&id).exists());

    // Away, the workspace is away; the model hears of it and the turn goes on.
    world.fleet.replica(Service::Tools, 1).kill().await.unwrap();
    let text = text_of(
        &session.run("call bash {\"command\": \"cat file\"}\n---\nsay {{tool_result}}").await,
    );
    assert!(text.contains("does not answer"), "{text}");
    world.fleet.replica(Service::Tools, 1).restart().await.unwrap();
    let read = ReadFileRequest {
        workspace_id: id.clone(),
        path: "new".into(),
        ..ReadFileRequest::default()
    };
    let found = async {
        while files.read_file(read.clone()).await.is_err() {
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(Duration::from_secs(30), found).await.expect("it is found again");
}

/// Calls of a turn wait for the disk, so it must not begin without what the workspace asks for.
#[tokio::test]
async fn a_turn_waits_for_what_its_workspace_says() {
    let plan = Fleet::plan().replicas(Service::Tools, 2).separate_disks();
    let mut world = World::planned(plan).await;
    let client = world.client("acme").await;
    let second = client.at_tools(&mut world.fleet, 1);
    let mut there = WorkspaceServiceClient::new(second.to(Service::Tools));
    let id = create(&mut there).await;
    let request = WriteFileRequest {
        workspace_id: id.clone(),
        path: "AGENTS.md".into(),
        data: b"Use tabs.".to_vec(),
    };
    FileServiceClient::new(client.to(Service::Tools)).write_file(request).await.unwrap();

    world.fleet.replica(Service::Tools, 1).kill().await.unwrap();
    let session = session_in(&client, "scripted", &id).await;
    let mut events = session.subscribe(From::FromStart(true)).await;
    let turn = session.submit("say Hello.").await;
    let retrying = async {
        while session.get().await.status() != Status::Retrying {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(Duration::from_secs(30), retrying).await.expect("people see that it waits");
    world.fleet.replica(Service::Tools, 1).restart().await.unwrap();
    let seen = events.until_ended(&turn.turn_id).await;
    assert_eq!(seen.last().unwrap().r#type, "turn.completed", "{:?}", seen.last());
    let told = resolved(&seen).remove(0);
    assert!(sections(&told).iter().any(|(name, _)| *name == "project_instructions"), "{told:?}");
}

/// A disk that is away keeps a turn from going on, and nobody from stopping.
#[tokio::test]
async fn whoever_stops_does_not_wait_until_files_are_kept() {
    let plan = Fleet::plan().replicas(Service::Tools, 2).separate_disks();
    let mut world = World::planned(plan.env_of(Service::Session, "DRAIN", "1")).await;
    let client = world.client("acme").await;
    let second = client.at_tools(&mut world.fleet, 1);
    let id = create(&mut WorkspaceServiceClient::new(second.to(Service::Tools))).await;
    client.put_agent_that("keeping", Action::Ask).await;
    let manifest = Manifest { snapshots: true, ..client.agent("keeping").await };
    client.put_manifest("keeping", manifest).await;
    let session = session_in(&client, "keeping", &id).await;
    let script = "call bash {\"command\": \"echo ran > file\"}\n---\nsay Done.";
    let action = session.asks(script).await;

    // What was approved is not checked again, so the first thing that this turn wants is a snapshot.
    world.fleet.replica(Service::Tools, 1).kill().await.unwrap();
    let mut events = session.subscribe(From::FromStart(true)).await;
    session.respond(&action, Decision::Once).await.unwrap();
    let goes_on = |event: &Event| match &event.payload {
        Some(Payload::RunStatus(now)) => now.status == "acting",
        _ => false,
    };
    events.until(goes_on).await;
    world.fleet.get(Service::Session).terminate().await.unwrap();
    world.fleet.get(Service::Session).restart().await.unwrap();

    let log = session.log().await;
    match log.last().and_then(|event| event.payload.as_ref()) {
        Some(Payload::TurnFailed(failed)) => assert_eq!(failed.reason, "host_restart"),
        other => panic!("{other:?}"),
    }
    assert!(log.iter().all(|event| event.r#type != "snapshot.updated"), "nobody kept anything");
}

/// An archive of many files that all say the same.
fn archive(word: &str) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for number in 0..FILES {
        let mut header = tar::Header::new_gnu();
        header.set_size(word.len() as u64);
        header.set_mode(0o644);
        let name = format!("{}/{number}", number % 10);
        archive.append_data(&mut header, name, word.as_bytes()).unwrap();
    }
    archive.into_inner().unwrap()
}

async fn import(workspaces: &mut WorkspaceServiceClient<Calls>, id: &str, word: &str) -> bool {
    let pieces = vec![ImportWorkspaceRequest {
        workspace_id: id.into(),
        format: Format::Tar.into(),
        data: archive(word),
    }];
    workspaces.import_workspace(tokio_stream::iter(pieces)).await.is_ok()
}

/// What all files of a workspace say, which is the same or there are none.
fn word(folder: &Path) -> String {
    let mut words = Vec::new();
    for directory in fs::read_dir(folder).unwrap() {
        for file in fs::read_dir(directory.unwrap().path()).unwrap() {
            words.push(fs::read_to_string(file.unwrap().path()).unwrap());
        }
    }
    assert!(matches!(words.len(), 0 | FILES), "{} files are there", words.len());
    words.dedup();
    assert!(words.len() <= 1, "{words:?}");
    words.pop().unwrap_or_default()
}

#[tokio::test]
async fn whoever_is_killed_leaves_the_old_or_the_new() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    let mut workspaces = WorkspaceServiceClient::new(client.to(Service::Tools));
    let id = create(&mut workspaces).await;
    let folder = world.fleet.disk(0).join("acme").join(&id);
    assert!(import(&mut workspaces, &id, "old").await);
    assert_eq!(word(&folder), "old");
    let mut kept = Vec::new();
    for now in ["old", "new"] {
        let request = SnapshotWorkspaceRequest { workspace_id: id.clone(), request_id: now.into() };
        kept.push(workspaces.snapshot_workspace(request).await.unwrap().into_inner().snapshot_id);
        for file in 0..FILES {
            fs::write(folder.join((file % 10).to_string()).join(file.to_string()), "new").unwrap();
        }
    }

    // A little later each time, so that it is hit at all of its stages.
    for round in 0..8u64 {
        let empty = create(&mut workspaces).await;
        let (mut restoring, mut importing) = (workspaces.clone(), workspaces.clone());
        let snapshot_id = kept[round as usize % 2].clone();
        let request = RestoreWorkspaceRequest {
            workspace_id: id.clone(),
            snapshot_id,
            ..RestoreWorkspaceRequest::default()
        };
        let filled = empty.clone();
        let both = tokio::spawn(async move {
            tokio::join!(
                restoring.restore_workspace(request),
                import(&mut importing, &filled, "imported")
            )
        });
        sleep(Duration::from_millis(round * 12)).await;
        world.fleet.get(Service::Tools).kill().await.unwrap();
        let (restored, imported) = both.await.unwrap();
        world.fleet.get(Service::Tools).restart().await.unwrap();

        let now = word(&folder);
        let wanted = ["old", "new"][round as usize % 2];
        assert!(now == "old" || now == "new", "{now:?}");
        assert!(restored.is_err() || now == wanted, "what was confirmed is there");
        let filled = folder.with_file_name(&empty);
        let there = word(&filled);
        assert!(!imported || there == "imported", "what was confirmed is there");
        // And whatever was begun can be done.
        if there.is_empty() {
            assert!(import(&mut workspaces, &empty, "imported").await);
            assert_eq!(word(&filled), "imported");
        }
    }
    let staging = folder.with_file_name(".staging");
    let swept = async {
        while fs::read_dir(&staging).unwrap().next().is_some() {
            sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(Duration::from_secs(30), swept).await.expect("leftovers are swept");
}
