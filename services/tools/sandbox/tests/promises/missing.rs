//! Machines that cannot give everything, made by starting `sandbox-init` inside of a user
//! namespace that forbids what such a machine would lack.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
};

use sandbox::{Error, Exit, Layer, Profile, Tier};
use tempfile::TempDir;

use crate::bench::{Bench, init};

/// A machine where `preparation` has been run as root of its own namespaces.
fn machine(preparation: &str) -> (Bench, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let wrapper = folder.path().join("init");
    let script = format!(
        "#!/bin/sh\nexec unshare --user --map-root-user --mount \\
         sh -ec '{preparation}\nexec {} \"$1\"' sh \"$1\"\n",
        init().display()
    );
    fs::write(&wrapper, script).unwrap();
    fs::set_permissions(&wrapper, Permissions::from_mode(0o755)).unwrap();
    let bench = Bench::with_init(&wrapper);
    // That machine's root knows no other user to hand the workspace to.
    fs::remove_dir(&bench.workspace).unwrap();
    fs::create_dir(&bench.workspace).unwrap();
    (bench, folder)
}

fn forbid(kinds: &[&str]) -> String {
    kinds.iter().map(|kind| format!("echo 0 > /proc/sys/user/max_{kind}_namespaces\n")).collect()
}

async fn refusal(bench: &Bench, profile: &Profile) -> Vec<Layer> {
    match bench.start(profile, "touch ran").await {
        Err(Error::Refused { missing, report }) => {
            assert!(missing.iter().all(|layer| !report.has(*layer)));
            assert!(!bench.workspace.join("ran").exists());
            missing.into_iter().collect()
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_missing_layer_is_named_and_nothing_runs() {
    for (kind, layer) in [
        ("net", Layer::NetNamespace),
        ("ipc", Layer::IpcNamespace),
        ("uts", Layer::UtsNamespace),
        ("cgroup", Layer::CgroupNamespace),
        ("user", Layer::UserNamespace),
    ] {
        let (bench, _folder) = machine(&forbid(&[kind]));
        assert_eq!(refusal(&bench, &Profile::default()).await, [layer], "{kind}");
    }
    let (bench, _folder) = machine(&forbid(&["pid"]));
    assert_eq!(refusal(&bench, &Profile::default()).await, [Layer::PidNamespace, Layer::Proc]);
    let (bench, _folder) = machine(&forbid(&["mnt"]));
    assert_eq!(
        refusal(&bench, &Profile::default()).await,
        [Layer::MountNamespace, Layer::PrivateRoot, Layer::Proc]
    );
}

#[tokio::test]
async fn the_error_reads_alone() {
    let (bench, _folder) = machine(&forbid(&["net"]));
    let error = bench.start(&Profile::default(), "true").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "this machine lacks sandbox layers that are demanded: net_namespace"
    );
}

#[tokio::test]
async fn a_masked_proc_is_tier_b() {
    let (bench, _folder) = machine("mount -t tmpfs none /proc/sys");
    assert_eq!(bench.tier().await, Tier::B);
    assert_eq!(refusal(&bench, &Profile::default()).await, [Layer::Proc]);

    let profile = Profile::at_least(Tier::B);
    assert_eq!(bench.run_in(&profile, "ls -A /proc; pwd").await.1, "/workspace\n");
}

#[tokio::test]
async fn without_namespaces_landlock_and_seccomp_hold_the_line() {
    let all = ["user", "pid", "mnt", "net", "ipc", "uts", "cgroup"];
    let (bench, _folder) = machine(&forbid(&all));
    let secret = bench.folder.path().join("secret");
    fs::write(&secret, "secret").unwrap();
    assert_eq!(bench.tier().await, Tier::C);
    assert!(!refusal(&bench, &Profile::at_least(Tier::B)).await.is_empty());

    let profile = Profile::at_least(Tier::C);
    let workspace = fs::canonicalize(&bench.workspace).unwrap();
    let (exit, output) = bench.run_in(&profile, "touch here && pwd").await;
    assert_eq!((exit, output.trim()), (Exit::Code(0), workspace.to_str().unwrap()));
    for script in [
        "cat ../secret",
        "touch ../beside",
        "cat /etc/passwd",
        "ls /proc",
        "echo > /dev/tcp/127.0.0.1/1 2>&1 | grep -q refused",
        &format!("kill -0 {}", std::process::id()),
    ] {
        let (exit, output) = bench.run_in(&profile, script).await;
        assert_ne!(exit, Exit::Code(0), "{script}: {output}");
    }
    let mut child = bench
        .start(
            &profile,
            "(setsid sh -c 'while :; do echo beat >> beats; sleep 0.02; done' &); sleep 1000",
        )
        .await
        .unwrap();
    bench.beating().await;
    child.kill().await.unwrap();
    let before = bench.read("beats");
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    assert_eq!(bench.read("beats"), before);
}

#[tokio::test]
async fn this_machine_is_tier_a() {
    assert_eq!(Bench::new().sandbox.probe().await.unwrap().tier(), Tier::A);
}
