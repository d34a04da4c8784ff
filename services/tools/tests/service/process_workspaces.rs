//! Processes and the workspaces that they run in.

use proto::tools::v1::process::Status as State;
use sqlx::PgPool;

use crate::{
    processes::Shell,
    quota::small,
    workspaces::{create, delete},
    world::World,
};

#[sqlx::test(migrations = false)]
async fn a_process_ends_with_its_workspace(db: PgPool) {
    let world = World::start(db).await;
    let shell = Shell::within(&world, create(&world).await);
    let process = shell.start("while :; do echo x >> beats; sleep 0.01; done").await;
    delete(&world, &shell.workspace_id).await.unwrap();
    let (_, ended) = shell.finish(&process.process_id).await;
    assert_eq!(
        (ended.status(), ended.reason.as_str()),
        (State::Terminated, "its workspace was deleted")
    );
    assert!(!world.folder(&shell.workspace_id).exists());
}

#[sqlx::test(migrations = false)]
async fn a_process_that_fills_its_workspace_is_ended(db: PgPool) {
    let world = World::start(db).await;
    let shell = Shell::within(&world, small(&world, 1024 * 1024).await);
    let process = shell.start("head -c 2M /dev/zero > much; echo written; sleep 1000").await;
    let (printed, ended) = shell.finish(&process.process_id).await;
    assert_eq!((printed.as_str(), ended.status()), ("written\n", State::Terminated));
    assert!(ended.reason.contains("is full"), "{ended:?}");

    // There is no room for another one, which says so and does not run.
    let late = shell.try_start(shell.command("late", "echo never")).await.unwrap();
    assert_eq!((late.status(), late.output_bytes), (State::Failed, 0));
    assert!(late.reason.contains("is full"), "{late:?}");
}

#[sqlx::test(migrations = false)]
async fn a_process_runs_where_its_workspace_is_and_is_reached_through_all(db: PgPool) {
    let (one, two) = (World::replica(&db).await, World::replica(&db).await);
    let shell = Shell::within(&two, create(&one).await);
    let process = shell.start("read line; echo got $line; sleep 1000").await;
    let id = &process.process_id;
    let mut attached = shell.attach(id, 0).await.unwrap();
    shell.write(id, "something\n", false).await.unwrap();
    attached.hear("got something\n").await;
    let ended = shell.terminate(id).await.unwrap();
    assert_eq!(ended.status(), State::Terminated);
    assert!(one.folder(&shell.workspace_id).exists());
    assert!(!two.folder(&shell.workspace_id).exists());
}
