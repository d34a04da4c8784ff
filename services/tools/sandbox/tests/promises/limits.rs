use sandbox::{Exit, Limits, Profile};

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
    let (exit, _) = bench.run_in(&profile, "while :; do :; done").await;
    assert_eq!(exit, Exit::Signal(9));
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
