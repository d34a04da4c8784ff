use local::Service;
use proto::{
    event::v1::{Event, Payload},
    session::v1::{Manifest, RewindSessionRequest, RewindSessionResponse, message::Role},
    tools::v1::{
        ReadFileRequest, RestoreWorkspaceRequest, file_service_client::FileServiceClient,
        workspace_service_client::WorkspaceServiceClient,
    },
};
use tests::{Client, Session, World, reason};
use tonic::{Code, Status};

fn bash(command: &str) -> String {
    format!("call bash {{\"command\": \"{command}\"}}\n---\nsay Done.")
}

/// A session whose agent keeps files before it changes them.
async fn keeping(client: &Client) -> Session {
    let manifest = Manifest { snapshots: true, ..client.agent("scripted").await };
    client.put_manifest("keeping", manifest).await;
    client.create_session_with("keeping").await
}

async fn rewind(session: &Session, message_id: &str) -> Result<RewindSessionResponse, Status> {
    let request = RewindSessionRequest {
        session_id: session.id.clone(),
        message_id: message_id.into(),
        restore_files: true,
    };
    Ok(session.client.sessions().rewind_session(request).await?.into_inner())
}

/// What is in `file`, if it is there.
async fn file(session: &Session) -> Option<String> {
    let request = ReadFileRequest {
        workspace_id: session.get().await.workspace_id,
        path: "file".into(),
        ..ReadFileRequest::default()
    };
    let mut files = FileServiceClient::new(session.client.to(Service::Tools));
    match files.read_file(request).await {
        Ok(response) => Some(String::from_utf8(response.into_inner().data).unwrap()),
        Err(status) if status.code() == Code::NotFound => None,
        Err(status) => panic!("{status:?}"),
    }
}

/// What people said, in order.
async fn asked(session: &Session) -> Vec<String> {
    let messages = session.messages().await.into_iter();
    messages.filter(|one| one.role() == Role::User).map(|one| one.message_id).collect()
}

fn snapshots(events: &[Event]) -> Vec<String> {
    let ids = events.iter().filter_map(|event| match &event.payload {
        Some(Payload::SnapshotUpdated(updated)) => {
            assert_eq!(event.refs["snapshotId"], updated.snapshot_id);
            Some(updated.snapshot_id.clone())
        }
        _ => None,
    });
    ids.collect()
}

#[tokio::test]
async fn conversation_and_files_are_put_back_together() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    let session = keeping(&client).await;
    let first = session.run(&bash("echo one > file; echo more >> file")).await;
    assert_eq!(snapshots(&first).len(), 1, "a turn has one snapshot");
    let order: Vec<_> = first.iter().map(|event| event.r#type.as_str()).collect();
    let place = |name| order.iter().position(|other| *other == name).unwrap();
    assert!(place("snapshot.updated") < place("sandbox.applied"));

    let only_reads = session.run("call read {\"path\": \"file\"}\n---\nsay Read.").await;
    assert!(snapshots(&only_reads).is_empty(), "who changes nothing costs nothing");
    let third = session.run(&bash("echo two > file")).await;
    session.run("say Nothing.").await;
    assert_eq!(file(&session).await.as_deref(), Some("two\n"));
    let before = session.messages().await;
    let said = asked(&session).await;

    // Nothing has changed since the last message.
    rewind(&session, &said[3]).await.unwrap();
    assert_eq!(file(&session).await.as_deref(), Some("two\n"));

    rewind(&session, &said[2]).await.unwrap();
    assert_eq!(file(&session).await.as_deref(), Some("one\nmore\n"));
    assert_eq!(asked(&session).await, said[..2]);
    let log = session.log().await;
    match log.last().and_then(|event| event.payload.as_ref()) {
        Some(Payload::HistoryRollbackCompleted(completed)) => {
            assert_eq!(completed.snapshot_id, snapshots(&third)[0]);
        }
        other => panic!("{other:?}"),
    }

    // A turn that changed nothing is as its successor found it.
    rewind(&session, &said[1]).await.unwrap();
    assert_eq!(file(&session).await.as_deref(), Some("one\nmore\n"));
    rewind(&session, &said[0]).await.unwrap();
    assert_eq!(file(&session).await, None);
    assert!(session.messages().await.is_empty());

    // Undoing shows what was said, and leaves the files.
    for _ in 0..4 {
        session.unrewind().await.unwrap();
    }
    assert_eq!(session.messages().await, before);
    assert_eq!(file(&session).await, None);

    // The session goes on.
    session.run(&bash("echo three > file")).await;
    assert_eq!(file(&session).await.as_deref(), Some("three\n"));
}

#[tokio::test]
async fn files_that_nobody_kept_are_not_promised() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    let session = client.create_session().await;
    session.run("say Only words.").await;
    let events = session.run(&bash("echo one > file")).await;
    assert!(snapshots(&events).is_empty(), "an agent that asks for none gets none");
    let before = session.messages().await;
    for message_id in asked(&session).await {
        let status = rewind(&session, &message_id).await.unwrap_err();
        assert_eq!(reason(&status), "REASON_SNAPSHOT_NOT_FOUND", "{status:?}");
    }
    let status = rewind(&session, &before[1].message_id).await.unwrap_err();
    assert_eq!(reason(&status), "REASON_NOTHING_TO_REWIND", "{status:?}");
    assert_eq!(session.messages().await, before, "something is hidden all the same");

    // While a turn runs, neither happens.
    let session = keeping(&client).await;
    session.run(&bash("echo one > file")).await;
    session.submit(&bash("echo two > file; sleep 3")).await;
    let status = rewind(&session, &asked(&session).await[0]).await.unwrap_err();
    assert_eq!(reason(&status), "REASON_SESSION_BUSY", "{status:?}");
}

/// Whoever dies after the files were put back and before the messages were hidden has done
/// this much.
#[tokio::test]
async fn a_rewind_that_was_cut_off_is_repeated() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    let session = keeping(&client).await;
    session.run(&bash("echo one > file")).await;
    let second = session.run(&bash("echo two > file")).await;
    let request = RestoreWorkspaceRequest {
        workspace_id: session.get().await.workspace_id,
        snapshot_id: snapshots(&second).remove(0),
        ..RestoreWorkspaceRequest::default()
    };
    let mut workspaces = WorkspaceServiceClient::new(client.to(Service::Tools));
    workspaces.restore_workspace(request).await.unwrap();
    assert_eq!(asked(&session).await.len(), 2);

    let said = asked(&session).await;
    rewind(&session, &said[1]).await.unwrap();
    assert_eq!(file(&session).await.as_deref(), Some("one\n"));
    assert_eq!(asked(&session).await, said[..1]);
}
