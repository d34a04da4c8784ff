//! Workspaces that were made to hurt us. Nothing may leave one, and nothing may hang.

use std::{
    ffi::OsStr,
    fs::{self, File},
    iter,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{PermissionsExt as _, symlink},
    },
    path::Path,
    process::Command,
    time::Duration,
};

use nix::{
    fcntl::{OFlag, open, openat},
    sys::stat::{Mode, mkdirat},
};
use proto::tools::v1::{Call, WriteFileRequest, file_service_client::FileServiceClient};
use serde_json::{Value, json};
use sqlx::PgPool;
use tempfile::TempDir;
use tokio::time::timeout;
use tonic::{Code, codec::CompressionEncoding};

use crate::{
    changes,
    world::{Ended, World, assert_code},
};

const SECRET: &str = "the secret of somebody else";

/// A directory of somebody else, with a file in it.
fn elsewhere() -> TempDir {
    let elsewhere = tempfile::tempdir().unwrap();
    fs::set_permissions(elsewhere.path(), fs::Permissions::from_mode(0o777)).unwrap();
    fs::write(elsewhere.path().join("secret"), SECRET).unwrap();
    elsewhere
}

/// That nothing was added and nothing changed.
fn assert_untouched(elsewhere: &Path) {
    assert_eq!(fs::read_dir(elsewhere).unwrap().count(), 1);
    assert_eq!(fs::read_to_string(elsewhere.join("secret")).unwrap(), SECRET);
}

/// Every tool that takes a file, on this path. None may take long.
async fn all(world: &World, id: &str, path: &str) -> Vec<Ended> {
    let inputs = [
        ("read", json!({ "path": path })),
        ("write", json!({ "path": path, "content": "x" })),
        ("edit", json!({ "path": path, "old_text": "secret", "new_text": "x" })),
        ("grep", json!({ "path": path, "pattern": "secret" })),
        ("glob", json!({ "path": path, "pattern": "*" })),
    ];
    let mut ended = Vec::new();
    for (tool, input) in inputs {
        ended.push(quickly(world, id, tool, input).await);
    }
    ended
}

async fn quickly(world: &World, id: &str, tool: &str, input: Value) -> Ended {
    let running = world.tool(id, tool, input.clone());
    let ended = timeout(Duration::from_secs(20), running).await;
    let ended = ended.unwrap_or_else(|_| panic!("{tool} {input} hangs"));
    assert!(!format!("{ended:?}").contains(SECRET), "{tool} {input} tells a secret");
    ended
}

#[sqlx::test(migrations = false)]
async fn no_tool_follows_a_path_out_of_the_workspace(db: PgPool) {
    let world = World::start(db).await;
    let id = world.workspace("mkdir dir").await;
    let (folder, elsewhere) = (world.folder(&id), elsewhere());
    let outside = elsewhere.path();
    symlink(outside, folder.join("directory")).unwrap();
    symlink(outside.join("secret"), folder.join("file")).unwrap();
    symlink(outside.join("new"), folder.join("dangling")).unwrap();
    symlink("../file", folder.join("dir/twice")).unwrap();
    symlink("../../..", folder.join("dir/up")).unwrap();
    symlink("/proc/self/root", folder.join("magic")).unwrap();
    let absolute = outside.join("secret");
    // Whoever trusts a path is led there.
    for path in [absolute.to_str().unwrap(), "directory/secret", "file", "dir/twice"] {
        assert_eq!(fs::read_to_string(folder.join(path)).unwrap(), SECRET, "{path}");
    }
    for path in [
        absolute.to_str().unwrap(),
        "directory/secret",
        "directory/new",
        "directory/new/new",
        "file",
        "dangling",
        "dir/twice",
        "dir/up/x",
        "magic/etc/hostname",
        "../x",
        "dir/../../x",
        "/",
        "..",
    ] {
        for ended in all(&world, &id, path).await {
            // By its name it is refused before anything runs, and by a link when it is opened.
            let (kind, facts) = match path.starts_with('/') || path.contains("..") {
                true => ("denied", vec!["permission.evaluated"]),
                false => ("sandbox", vec!["sandbox.applied", "sandbox.violation"]),
            };
            assert_eq!(ended.error().0, kind, "{path}: {:?}", ended.error());
            assert_eq!(ended.names(), facts, "{path}");
        }
        let status = changes::write(&world, &id, path, b"x").await.unwrap_err();
        assert!(format!("{status:?}").contains("REASON_PATH_OUTSIDE"), "{path}: {status:?}");
    }
    assert_untouched(outside);
    // Searching everything finds the links and not what is behind them.
    for (tool, input) in [
        ("glob", json!({ "pattern": "**/*" })),
        ("grep", json!({ "pattern": "secret", "output": "files" })),
    ] {
        let data = quickly(&world, &id, tool, input).await.data();
        assert_eq!(data.get("total").or(data.get("files")).unwrap(), 0, "{data}");
    }
    changes::delete(&world, &id, "directory").await.unwrap();
    assert!(!folder.join("directory").exists());
    assert_untouched(outside);
}

#[sqlx::test(migrations = false)]
async fn a_message_that_unpacks_to_too_much_is_refused(db: PgPool) {
    let world = World::start(db).await;
    let id = world.workspace("true").await;
    let packed = async |bytes: usize| {
        let (workspace_id, path) = (id.clone(), "file".into());
        let request = WriteFileRequest { workspace_id, path, data: vec![0; bytes] };
        let request = world.peer.request(&world.caller, request);
        let client = FileServiceClient::new(world.peer.channel());
        client.send_compressed(CompressionEncoding::Gzip).write_file(request).await
    };
    // A few kilobytes on the way.
    let refused = packed(64 << 20).await.unwrap_err();
    assert_code(&refused, Code::InvalidArgument);
    assert!(!world.folder(&id).join("file").exists());
    packed(1 << 20).await.unwrap();
}

/// What is kept of it beside the log is what was printed.
#[sqlx::test(migrations = false)]
async fn nothing_that_a_terminal_obeys_is_passed_on(db: PgPool) {
    let world = World::start(db).await;
    let print = "printf '\\033]0;owned\\007\\033[2J\\033[1A\\010\\302\\23331mred\\n'";
    let id = world.workspace(&format!("{print} > file")).await;
    assert!(fs::read(world.folder(&id).join("file")).unwrap().contains(&0x1b));
    let call = Call { workspace_id: id, ..world.bash("cat file; cat file | tr -d '\\n' >&2") };
    let ended = world.execute(call).await.unwrap();
    let output = ended.data()["output"].as_str().unwrap().to_owned();
    assert!(output.starts_with("␛]0;owned␇␛[2J␛[1A␈\u{fffd}31mred\n"), "{output:?}");
    for text in [output, ended.progress()] {
        assert!(!text.is_empty());
        assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
    }
}

#[sqlx::test(migrations = false)]
async fn pipes_sockets_and_devices_hold_nobody_up(db: PgPool) {
    let world = World::start(db).await;
    let id = world
        .workspace(
            "mkfifo pipe; mkdir dir; mkfifo dir/.gitignore; mkfifo dir/.ignore; echo x > dir/x; \
             python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")' || mkfifo socket",
        )
        .await;
    let device = world.folder(&id).join("device");
    // Only root can make one, and commands never.
    let made = Command::new("mknod").arg(&device).args(["c", "1", "5"]).status().unwrap();
    let names = ["pipe", "socket", "device"];
    for name in &names[..if made.success() { 3 } else { 2 }] {
        for ended in all(&world, &id, name).await {
            assert_eq!(ended.error().0, "failed", "{name}: {:?}", ended.error());
        }
        let status = changes::write(&world, &id, name, b"x").await.unwrap_err();
        assert!(status.message().contains("is no regular file"), "{name}: {status:?}");
    }
    let data =
        quickly(&world, &id, "grep", json!({ "pattern": "x", "output": "files" })).await.data();
    assert_eq!(data["output"], "dir/x\n");
    let data = quickly(&world, &id, "glob", json!({ "pattern": "*" })).await.data();
    assert_eq!(data["paths"], json!(["dir/x"]));
    for name in names {
        changes::delete(&world, &id, name).await.unwrap();
    }
}

#[sqlx::test(migrations = false)]
async fn ignore_files_tell_nothing_about_other_files(db: PgPool) {
    let world = World::start(db).await;
    let id = world.workspace("mkdir dir; echo x > dir/canary; echo y > dir/other").await;
    let elsewhere = tempfile::tempdir().unwrap();
    fs::write(elsewhere.path().join("secret"), "canary\n").unwrap();
    let rules = world.folder(&id).join("dir/.gitignore");
    let found = async || {
        quickly(&world, &id, "glob", json!({ "pattern": "canary" })).await.data()["total"].clone()
    };
    fs::write(&rules, "canary\n").unwrap();
    assert_eq!(found().await, 0, "ignore files are honoured");
    fs::remove_file(&rules).unwrap();
    symlink(elsewhere.path().join("secret"), &rules).unwrap();
    assert_eq!(found().await, 1, "but not those of others");
    fs::remove_file(&rules).unwrap();
    File::create(&rules).unwrap().set_len(1 << 30).unwrap();
    assert_eq!(found().await, 1, "and not those of any size");
}

#[sqlx::test(migrations = false)]
async fn any_name_can_be_found_and_deleted(db: PgPool) {
    let world = World::start(db).await;
    let id = world.workspace("mkdir names").await;
    let names = world.folder(&id).join("names");
    for name in [&b"new\nline"[..], b"\xff\xfe", b"-rf", b"* ?[", b" ", b"\x1b[31m"] {
        fs::write(names.join(OsStr::from_bytes(name)), "secret\n").unwrap();
    }
    let data = quickly(&world, &id, "glob", json!({ "pattern": "*" })).await.data();
    assert_eq!(data["total"], 6);
    let input = json!({ "pattern": "secret", "output": "files" });
    let output = quickly(&world, &id, "grep", input).await.data()["output"].clone();
    let lines: Vec<_> = output.as_str().unwrap().lines().collect();
    assert_eq!(
        lines,
        [
            "names/\\u{1b}[31m",
            "names/ ",
            "names/* ?[",
            "names/-rf",
            "names/new\\nline",
            "names/\u{fffd}\u{fffd}",
        ]
    );
    for name in ["names/new\nline", "names/* ?[", "names/-rf"] {
        let data = quickly(&world, &id, "read", json!({ "path": name })).await.data();
        assert_eq!(data["content"], "     1\tsecret\n");
        quickly(&world, &id, "write", json!({ "path": name, "content": "x" })).await.data();
    }
    changes::delete(&world, &id, "names").await.unwrap();
    assert!(!names.exists());
}

#[sqlx::test(migrations = false)]
async fn a_file_of_a_gibibyte_costs_no_gibibyte(db: PgPool) {
    let world = World::start(db).await;
    let id = world.workspace("truncate -s 1G sparse; echo needle > small").await;
    // Text up to the hole, so that it looks like a file worth reading.
    fs::write(world.folder(&id).join("long"), "x".repeat(200_000)).unwrap();
    let long = File::options().write(true).open(world.folder(&id).join("long")).unwrap();
    long.set_len(1 << 30).unwrap();
    let data = quickly(&world, &id, "read", json!({ "path": "sparse" })).await.data();
    assert_eq!((&data["binary"], &data["size_bytes"]), (&json!(true), &json!(1 << 30)));
    let ended = quickly(
        &world,
        &id,
        "edit",
        json!({
            "path": "sparse", "old_text": "a", "new_text": "b",
        }),
    )
    .await;
    assert!(ended.error().1.contains("larger than 8 MiB"), "{:?}", ended.error());
    let data = quickly(&world, &id, "grep", json!({ "pattern": "needle|x" })).await.data();
    assert_eq!(data["output"], "small\n1:needle\n");
    quickly(&world, &id, "write", json!({ "path": "sparse", "content": "x" })).await.data();
}

#[sqlx::test(migrations = false)]
async fn a_tree_deeper_than_any_path_can_be_searched_and_deleted(db: PgPool) {
    let world = World::start(db).await;
    let id = world.workspace("echo needle > top").await;
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
    let mut directory = open(&world.folder(&id), flags, Mode::empty()).unwrap();
    // No path of this length can be opened, so it is made one by one.
    for name in iter::once("deep").chain(iter::repeat_n("deeper", 3_000)) {
        mkdirat(&directory, name, Mode::S_IRWXU).unwrap();
        directory = openat(&directory, name, flags, Mode::empty()).unwrap();
    }
    mkdirat(&directory, "bottom", Mode::S_IRWXU).unwrap();
    let data = quickly(&world, &id, "grep", json!({ "pattern": "needle" })).await.data();
    assert_eq!(data["output"], "top\n1:needle\n");
    assert_eq!(data["not_searched"], 1);
    quickly(&world, &id, "glob", json!({ "pattern": "**/deeper/*" })).await.data();
    let deep = "d/".repeat(100);
    let input = json!({ "path": format!("{deep}file"), "content": "x" });
    // What nobody can count is too much.
    let refused = quickly(&world, &id, "write", input.clone()).await;
    assert!(refused.error().1.contains("is full"), "{:?}", refused.error());
    for path in ["deep", "d"] {
        let deleting = changes::delete(&world, &id, path);
        timeout(Duration::from_secs(20), deleting).await.unwrap().unwrap();
        if path == "deep" {
            quickly(&world, &id, "write", input.clone()).await.data();
        }
    }
    assert_eq!(world.prints(&id, "ls -A").await, "top\n");
}
