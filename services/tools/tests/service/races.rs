//! Changes that happen while somebody else changes the same.

use std::{
    fs,
    os::unix::fs::symlink,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use serde_json::json;
use sqlx::PgPool;

use crate::{changes, world::World};

/// Somebody who puts one thing in the place of another and back, as fast as the machine can.
struct Swapping {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Swapping {
    fn start(one: PathBuf, other: PathBuf) -> Swapping {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let swap = move || {
            while !stopped.load(Ordering::Relaxed) {
                let exchange = RenameFlags::RENAME_EXCHANGE;
                // What is to be swapped may just have been replaced or deleted.
                let _ = renameat2(AT_FDCWD, &one, AT_FDCWD, &other, exchange);
            }
        };
        Swapping { stop, thread: Some(thread::spawn(swap)) }
    }
}

impl Drop for Swapping {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

#[sqlx::test(migrations = false)]
async fn a_directory_that_becomes_a_link_leads_nowhere(db: PgPool) {
    let world = World::start(db).await;
    let id = world.workspace("mkdir dir; echo mine > dir/file").await;
    let folder = world.folder(&id);
    let elsewhere = tempfile::tempdir().unwrap();
    fs::write(elsewhere.path().join("file"), "theirs\n").unwrap();
    fs::write(elsewhere.path().join("other"), "theirs\n").unwrap();
    symlink(elsewhere.path(), folder.join("link")).unwrap();
    let swapping = Swapping::start(folder.join("dir"), folder.join("link"));
    let (mut refused, mut led_astray) = (0, 0);
    for round in 0..30 {
        let content = format!("mine {round}\n");
        for (tool, input) in [
            ("write", json!({ "path": "dir/file", "content": content })),
            ("write", json!({ "path": format!("dir/new{round}/file"), "content": content })),
            ("edit", json!({ "path": "dir/file", "old_text": "mine", "new_text": "ours" })),
            ("read", json!({ "path": "dir/file" })),
            ("grep", json!({ "pattern": "theirs" })),
            ("glob", json!({ "pattern": "other" })),
        ] {
            let ended = world.tool(&id, tool, input).await;
            // Whoever trusts a path.
            let naive = fs::read_to_string(folder.join("dir/file"));
            led_astray += usize::from(naive.is_ok_and(|content| content == "theirs\n"));
            let text = format!("{:?}", ended.outcome);
            assert!(!text.contains("1\\ttheirs") && !text.contains("1:theirs"), "{text}");
            assert!(!text.contains("other"), "{text}");
            refused += usize::from(ended.outcome.error_kind == "sandbox");
        }
        let _ = changes::write(&world, &id, "dir/sent", b"x").await;
        let _ = changes::delete(&world, &id, "dir/other").await;
    }
    drop(swapping);
    assert!(refused > 0 && led_astray > 0, "nothing was ever swapped in time");
    let mut names: Vec<_> =
        fs::read_dir(elsewhere.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["file", "other"]);
    assert_eq!(fs::read_to_string(elsewhere.path().join("file")).unwrap(), "theirs\n");
}

#[sqlx::test(migrations = false)]
async fn a_file_that_becomes_a_link_is_replaced_and_not_followed(db: PgPool) {
    let world = World::start(db).await;
    let id = world.workspace("echo mine > file").await;
    let folder = world.folder(&id);
    let elsewhere = tempfile::tempdir().unwrap();
    let theirs = elsewhere.path().join("theirs");
    fs::write(&theirs, "theirs\n").unwrap();
    let mut led_astray = 0;
    for round in 0..30 {
        let _ = fs::remove_file(folder.join("link"));
        symlink(&theirs, folder.join("link")).unwrap();
        let swapping = Swapping::start(folder.join("file"), folder.join("link"));
        let content = format!("mine {round}\n");
        world.tool(&id, "write", json!({ "path": "file", "content": content })).await;
        let input = json!({ "path": "file", "old_text": "theirs", "new_text": "mine" });
        world.tool(&id, "edit", input).await.error();
        for _ in 0..100 {
            let naive = fs::read_to_string(folder.join("file"));
            led_astray += usize::from(naive.is_ok_and(|content| content == "theirs\n"));
        }
        drop(swapping);
        assert_eq!(fs::read_to_string(&theirs).unwrap(), "theirs\n");
    }
    assert!(led_astray > 0, "whoever trusts a path was never led astray");
}

#[sqlx::test(migrations = false)]
async fn no_edit_of_many_at_once_is_lost(db: PgPool) {
    let world = World::start(db).await;
    let lines: String = (0..20).map(|number| format!("line {number};\n")).collect();
    let id = world.workspace("true").await;
    world.tool(&id, "write", json!({ "path": "file", "content": lines })).await.data();
    let edit = async |number: usize| {
        let (old, new) = (format!("line {number};"), format!("done {number};"));
        let input = json!({ "path": "file", "old_text": old, "new_text": new });
        let ended = world.tool(&id, "edit", input).await;
        match ended.outcome.error_kind.as_str() {
            "" => true,
            _ => {
                assert!(ended.error().1.contains("left alone"), "{:?}", ended.error());
                false
            }
        }
    };
    let done = futures::future::join_all((0..20).map(edit)).await;
    let expected: String = done
        .iter()
        .enumerate()
        .map(|(number, done)| format!("{} {number};\n", if *done { "done" } else { "line" }))
        .collect();
    assert!(done.contains(&true));
    assert_eq!(world.prints(&id, "cat file").await, expected);
}
