use std::{collections::BTreeSet, fs, process::Command};

use nix::libc::{SIGKILL, SIGXCPU};
use sandbox::{Exit, Layer, Limits, Profile};

use crate::bench::Bench;

fn profile(limits: Limits) -> Profile {
    Profile { limits, ..Profile::default() }
}

#[tokio::test]
async fn processes_are_limited() {
    let bench = Bench::new();
    let profile = profile(Limits { processes: 20, ..Limits::default() });
    let script = "perl -e 'for (1..100) { $pid = fork; defined $pid or die; $pid or sleep 100 }'";
    let (exit, output) = bench.run_in(&profile, script).await;
    assert_ne!(exit, Exit::Code(0), "{output}");
}

#[tokio::test]
async fn memory_is_limited() {
    let bench = Bench::new();
    let profile = profile(Limits { memory_bytes: 64 << 20, ..Limits::default() });
    let (exit, _) = bench.run_in(&profile, "perl -e '$x = \"a\" x (256 << 20)'").await;
    assert_ne!(exit, Exit::Code(0));
}

#[tokio::test]
async fn cpu_time_is_limited() {
    let bench = Bench::new();
    let profile = profile(Limits { cpu_seconds: 1, ..Limits::default() });
    let (exit, violations) = bench.violations(&profile, "while :; do :; done").await;
    assert_eq!(exit, Exit::Signal(SIGXCPU));
    assert_eq!(violations, ["rlimits: limit of 1 s of processor time"]);

    // A process that will not hear of it has a second to live.
    let (exit, violations) = bench.violations(&profile, "trap '' XCPU; while :; do :; done").await;
    assert_eq!(exit, Exit::Signal(SIGKILL));
    assert_eq!(violations, ["rlimits: limit of 1 s of processor time"]);
}

#[tokio::test]
async fn memory_and_processes_of_the_whole_tree_are_limited_where_there_is_a_control_group() {
    let bench = Bench::new();
    let limits = Limits { memory_bytes: 64 << 20, processes: 20, ..Limits::default() };
    let profile = profile(limits);
    // Each well below the limit of a process.
    let eaters = "for n in 1 2 3 4; do perl -e '$x = \"a\" x (15 << 20); sleep 1' & done; wait";
    let (_, memory) = bench.violations(&profile, eaters).await;
    let forks = "perl -e 'for (1..30) { $pid = fork; defined $pid or die; $pid or sleep 100 }'";
    let (_, processes) = bench.violations(&profile, forks).await;
    match bench.start(&profile, "true").await.unwrap().report.has(Layer::Cgroup) {
        true => {
            assert!(memory[0].starts_with("cgroup: memory limit of 67108864 bytes"), "{memory:?}");
            assert_eq!(processes, ["cgroup: limit of 20 processes: 1 not started"]);
        }
        // Nobody has counted, and nobody says so.
        false => assert_eq!((memory, processes), (vec![], vec![])),
    }
}

#[tokio::test]
async fn a_control_group_ends_with_its_call() {
    let bench = Bench::new();
    let mut child = bench.start(&Profile::default(), "sleep 100").await.unwrap();
    let groups = fs::read_to_string(format!("/proc/{}/cgroup", child.supervisor().unwrap()));
    let groups = groups.unwrap();
    let ours = groups.lines().filter_map(|line| line.rsplit_once('/').map(|(_, name)| name));
    let ours: BTreeSet<_> = ours.filter(|name| name.starts_with("sandbox-")).collect();
    assert_eq!(!ours.is_empty(), child.report.has(Layer::Cgroup));

    child.kill().await.unwrap();
    for name in ours {
        let find = Command::new("find").args(["/sys/fs/cgroup", "-name", name]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&find.stdout), "");
    }
}

#[tokio::test]
async fn a_file_that_is_too_large_is_told() {
    let bench = Bench::new();
    let profile = profile(Limits { file_bytes: 1 << 20, ..Limits::default() });
    let script = "exec perl -e 'open F, q(>), q(large); syswrite F, q(a) x 2e6 for 1..2'";
    let (_, violations) = bench.violations(&profile, script).await;
    assert_eq!(violations, ["rlimits: limit of the size of a file, ended by SIGXFSZ"]);
}

#[tokio::test]
async fn files_and_tmp_are_limited() {
    let bench = Bench::new();
    let profile = profile(Limits { file_bytes: 1 << 20, tmp_bytes: 1 << 20, ..Limits::default() });
    let write = |path: &str, mib: u32| format!("head -c {mib}M /dev/zero > {path}");
    let (exit, _) = bench.run_in(&profile, &write("large", 2)).await;
    assert_ne!(exit, Exit::Code(0));
    let twice = format!("{} && {}", write("/tmp/a", 1), write("/tmp/b", 1));
    let (exit, output) = bench.run_in(&profile, &twice).await;
    assert_ne!(exit, Exit::Code(0));
    assert!(output.contains("No space left"), "{output}");
}
