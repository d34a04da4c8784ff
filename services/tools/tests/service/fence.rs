use expect_test::expect;
use futures::future::join_all;
use serde_json::json;
use sqlx::PgPool;
use tonic::Code;

use crate::world::{World, assert_code, explain};

fn shape(text: &str) -> String {
    let words = text.split(' ').map(|word| match word.split_once('_') {
        Some((prefix @ ("ses" | "call"), _)) => format!("{prefix}_…"),
        _ => word.to_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}

#[sqlx::test(migrations = false)]
async fn a_call_is_never_run_twice(db: PgPool) {
    let world = World::start(db).await;
    let call = world.bash("echo ran >> log");
    world.execute(call.clone()).await.unwrap();
    let status = world.begin(call.clone()).await.unwrap_err();
    expect!["AlreadyExists REASON_CALL_REPEATED: tool call call_… was started before and is never run again"]
        .assert_eq(&shape(&explain(&status)));

    let world = world.restart().await;
    assert_code(&world.begin(call.clone()).await.unwrap_err(), Code::AlreadyExists);
    assert_eq!(world.read(&call, "log"), "ran\n");
}

#[sqlx::test(migrations = false)]
async fn of_many_equal_calls_at_once_one_runs(db: PgPool) {
    let world = World::start(db).await;
    let call = world.bash("echo ran >> log");
    let calls = (0..8).map(|_| world.execute(call.clone()));
    let ended = join_all(calls).await;
    assert_eq!(ended.iter().filter(|ended| ended.is_ok()).count(), 1);
    for status in ended.into_iter().filter_map(Result::err) {
        assert_code(&status, Code::AlreadyExists);
    }
    assert_eq!(world.read(&call, "log"), "ran\n");
}

#[sqlx::test(migrations = false)]
async fn calls_of_one_session_run_side_by_side(db: PgPool) {
    let world = World::start(db).await;
    let meets = |mine: &str, theirs: &str| {
        format!("touch {mine}; until [ -e {theirs} ]; do sleep 0.01; done; echo met")
    };
    let one = world.bash(&meets("one", "other"));
    let mut other = world.bash(&meets("other", "one"));
    (other.session_id, other.workspace_id) = (one.session_id.clone(), one.workspace_id.clone());
    // Neither can end before the other has begun.
    let (one, other) = tokio::join!(world.execute(one), world.execute(other));
    assert_eq!(one.unwrap().data(), json!({ "output": "met\n", "exit_code": 0 }));
    assert_eq!(other.unwrap().data(), json!({ "output": "met\n", "exit_code": 0 }));
}

#[sqlx::test(migrations = false)]
async fn an_owner_that_lost_its_session_cannot_act(db: PgPool) {
    let world = World::start(db).await;
    let mut call = world.bash("echo ran >> log");
    call.epoch = 3;
    world.execute(call.clone()).await.unwrap();

    let mut late = world.bash("echo late >> log");
    (late.session_id, late.workspace_id) = (call.session_id.clone(), call.workspace_id.clone());
    late.epoch = 2;
    let status = world.begin(late.clone()).await.unwrap_err();
    expect![
        "FailedPrecondition REASON_EPOCH_STALE: epoch 2 of session ses_… is over, 3 is in force"
    ]
    .assert_eq(&shape(&explain(&status)));
    assert_eq!(world.read(&call, "log"), "ran\n");

    // The call itself was not started: its rightful owner can run it.
    late.epoch = 4;
    world.execute(late).await.unwrap();
    assert_eq!(world.read(&call, "log"), "ran\nlate\n");
}

#[sqlx::test(migrations = false)]
async fn a_running_call_ends_when_its_session_has_another_owner(db: PgPool) {
    let world = World::start(db).await;
    let call = world.bash("sleep 30; echo late >> log");
    let answers = world.begin(call.clone()).await.unwrap();
    assert_eq!(world.raise_epoch(&call.session_id, 2).await.unwrap(), 2);
    let ended = world.finish(answers).await.unwrap();
    assert_eq!(ended.error(), ("aborted", "the session has another owner"));
    assert!(world.read(&call, "log").is_empty());
}

#[sqlx::test(migrations = false)]
async fn an_epoch_only_rises(db: PgPool) {
    let world = World::start(db).await;
    let call = world.bash("true");
    assert_eq!(world.raise_epoch(&call.session_id, 5).await.unwrap(), 5);
    assert_eq!(world.raise_epoch(&call.session_id, 5).await.unwrap(), 5);
    assert_eq!(world.raise_epoch(&call.session_id, 2).await.unwrap(), 5);
    assert_code(&world.begin(call.clone()).await.unwrap_err(), Code::FailedPrecondition);

    let world = world.restart().await;
    assert_code(&world.begin(call.clone()).await.unwrap_err(), Code::FailedPrecondition);
    assert_code(&world.raise_epoch("ses_1", 1).await.unwrap_err(), Code::InvalidArgument);
    assert_code(&world.raise_epoch(&call.session_id, -1).await.unwrap_err(), Code::InvalidArgument);
}

#[sqlx::test(migrations = false)]
async fn a_tenant_cannot_fence_off_another(db: PgPool) {
    let mut world = World::start(db).await;
    let call = world.bash("true");
    world.caller.tenant = "other".parse().unwrap();
    world.raise_epoch(&call.session_id, 9).await.unwrap();
    world.caller.tenant = "acme".parse().unwrap();
    assert_eq!(world.execute(call).await.unwrap().data()["exit_code"], 0);
}
