//! Sandboxes that wait for a command.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{MetadataExt as _, chown},
    path::Path,
    process::Command,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, geteuid},
};
use sandbox::{Exit, Layer, Limits, Profile, Program, create_workspace};
use tokio::time::{sleep, timeout};

use crate::bench::Bench;

/// Pid 1 of a sandbox, as the host knows it.
async fn init(supervisor: Pid) -> Pid {
    let path = format!("/proc/{supervisor}/task/{supervisor}/children");
    let starting = async {
        loop {
            let children = fs::read_to_string(&path).unwrap_or_default();
            match children.split_whitespace().next() {
                Some(pid) => return Pid::from_raw(pid.parse().unwrap()),
                None => sleep(Duration::from_millis(5)).await,
            }
        }
    };
    timeout(Duration::from_secs(30), starting).await.expect("an init")
}

/// The control groups of a process that are a sandbox's own.
fn groups(process: Pid) -> BTreeSet<String> {
    let groups = fs::read_to_string(format!("/proc/{process}/cgroup")).unwrap();
    let names = groups.lines().filter_map(|line| line.rsplit_once('/').map(|(_, name)| name));
    names.filter(|name| name.starts_with("sandbox-")).map(str::to_owned).collect()
}

async fn gone(process: Pid) {
    let path = format!("/proc/{process}");
    let going = async {
        while Path::new(&path).exists() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(30), going).await.expect("a process that ends");
}

#[tokio::test]
async fn what_was_prepared_is_used_once_and_says_what_any_other_says() {
    let mut bench = Bench::prepared().await;
    let prepared = bench.next_prepared(&[]).await;
    let mut child = bench.start(&Profile::default(), "true").await.unwrap();
    assert_eq!(child.supervisor(), Some(prepared));
    assert_eq!(child.wait().await.unwrap(), Exit::Code(0));
    bench.next_prepared(&[prepared]).await;

    bench.sandbox = bench.sandbox.keep_prepared(0);
    let other = bench.start(&Profile::default(), "true").await.unwrap();
    assert_eq!(other.report, child.report);
    let order: Vec<Layer> = child.report.layers.iter().map(|report| report.layer).collect();
    assert_eq!(order, Layer::ALL);
}

#[tokio::test]
async fn nothing_is_prepared_unless_it_is_asked_for() {
    let bench = Bench::new();
    bench.output("true").await;
    assert_eq!(bench.sandbox.prepared(), []);
}

#[tokio::test]
async fn what_was_prepared_and_killed_is_replaced() {
    let bench = Bench::prepared().await;
    let first = bench.next_prepared(&[]).await;
    kill(first, Signal::SIGKILL).unwrap();
    assert_eq!(bench.output("echo still here").await, "still here");

    let second = bench.next_prepared(&[first]).await;
    kill(init(second).await, Signal::SIGKILL).unwrap();
    assert_eq!(bench.output("echo still here").await, "still here");

    let third = bench.next_prepared(&[first, second]).await;
    let child = bench.start(&Profile::default(), "true").await.unwrap();
    assert_eq!(child.supervisor(), Some(third));
}

#[tokio::test]
async fn what_was_prepared_ends_with_the_last_handle() {
    let bench = Bench::prepared().await;
    let supervisor = bench.next_prepared(&[]).await;
    let (init, groups) = (init(supervisor).await, groups(supervisor));
    let clone = bench.sandbox.clone();
    drop(bench);
    assert_eq!(clone.prepared(), [supervisor]);

    drop(clone);
    gone(supervisor).await;
    gone(init).await;
    for name in groups {
        let removing = async {
            let mut find = Command::new("find");
            find.args(["/sys/fs/cgroup", "-name", &name]);
            while !find.output().unwrap().stdout.is_empty() {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(Duration::from_secs(30), removing).await.expect("a group that is removed");
    }
}

#[tokio::test]
async fn a_workspace_of_somebody_else_gets_a_sandbox_of_its_own() {
    if !geteuid().is_root() {
        return;
    }
    let bench = Bench::prepared().await;
    let prepared = bench.next_prepared(&[]).await;
    let workspace = bench.folder.path().join("other");
    create_workspace(&workspace).unwrap();
    chown(&workspace, Some(65_533), Some(65_533)).unwrap();

    let program = Program::bash("touch made");
    let mut child = bench.sandbox.spawn(&Profile::default(), &workspace, &program).await.unwrap();
    assert_ne!(child.supervisor(), Some(prepared));
    assert_eq!(child.wait().await.unwrap(), Exit::Code(0));
    assert_eq!(fs::metadata(workspace.join("made")).unwrap().uid(), 65_533);
    assert_eq!(bench.sandbox.prepared(), [prepared]);
}

#[tokio::test]
async fn what_was_prepared_has_the_limits_of_the_request() {
    let bench = Bench::prepared().await;
    let prepared = bench.next_prepared(&[]).await;
    let limits = Limits { processes: 20, tmp_bytes: 1 << 20, ..Limits::default() };
    let profile = Profile { limits, ..Profile::default() };
    let script = "perl -e 'for (1..30) { $pid = fork; defined $pid or exit 7; $pid or sleep 100 }'";
    let mut child = bench.start(&profile, script).await.unwrap();
    assert_eq!(child.supervisor(), Some(prepared));
    assert_eq!(child.wait().await.unwrap(), Exit::Code(7));
    let told: Vec<&str> = child.violations.iter().map(|told| told.detail.as_str()).collect();
    match child.report.has(Layer::Cgroup) {
        true => assert_eq!(told, ["limit of 20 processes: 1 not started"]),
        false => assert!(told.is_empty(), "{told:?}"),
    }

    let prepared = bench.next_prepared(&[prepared]).await;
    let child = bench.start(&profile, "sleep 100").await.unwrap();
    assert_eq!(child.supervisor(), Some(prepared));
    let limits = fs::read_to_string(format!("/proc/{prepared}/cgroup")).unwrap();
    let pids = limits.lines().find_map(|line| line.split_once(":pids:").map(|(_, path)| path));
    if let (true, Some(path)) = (child.report.has(Layer::Cgroup), pids) {
        let file = format!("/sys/fs/cgroup/pids{path}/pids.max");
        assert_eq!(fs::read_to_string(file).unwrap().trim(), "20");
    }
}
