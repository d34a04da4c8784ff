//! The mode that is content with less, which nobody gets without asking and everybody is told.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
};

use proto::event::v1::{Payload, SandboxApplied};
use serde_json::json;
use sqlx::PgPool;
use tempfile::TempDir;

use crate::world::{Ended, World, explain, sandbox_init};

fn applied(ended: &Ended) -> &SandboxApplied {
    match &ended.facts[0].payload {
        Some(Payload::SandboxApplied(applied)) => applied,
        other => panic!("{other:?}"),
    }
}

/// A machine that covers a part of `/proc`, as containers do, and so cannot mount a fresh one.
fn machine_of_tier_b() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let init = folder.path().join("init");
    let script = format!(
        "#!/bin/sh\n[ $(id -u) = 0 ] || user='--user --map-root-user'\n\
         exec unshare $user --mount sh -ec \
         'mount -t tmpfs none /proc/sys; exec {} \"$1\"' sh \"$1\"\n",
        sandbox_init().display()
    );
    fs::write(&init, script).unwrap();
    fs::set_permissions(&init, Permissions::from_mode(0o755)).unwrap();
    (folder, init)
}

#[sqlx::test(migrations = false)]
async fn every_fact_about_a_sandbox_says_whether_it_is_relaxed(db: PgPool) {
    for (flags, mode) in [
        (&[][..], "strict"),
        (&["--sandbox-minimum-tier", "A"], "strict"),
        (&["--sandbox-minimum-tier", "B"], "relaxed"),
        (&["--sandbox-minimum-tier", "C"], "relaxed"),
    ] {
        let world = World::with(db.clone(), flags).await;
        let ran = world.execute(world.bash("echo x > file")).await.unwrap();
        // What this machine gives is not less for it.
        assert_eq!((applied(&ran).tier.as_str(), applied(&ran).mode.as_str()), ("A", mode));
        let id = world.workspace("echo x > file").await;
        for (tool, input) in [
            ("read", json!({ "path": "file" })),
            ("write", json!({ "path": "file", "content": "y" })),
            ("edit", json!({ "path": "file", "old_text": "y", "new_text": "z" })),
            ("glob", json!({ "pattern": "*" })),
            ("grep", json!({ "pattern": "z" })),
        ] {
            let ended = world.tool(&id, tool, input).await;
            assert_eq!(applied(&ended).mode, mode, "{tool}");
        }
    }
}

#[sqlx::test(migrations = false)]
async fn what_a_machine_lacks_is_named_and_only_the_relaxed_mode_does_without(db: PgPool) {
    let (_folder, init) = machine_of_tier_b();
    let init = init.to_str().unwrap();
    let world = World::with(db.clone(), &["--sandbox-init", init]).await;
    for call in [world.bash("touch ran"), world.call("glob", json!({ "pattern": "*" }))] {
        let refused = world.execute(call.clone()).await.unwrap_err();
        assert_eq!(
            explain(&refused),
            "FailedPrecondition REASON_SANDBOX_UNAVAILABLE: this machine's sandbox is of tier B, \
             A is demanded; it lacks proc"
        );
        assert!(!world.folder(&call.workspace_id).exists());
    }

    let flags = ["--sandbox-init", init, "--sandbox-minimum-tier", "B"];
    let world = World::with(db, &flags).await;
    let ended = world.execute(world.bash("ls /proc | wc -l")).await.unwrap();
    assert_eq!(ended.data()["output"], "0\n");
    let applied = applied(&ended);
    assert_eq!((applied.tier.as_str(), applied.mode.as_str()), ("B", "relaxed"));
    let missing = applied.layers.iter().filter(|layer| !layer.applied && layer.name != "cgroup");
    assert_eq!(missing.map(|layer| layer.name.as_str()).collect::<Vec<_>>(), ["proc"]);
}
