//! Several replicas, each with a disk of its own.

use std::time::{Duration, Instant};

use expect_test::expect;
use proto::tools::v1::{
    ListFilesRequest, ReadFileRequest, UploadFileRequest, import_workspace_request::Format,
};
use sqlx::PgPool;
use tar::{Builder, EntryType::Regular};
use tokio_stream::StreamExt as _;
use tonic::{Code, codec::CompressionEncoding};
use tonic_types::StatusExt as _;

use crate::{
    changes::write,
    files::client,
    imports::{entry, import},
    snapshots::{restore, take},
    workspaces::{create, delete, get, other, until},
    world::{World, explain},
};

#[sqlx::test(migrations = false)]
async fn a_workspace_is_on_one_replica_and_reached_through_all(db: PgPool) {
    let (one, two) = (World::replica(&db).await, World::replica(&db).await);
    let id = create(&one).await;
    let place = get(&one, &id).await.unwrap().replica;
    assert!(place.starts_with("rpl_"));
    assert_eq!(get(&two, &id).await.unwrap().replica, place);

    write(&two, &id, "file", b"written through the other\n").await.unwrap();
    assert_eq!(two.prints(&id, "cat file; echo more > new").await, "written through the other\n");
    assert!(one.folder(&id).join("new").exists());
    assert!(!two.folder(&id).exists());
    let input = serde_json::json!({ "path": "new" });
    assert!(two.tool(&id, "read", input).await.data().to_string().contains("more"));

    // Streams, both ways.
    let pieces = (0..5).map(|number| UploadFileRequest {
        workspace_id: if number == 0 { id.clone() } else { String::new() },
        path: if number == 0 { "large".into() } else { String::new() },
        data: vec![number; 900_000],
    });
    let request = two.peer.request(&two.caller, tokio_stream::iter(pieces.collect::<Vec<_>>()));
    client(&two).upload_file(request).await.unwrap();
    let request = proto::tools::v1::DownloadFileRequest {
        workspace_id: id.clone(),
        path: "large".into(),
        offset: 0,
    };
    let request = two.peer.request(&two.caller, request);
    let mut pieces = client(&two).download_file(request).await.unwrap().into_inner();
    let mut size = 0;
    while let Some(piece) = pieces.next().await {
        size += piece.unwrap().data.len();
    }
    assert_eq!(size, 4_500_000);

    let snapshot = take(&two, &id, "one").await.unwrap();
    two.prints(&id, "rm *").await;
    restore(&two, &id, &snapshot).await.unwrap();
    assert!(one.folder(&id).join("large").exists());

    let mut archive = Builder::new(Vec::new());
    entry(&mut archive, Regular, "imported", "", b"x");
    let empty = create(&one).await;
    import(&two, &empty, Format::Tar, &archive.into_inner().unwrap()).await.unwrap();
    assert!(one.folder(&empty).join("imported").exists());

    delete(&two, &id).await.unwrap();
    assert!(!one.folder(&id).exists());
    let status = get(&one, &id).await.unwrap_err();
    assert!(explain(&status).contains("REASON_WORKSPACE_NOT_FOUND"));
}

#[sqlx::test(migrations = false)]
async fn of_two_who_use_it_first_one_has_it(db: PgPool) {
    let (one, two) = (World::replica(&db).await, World::replica(&db).await);
    for _ in 0..10 {
        let call = one.bash("echo x >> file");
        let mut same = two.bash("echo x >> file");
        same.workspace_id = call.workspace_id.clone();
        let id = call.workspace_id.clone();
        let (first, second) = tokio::join!(one.execute(call), two.execute(same));
        assert_eq!(first.unwrap().data()["exit_code"], 0);
        assert_eq!(second.unwrap().data()["exit_code"], 0);
        let places = [one.folder(&id).exists(), two.folder(&id).exists()];
        assert_eq!(places.iter().filter(|there| **there).count(), 1, "{places:?}");
        assert_eq!(two.prints(&id, "cat file").await, "x\nx\n");
    }
}

#[sqlx::test(migrations = false)]
async fn errors_tenants_and_what_is_missing_are_the_same_everywhere(db: PgPool) {
    let (one, two) = (World::replica(&db).await, World::replica(&db).await);
    let id = one.workspace("echo mine > file").await;
    let read = |workspace_id: &str, path: &str| ReadFileRequest {
        workspace_id: workspace_id.into(),
        path: path.into(),
        ..ReadFileRequest::default()
    };
    let mut lines = String::new();
    for (caller, request) in [
        (&two.caller, read(&id, "missing")),
        (&two.caller, read(&id, "../file")),
        (&two.caller, read("", "file")),
        (&two.caller, read("nonsense", "file")),
        (&two.caller, read(&two.bash("").workspace_id, "file")),
        (&other("other"), read(&id, "file")),
    ] {
        let here = client(&one).read_file(one.peer.request(caller, request.clone())).await;
        let there = client(&two).read_file(two.peer.request(caller, request.clone())).await;
        let (here, there) = (explain(&here.unwrap_err()), explain(&there.unwrap_err()));
        assert_eq!(here, there);
        lines += &format!("{}\n", there.split(": ").next().unwrap());
    }
    expect![[r#"
        NotFound REASON_PATH_NOT_FOUND
        InvalidArgument REASON_PATH_OUTSIDE
        InvalidArgument REASON_INVALID_FIELD
        InvalidArgument REASON_INVALID_FIELD
        NotFound REASON_WORKSPACE_NOT_FOUND
        NotFound REASON_WORKSPACE_NOT_FOUND
    "#]]
    .assert_eq(&lines);

    // Compressed requests are understood as well.
    let mut compressed = client(&two).send_compressed(CompressionEncoding::Gzip);
    let request = ListFilesRequest { workspace_id: id.clone(), ..ListFilesRequest::default() };
    let listed = compressed.list_files(two.peer.request(&two.caller, request)).await.unwrap();
    assert_eq!(listed.into_inner().files.len(), 1);

    // Whoever says that a call was passed on is not believed, unless it is one of us; and what
    // was passed on is not passed on again.
    let mut request = two.peer.request(&two.caller, read(&id, "file"));
    request.metadata_mut().insert("x-windlass-forwarded", "rpl_x".parse().unwrap());
    let status = client(&two).read_file(request).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
}

#[sqlx::test(migrations = false)]
async fn a_call_that_is_dropped_ends_on_the_other_replica(db: PgPool) {
    let (one, two) = (World::replica(&db).await, World::replica(&db).await);
    let id = one.workspace("true").await;
    let mut call = two.bash("touch begun; while sleep 0.1; do date > alive; done");
    call.workspace_id = id.clone();
    let running = two.begin(call).await.unwrap();
    let folder = one.folder(&id);
    until("it runs there", || folder.join("alive").exists()).await;
    drop(running);
    let alive = || std::fs::metadata(folder.join("alive")).unwrap().modified().unwrap();
    let mut last = (alive(), Instant::now());
    until("it stands still", || {
        if alive() != last.0 {
            last = (alive(), Instant::now());
        }
        last.1.elapsed() > Duration::from_secs(1)
    })
    .await;

    // A deadline goes along.
    let mut call = two.bash("sleep 60");
    call.workspace_id = id.clone();
    let request = proto::tools::v1::ExecuteRequest {
        call: Some(call),
        ..proto::tools::v1::ExecuteRequest::default()
    };
    let request = two.peer.request_within(Duration::from_secs(1), &two.caller, request);
    let begun = Instant::now();
    let mut answers = two.client.clone().execute(request).await.unwrap().into_inner();
    let status = loop {
        match answers.message().await {
            Ok(Some(_)) => (),
            Ok(None) => panic!("the call ended by itself"),
            Err(status) => break status,
        }
    };
    assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{status:?}");
    assert!(begun.elapsed() < Duration::from_secs(20));
}

#[sqlx::test(migrations = false)]
async fn a_replica_that_is_away_is_named_and_found_again(db: PgPool) {
    let (one, two) = (World::replica(&db).await, World::replica(&db).await);
    let id = one.workspace("echo kept > file").await;
    let replica = get(&two, &id).await.unwrap().replica;
    let stopped = one.stop();
    let waiting = async {
        loop {
            match get(&two, &id).await {
                Ok(_) => tokio::time::sleep(Duration::from_millis(50)).await,
                Err(status) => break status,
            }
        }
    };
    let status = tokio::time::timeout(Duration::from_secs(30), waiting).await.expect("it goes");
    assert_eq!(
        explain(&status).replace(&replica, "rpl_…"),
        "Unavailable REASON_DEPENDENCY_UNAVAILABLE: replica rpl_… of tools, which has the \
         workspace, does not answer"
    );
    let retry = status.get_details_retry_info().unwrap().retry_delay.unwrap();
    assert!(retry > Duration::ZERO);
    // The same disk at another address is the same replica.
    let again = stopped.start().await;
    let waiting = async {
        while get(&two, &id).await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), waiting).await.expect("it is found again");
    assert_eq!(two.prints(&id, "cat file").await, "kept\n");
    assert_eq!(get(&again, &id).await.unwrap().replica, replica);
}
