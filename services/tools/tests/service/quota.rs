//! What a workspace may hold.

use std::{
    fs,
    time::{Duration, Instant},
};

use proto::{
    event::v1::Payload,
    tools::v1::{CreateWorkspaceRequest, UploadFileRequest},
};
use serde_json::json;
use sqlx::PgPool;

use crate::{
    changes::{delete, write},
    files,
    workspaces::{create_as, get},
    world::{World, explain},
};

const MIB: i64 = 1024 * 1024;

/// A workspace that may hold so much.
async fn small(world: &World, quota_bytes: i64) -> String {
    let request_id = format!("small {quota_bytes}");
    let request =
        CreateWorkspaceRequest { request_id, quota_bytes, ..CreateWorkspaceRequest::default() };
    create_as(world, &world.caller, request).await.unwrap().workspace_id
}

#[sqlx::test(migrations = false)]
async fn what_we_write_ourselves_never_exceeds_the_quota(db: PgPool) {
    let world = World::start(db).await;
    let id = small(&world, MIB).await;
    write(&world, &id, "one", &vec![1; 700_000]).await.unwrap();
    let status = write(&world, &id, "two", &vec![1; 700_000]).await.unwrap_err();
    assert_eq!(
        explain(&status).replace(&id, "ws_…"),
        "ResourceExhausted REASON_WORKSPACE_FULL: workspace ws_… is full: it may hold 1048576 \
         bytes in 1000000 files, nested at most 128 deep"
    );
    let input = json!({ "path": "two", "content": "x".repeat(700_000) });
    let ended = world.tool(&id, "write", input).await;
    assert!(ended.error().1.contains("is full"), "{:?}", ended.error());
    let pieces = (0..10).map(|number| UploadFileRequest {
        workspace_id: if number == 0 { id.clone() } else { String::new() },
        path: if number == 0 { "two".into() } else { String::new() },
        data: vec![1; 100_000],
    });
    let request = world.peer.request(&world.caller, tokio_stream::iter(pieces.collect::<Vec<_>>()));
    let status = files::client(&world).upload_file(request).await.unwrap_err();
    assert!(explain(&status).contains("REASON_WORKSPACE_FULL"), "{status:?}");
    assert_eq!(world.prints(&id, "ls -A").await, "one\n");

    // What is deleted makes room at once.
    delete(&world, &id, "one").await.unwrap();
    write(&world, &id, "two", &vec![1; 700_000]).await.unwrap();
    assert!(get(&world, &id).await.unwrap().used_bytes <= MIB);
}

#[sqlx::test(migrations = false)]
async fn a_flood_from_a_command_is_ended(db: PgPool) {
    let world = World::start(db).await;
    let id = small(&world, 20 * MIB).await;
    let begun = Instant::now();
    let ended = world
        .tool_allowed(&id, "for n in $(seq 600); do head -c 1M /dev/zero > $n; sleep 0.05; done")
        .await;
    let (kind, text) = ended.error();
    assert_eq!(kind, "sandbox");
    assert!(text.contains("is full") && text.contains("delete something first"), "{text}");
    assert!(begun.elapsed() < Duration::from_secs(25), "{:?}", begun.elapsed());
    let violation = ended.facts.iter().find_map(|fact| match &fact.payload {
        Some(Payload::SandboxViolation(violation)) => Some(violation.clone()),
        _ => None,
    });
    let violation = violation.expect("there is a fact");
    assert_eq!(violation.layer, "workspace");
    assert!(violation.detail.contains("is full"));
    let used = get(&world, &id).await.unwrap().used_bytes;
    assert!((20 * MIB..60 * MIB).contains(&used), "{used}");

    // It can be cleaned up from outside, and is of use again.
    for number in 1..=60 {
        delete(&world, &id, &number.to_string()).await.unwrap();
    }
    assert_eq!(world.tool_allowed(&id, "echo x > y; cat y").await.data()["output"], "x\n");
}

#[sqlx::test(migrations = false)]
async fn a_command_may_clean_up_what_is_a_little_too_much(db: PgPool) {
    let world = World::with(db, &["--workspace-files", "100"]).await;
    let id = world.workspace("true").await;
    let folder = world.folder(&id);
    let fill = |most: usize| {
        (1..=most).for_each(|name| fs::write(folder.join(name.to_string()), "").unwrap())
    };
    fill(105);
    let status = write(&world, &id, "one more", b"x").await.unwrap_err();
    assert!(explain(&status).contains("REASON_WORKSPACE_FULL"), "{status:?}");
    world.tool_allowed(&id, "rm 1 2 3 4 5 6").await.data();
    write(&world, &id, "one more", b"x").await.unwrap();

    fill(200);
    let ended = world.tool_allowed(&id, "rm *").await;
    assert_eq!(ended.error().0, "sandbox", "much too much has to be removed from outside");
}

/// Holes take nothing, several names of one file count once, and what is hidden too deep to be
/// counted is as much as everything.
#[sqlx::test(migrations = false)]
async fn nothing_is_counted_twice_and_nothing_is_hidden(db: PgPool) {
    let world = World::start(db).await;
    let id = small(&world, 10 * MIB).await;
    let command = "truncate -s 1G sparse; head -c 4M /dev/urandom > a; ln a b; ln a c";
    world.tool_allowed(&id, command).await.data();
    let used = get(&world, &id).await.unwrap();
    assert!((4 * MIB..5 * MIB).contains(&used.used_bytes), "{}", used.used_bytes);
    assert_eq!(used.used_files, 4);

    let command = "for n in $(seq 140); do mkdir d; cd d; done; head -c 1M /dev/zero > hidden";
    world.tool_allowed(&id, command).await;
    let ended = world.tool_allowed(&id, "true").await;
    assert_eq!(ended.error().0, "sandbox");
    delete(&world, &id, "d").await.unwrap();
    world.tool_allowed(&id, "true").await.data();
}
