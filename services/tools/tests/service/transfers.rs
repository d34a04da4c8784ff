use std::time::Duration;

use expect_test::expect;
use proto::tools::v1::{DownloadFileRequest, File, UploadFileRequest};
use sqlx::PgPool;
use tokio::time::{sleep, timeout};
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tonic::Status;

use crate::{
    files::{client, show},
    world::{World, explain},
};

fn first(id: &str, path: &str, data: &[u8]) -> UploadFileRequest {
    UploadFileRequest { workspace_id: id.into(), path: path.into(), data: data.into() }
}

fn more(data: &[u8]) -> UploadFileRequest {
    UploadFileRequest { data: data.into(), ..UploadFileRequest::default() }
}

async fn upload(world: &World, pieces: Vec<UploadFileRequest>) -> Result<File, Status> {
    let request = world.peer.request(&world.caller, tokio_stream::iter(pieces));
    Ok(client(world).upload_file(request).await?.into_inner().file.unwrap())
}

async fn download(
    world: &World,
    workspace_id: &str,
    path: &str,
    offset: i64,
) -> Result<Vec<Vec<u8>>, Status> {
    let (workspace_id, path) = (workspace_id.into(), path.into());
    let request = DownloadFileRequest { workspace_id, path, offset };
    let request = world.peer.request(&world.caller, request);
    let stream = client(world).download_file(request).await?.into_inner();
    stream.map(|piece| Ok(piece?.data)).collect().await
}

#[sqlx::test(migrations = false)]
async fn a_file_is_sent_and_fetched_in_pieces(db: PgPool) {
    let world = World::start(db).await;
    let id = world.workspace("true").await;
    let large: Vec<u8> = (0..3_000_000u32).map(|number| (number / 7) as u8).collect();
    let mut pieces: Vec<_> = large.chunks(1_048_576).map(more).collect();
    pieces.insert(0, first(&id, "new/large", b""));
    let file = upload(&world, pieces).await.unwrap();
    assert_eq!(show(&file), "new/large: KIND_FILE of 3000000 bytes\n");

    let pieces = download(&world, &id, "new/large", 0).await.unwrap();
    assert!(pieces.iter().all(|piece| (1..=1_048_576).contains(&piece.len())));
    assert!(pieces.concat() == large);
    let rest = download(&world, &id, "new/large", 2_999_990).await.unwrap();
    assert_eq!(rest.concat(), large[2_999_990..]);
    assert!(download(&world, &id, "new/large", i64::MAX).await.unwrap().is_empty());

    let file = upload(&world, vec![first(&id, "small", b"x")]).await.unwrap();
    assert_eq!(show(&file), "small: KIND_FILE of 1 bytes\n");
    // What a client sends, commands can change.
    let printed = world.prints(&id, "echo y >> small; rm -r new; cat small; ls -A").await;
    assert_eq!(printed, "xy\nsmall\n");
}

#[sqlx::test(migrations = false)]
async fn an_upload_appears_when_it_ends_well_or_not_at_all(db: PgPool) {
    let world = World::start(db).await;
    let id = world.workspace("echo old > file; mkdir dir").await;
    let (sender, pieces) = tokio::sync::mpsc::channel(4);
    sender.send(first(&id, "file", b"new")).await.unwrap();
    let request = world.peer.request(&world.caller, ReceiverStream::new(pieces));
    let mut files = client(&world);
    let uploading = tokio::spawn(async move { files.upload_file(request).await });
    let names = || {
        let names = std::fs::read_dir(world.folder(&id)).unwrap();
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
    };
    let until = async |drafts: usize| {
        while names().iter().filter(|name| name.starts_with(".draft_")).count() != drafts {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(10), until(1)).await.expect("an upload is under way");
    assert_eq!(world.prints(&id, "cat file").await, "old\n");
    let found = world.tool(&id, "glob", serde_json::json!({ "pattern": "*" })).await.data();
    assert_eq!(found["paths"], serde_json::json!(["file"]));
    // Only then: a stream that is closed before its call is dropped has ended well.
    uploading.abort();
    assert!(uploading.await.unwrap_err().is_cancelled());
    drop(sender);
    timeout(Duration::from_secs(10), until(0)).await.expect("nothing is left of it");
    assert_eq!(world.prints(&id, "cat file").await, "old\n");

    let mut lines = String::new();
    for pieces in [
        vec![],
        vec![more(b"x")],
        vec![first(&id, "file", b""), first(&id, "other", b"")],
        vec![first(&id, "file", b""), first(&id, "", b"")],
        vec![first(&id, "file", b""), more(&[0; 1_048_577])],
        vec![first(&id, "dir", b"")],
        vec![first(&id, "../file", b"")],
    ] {
        lines += &format!("{}\n", explain(&upload(&world, pieces).await.unwrap_err()));
    }
    for (path, offset) in [("file", -1), ("dir", 0), ("gone", 0), ("../file", 0)] {
        let status = download(&world, &id, path, offset).await.unwrap_err();
        lines += &format!("{}\n", explain(&status));
    }
    expect![[r#"
        InvalidArgument REASON_INVALID_FIELD: invalid path: is missing
        InvalidArgument REASON_INVALID_FIELD: invalid workspace_id: expected ws_ and 26 characters
        InvalidArgument REASON_INVALID_FIELD: invalid path: belongs into the first message only
        InvalidArgument REASON_INVALID_FIELD: invalid workspace_id: belongs into the first message only
        InvalidArgument REASON_INVALID_FIELD: invalid data: is larger than 1 MiB
        InvalidArgument REASON_INVALID_FIELD: invalid path: is a directory
        InvalidArgument REASON_PATH_OUTSIDE: "../file" leads out of the workspace
        InvalidArgument REASON_INVALID_FIELD: invalid offset: is negative
        InvalidArgument REASON_INVALID_FIELD: invalid path: is a directory
        NotFound REASON_PATH_NOT_FOUND: there is no "gone" in the workspace
        InvalidArgument REASON_PATH_OUTSIDE: "../file" leads out of the workspace
    "#]]
    .assert_eq(&lines);
    assert_eq!(world.prints(&id, "cat file; ls -A").await, "old\ndir\nfile\n");
}
