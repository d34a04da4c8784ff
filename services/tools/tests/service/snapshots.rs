//! Workspaces as they once were.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
};

use expect_test::expect;
use proto::tools::v1::{
    RestoreWorkspaceRequest, RestoreWorkspaceResponse, SnapshotWorkspaceRequest,
};
use sqlx::PgPool;
use tonic::Status;

use crate::{
    workspaces::{client, get, until},
    world::{World, explain},
};

pub async fn take(world: &World, id: &str, request_id: &str) -> Result<String, Status> {
    let (workspace_id, request_id) = (id.into(), request_id.into());
    let request = SnapshotWorkspaceRequest { workspace_id, request_id };
    let request = world.peer.request(&world.caller, request);
    Ok(client(world).snapshot_workspace(request).await?.into_inner().snapshot_id)
}

pub async fn restore(
    world: &World,
    id: &str,
    snapshot_id: &str,
) -> Result<RestoreWorkspaceResponse, Status> {
    let (workspace_id, snapshot_id) = (id.into(), snapshot_id.into());
    let request =
        RestoreWorkspaceRequest { workspace_id, snapshot_id, ..RestoreWorkspaceRequest::default() };
    let request = world.peer.request(&world.caller, request);
    Ok(client(world).restore_workspace(request).await?.into_inner())
}

/// Everything that a tree is, so that two can be compared.
const DESCRIBE: &str = "find . -printf '%P %y %m %n %l %T@ %s\\n' | grep -v ' s ' | \
    sed -E 's/^(.* d [0-9]+) .*/\\1/' | sort; cat file deep/file 2>&1; stat -c %b sparse";

#[sqlx::test(migrations = false)]
async fn a_workspace_is_put_back_exactly(db: PgPool) {
    let world = World::start(db).await;
    let id = world
        .workspace(
            "mkdir -p deep empty; echo one > file; chmod 600 file; echo two > deep/file; \
             printf '#!/bin/sh\\n' > run; chmod 755 run; ln -s file link; ln -s /etc/passwd out; \
             ln file deep/same; truncate -s 100M sparse; printf x >> sparse; \
             touch -d @1000000000 deep/file; chmod 500 empty; mkfifo pipe; git init -q .",
        )
        .await;
    world.prints(&id, "rm pipe").await;
    let before = world.prints(&id, DESCRIBE).await;
    let owner = fs::metadata(world.folder(&id)).unwrap().uid();
    let snapshot = take(&world, &id, "one").await.unwrap();
    assert_eq!(take(&world, &id, "one").await.unwrap(), snapshot, "once per request");
    assert_ne!(take(&world, &id, "two").await.unwrap(), snapshot);

    // Written in place: a snapshot that shared its files would change with them.
    world.prints(&id, "echo more >> file; rm -r deep run; echo new > new; chmod 700 empty").await;
    let changed = world.prints(&id, DESCRIBE).await;
    assert_ne!(before, changed);
    let restored = restore(&world, &id, &snapshot).await.unwrap();
    assert_eq!(restored.snapshot_id, snapshot);
    assert_eq!(world.prints(&id, DESCRIBE).await, before);
    let folder = fs::metadata(world.folder(&id)).unwrap();
    assert_eq!((folder.uid(), folder.permissions().mode() & 0o777), (owner, 0o700));
    let workspace = restored.workspace.unwrap();
    assert!(workspace.used_bytes < 10_000_000);
    assert_eq!(workspace, get(&world, &id).await.unwrap());

    // What was replaced is a snapshot as well.
    restore(&world, &id, &restored.replaced_snapshot_id).await.unwrap();
    assert_eq!(world.prints(&id, DESCRIBE).await, changed);

    let mut request = RestoreWorkspaceRequest {
        workspace_id: id.clone(),
        request_id: "one".into(),
        ..RestoreWorkspaceRequest::default()
    };
    let by_request = world.peer.request(&world.caller, request.clone());
    let restored = client(&world).restore_workspace(by_request).await.unwrap().into_inner();
    assert_eq!(restored.snapshot_id, snapshot);
    assert_eq!(world.prints(&id, DESCRIBE).await, before);

    let other = world.workspace("true").await;
    let mut lines = String::new();
    request.snapshot_id = snapshot.clone();
    let both = world.peer.request(&world.caller, request);
    for status in [
        restore(&world, &other, &snapshot).await.unwrap_err(),
        restore(&world, &id, "snap_1").await.unwrap_err(),
        client(&world).restore_workspace(both).await.unwrap_err(),
        take(&world, &id, "").await.unwrap_err(),
    ] {
        let line = explain(&status);
        let hide = |word: &str| match word.trim_end_matches(',') {
            id if id.len() == 29 && id.starts_with("ws_") => "ws_…".to_owned(),
            id if id.len() == 31 && id.starts_with("snap_") => "snap_…".to_owned(),
            _ => word.to_owned(),
        };
        lines += &line.split(' ').map(hide).collect::<Vec<_>>().join(" ");
        lines += "\n";
    }
    expect![[r#"
        NotFound REASON_SNAPSHOT_NOT_FOUND: workspace ws_… has no snapshot snap_…
        InvalidArgument REASON_INVALID_FIELD: invalid snapshot_id: expected snap_ and 26 characters
        InvalidArgument REASON_INVALID_FIELD: invalid request_id: excludes snapshot_id
        InvalidArgument REASON_INVALID_FIELD: invalid request_id: is not 1 to 100 characters without NUL
    "#]]
    .assert_eq(&lines);
}

#[sqlx::test(migrations = false)]
async fn the_oldest_snapshots_give_way(db: PgPool) {
    let world = World::with(db, &["--workspace-snapshots", "3"]).await;
    let id = world.workspace("echo 0 > file").await;
    let mut taken = Vec::new();
    for number in 0..5 {
        world.prints(&id, &format!("echo {number} > file")).await;
        taken.push(take(&world, &id, &format!("request {number}")).await.unwrap());
    }
    for gone in &taken[..2] {
        let status = restore(&world, &id, gone).await.unwrap_err();
        assert!(explain(&status).contains("REASON_SNAPSHOT_NOT_FOUND"), "{status:?}");
    }
    restore(&world, &id, &taken[4]).await.unwrap();
    assert_eq!(world.prints(&id, "cat file").await, "4\n");
    let folder = world.folder(&id).with_file_name(".snapshots").join(&id);
    assert_eq!(fs::read_dir(folder).unwrap().count(), 3);
}

#[sqlx::test(migrations = false)]
async fn nothing_is_put_back_while_somebody_works_there(db: PgPool) {
    let world = World::start(db).await;
    let id = world.workspace("echo old > file").await;
    let snapshot = take(&world, &id, "one").await.unwrap();
    let mut call =
        world.bash("echo new > file; touch begun; while [ ! -e end ]; do sleep 0.1; done");
    call.workspace_id = id.clone();
    let running = world.begin(call).await.unwrap();
    let folder = world.folder(&id);
    until("it runs", || folder.join("begun").exists()).await;
    // A snapshot harms nobody.
    take(&world, &id, "two").await.unwrap();
    let status = restore(&world, &id, &snapshot).await.unwrap_err();
    let line = explain(&status).replace(&id, "ws_…");
    expect!["FailedPrecondition REASON_WORKSPACE_BUSY: workspace ws_… is in use, or being changed as a whole"]
        .assert_eq(&line);
    assert_eq!(fs::read_to_string(folder.join("file")).unwrap(), "new\n");
    fs::write(folder.join("end"), "").unwrap();
    world.finish(running).await.unwrap().data();
    restore(&world, &id, &snapshot).await.unwrap();
    assert_eq!(world.prints(&id, "ls -A; cat file").await, "file\nold\n");
}

/// Whoever is killed has done some of these and not the next: put the row on record, made a part
/// of the copy, made all of it, given it its name, marked it.
#[sqlx::test(migrations = false)]
async fn a_snapshot_that_was_cut_off_is_taken_when_it_is_asked_for_again(db: PgPool) {
    let world = World::start(db.clone()).await;
    let id = world.workspace("echo one > file").await;
    let snapshot = take(&world, &id, "one").await.unwrap();
    let place = world.folder(&id).with_file_name(".snapshots").join(&id).join(&snapshot);
    let staging = world.folder(&id).with_file_name(".staging");
    let unmark = || sqlx::query("update tools.snapshot set stored = false").execute(&db);

    // It has its name, and its row does not know.
    unmark().await.unwrap();
    let status = restore(&world, &id, &snapshot).await.unwrap_err();
    assert!(explain(&status).contains("REASON_SNAPSHOT_NOT_FOUND"), "{status:?}");
    world.prints(&id, "echo two > file").await;
    assert_eq!(take(&world, &id, "one").await.unwrap(), snapshot);
    assert_eq!(fs::read_to_string(place.join("file")).unwrap(), "one\n");

    // There is only its row, and a part of a copy that nobody works on.
    unmark().await.unwrap();
    fs::remove_dir_all(&place).unwrap();
    fs::create_dir_all(staging.join("stage_left/tree/half")).unwrap();
    let world = world.restart().await;
    until("leftovers are swept", || !staging.join("stage_left").exists()).await;
    assert_eq!(take(&world, &id, "one").await.unwrap(), snapshot);
    restore(&world, &id, &snapshot).await.unwrap();
    assert_eq!(world.prints(&id, "cat file").await, "two\n");
    assert_eq!(get(&world, &id).await.unwrap().used_files, 1);
}

/// A restore is one exchange of names, so readers see the one tree or the other, at any instant.
#[sqlx::test(migrations = false)]
async fn readers_never_see_a_mix(db: PgPool) {
    let world = World::start(db).await;
    let id = world.workspace("for n in $(seq 20); do echo old > $n; done").await;
    let old = take(&world, &id, "old").await.unwrap();
    world.prints(&id, "for n in $(seq 20); do echo new > $n; done").await;
    let new = take(&world, &id, "new").await.unwrap();
    let folder = world.folder(&id);
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stopped = stop.clone();
    let reader = std::thread::spawn(move || {
        let (mut rounds, mut kinds) = (0, std::collections::BTreeSet::new());
        while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
            // Held open: the tree that was there when we came.
            let directory = fs::File::open(&folder).unwrap();
            let at = |name: u32| {
                use std::os::fd::AsRawFd as _;
                format!("/proc/self/fd/{}/{name}", directory.as_raw_fd())
            };
            let Ok(first) = fs::read_to_string(at(1)) else { continue };
            for name in 2..=20 {
                // Once it is out of sight it is a snapshot, or removed.
                let Ok(text) = fs::read_to_string(at(name)) else { break };
                assert_eq!(text, first);
            }
            kinds.insert(first);
            rounds += 1;
        }
        (rounds, kinds)
    });
    for snapshot in [&old, &new, &old, &new, &old] {
        restore(&world, &id, snapshot).await.unwrap();
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let (rounds, kinds) = reader.join().unwrap();
    assert!(rounds > 0 && kinds.len() == 2, "{rounds} {kinds:?}");
}
