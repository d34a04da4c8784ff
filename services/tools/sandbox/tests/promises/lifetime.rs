use std::{
    env,
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use nix::sys::signal::{Signal, kill};
use sandbox::{Error, Exit, Profile, Program, Sandbox};
use tokio::time::{sleep, timeout};

use crate::bench::{Bench, init};

/// A tree that tries hard to stay: a daemon that left its session, ignores signals and shows
/// that it lives by writing to the workspace.
const STUBBORN: &str = "
    trap '' TERM HUP INT
    (setsid bash -c 'trap \"\" TERM HUP INT; while :; do echo beat >> beats; sleep 0.02; done' &)
    sleep 1000";

async fn stubborn(bench: &Bench) -> sandbox::Child {
    let child = bench.start(&Profile::default(), STUBBORN).await.unwrap();
    bench.beating().await;
    child
}

async fn assert_still(bench: &Bench) {
    let before = bench.read("beats");
    sleep(Duration::from_millis(200)).await;
    assert_eq!(bench.read("beats"), before, "the tree is alive");
}

#[tokio::test]
async fn codes_and_signals_are_reported() {
    let bench = Bench::new();
    assert_eq!(bench.run("exit 0").await.0, Exit::Code(0));
    assert_eq!(bench.run("exit 42").await.0, Exit::Code(42));
    assert_eq!(bench.run("kill -TERM $$").await.0, Exit::Signal(15));
    assert_eq!(bench.run("kill -KILL $$").await.0, Exit::Signal(9));
    assert!(matches!(bench.run("kill -RTMIN $$").await.0, Exit::Signal(34..)));
}

#[tokio::test]
async fn a_program_that_does_not_exist_is_not_started() {
    let bench = Bench::new();
    let program = Program::new("no-such-program", &[]);
    let mut child =
        bench.sandbox.spawn(&Profile::default(), &bench.workspace, &program).await.unwrap();
    let error = child.wait().await.unwrap_err();
    assert!(matches!(error, Error::NotStarted(_)), "{error}");
}

#[tokio::test]
async fn kill_ends_the_whole_tree() {
    let bench = Bench::new();
    let mut child = stubborn(&bench).await;
    timeout(Duration::from_secs(5), child.kill()).await.unwrap().unwrap();
    let before = bench.read("beats");
    assert_eq!(child.wait().await.unwrap(), Exit::Killed);
    sleep(Duration::from_millis(200)).await;
    assert_eq!(bench.read("beats"), before, "everything was gone when kill returned");
}

#[tokio::test]
async fn dropping_ends_the_whole_tree() {
    let bench = Bench::new();
    drop(stubborn(&bench).await);
    sleep(Duration::from_millis(200)).await;
    assert_still(&bench).await;
}

#[tokio::test]
async fn the_tree_ends_with_its_command() {
    let bench = Bench::new();
    let script = STUBBORN.replace("sleep 1000", "until [ -s beats ]; do sleep 0.01; done");
    assert_eq!(bench.run(&script).await.0, Exit::Code(0));
    assert_still(&bench).await;
}

#[tokio::test]
async fn the_tree_ends_with_its_supervisor() {
    let bench = Bench::new();
    let mut child = stubborn(&bench).await;
    kill(child.supervisor().unwrap(), Signal::SIGKILL).unwrap();
    assert_eq!(child.wait().await.unwrap(), Exit::Killed);
    sleep(Duration::from_millis(100)).await;
    assert_still(&bench).await;
}

/// Where a process of its own, started by the next test, is to be a service.
const WORKSPACE: &str = "SANDBOX_TEST_WORKSPACE";

async fn serve(workspace: PathBuf) {
    let sandbox = Sandbox::new(init());
    let program = Program::bash(STUBBORN);
    let mut child = sandbox.spawn(&Profile::default(), &workspace, &program).await.unwrap();
    child.wait().await.unwrap();
}

#[tokio::test]
async fn the_tree_ends_with_its_service() {
    if let Some(workspace) = env::var_os(WORKSPACE) {
        return serve(workspace.into()).await;
    }
    let bench = Bench::new();
    let mut service = Command::new(env::current_exe().unwrap())
        .args(["--exact", "lifetime::the_tree_ends_with_its_service"])
        .env(WORKSPACE, &bench.workspace)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    bench.beating().await;
    service.kill().unwrap();
    service.wait().unwrap();
    sleep(Duration::from_millis(200)).await;
    assert_still(&bench).await;
}

#[tokio::test]
async fn many_sandboxes_stand_at_once() {
    let bench = Bench::new();
    let runs = (0..16).map(|number| {
        let bench = &bench;
        async move { bench.output(&format!("sleep 0.1; echo {number}")).await }
    });
    let outputs = futures::future::join_all(runs).await;
    assert_eq!(outputs, (0..16).map(|number| number.to_string()).collect::<Vec<_>>());
}
