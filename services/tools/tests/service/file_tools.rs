use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use expect_test::expect;
use serde_json::json;
use sqlx::PgPool;

use crate::world::World;

#[sqlx::test(migrations = false)]
async fn a_text_file_is_read_by_lines(db: PgPool) {
    let world = World::start(db).await;
    let id = world.workspace("mkdir src; seq 5000 > src/numbers; printf 'a\\r\\nb' > dos").await;
    let read = async |input| world.tool(&id, "read", input).await;

    let ended = read(json!({ "path": "src/numbers", "offset": 4999, "limit": 1 })).await;
    let data = ended.data();
    assert_eq!(data["content"], "  4999\t4999\n");
    assert_eq!((&data["lines"], &data["next_offset"]), (&json!(5000), &json!(5000)));
    assert!(ended.outcome.metadata.unwrap().truncated);

    let data = read(json!({ "path": "src/numbers" })).await.data();
    let content = data["content"].as_str().unwrap();
    assert!(content.starts_with("     1\t1\n") && content.ends_with("\n  2000\t2000\n"));
    assert_eq!(data["next_offset"], 2001);

    let ended = read(json!({ "path": "dos" })).await;
    assert_eq!(ended.data()["content"], "     1\ta\n     2\tb\n");
    assert!(ended.data().get("next_offset").is_none());
    assert!(!ended.outcome.metadata.unwrap().truncated);
    let digest = world.prints(&id, "sha256sum < dos | cut -c -64").await;
    assert_eq!(read(json!({ "path": "dos" })).await.data()["digest"], digest.trim());
}

#[sqlx::test(migrations = false)]
async fn what_cannot_be_read_is_explained(db: PgPool) {
    let world = World::start(db).await;
    let command = "mkdir src; touch src/main.rs src/lib.rs empty; printf 'GIF89a\\0\\1' > picture; \
                   printf 'x%.0s' {1..5000} > long; echo 1 > one";
    let id = world.workspace(command).await;
    let mut lines = String::new();
    for path in ["src/mian.rs", "src", "nothing/here", "/workspace/one", "../one", ""] {
        let ended = world.tool(&id, "read", json!({ "path": path })).await;
        let (kind, text) = ended.error();
        lines += &format!("{kind}: {text} {:?}\n", ended.names());
    }
    let ended = world.tool(&id, "read", json!({ "path": "one", "offset": 2 })).await;
    lines += &format!("{}\n", ended.error().1);
    lines += &format!("{}\n", world.tool(&id, "read", json!({ "path": "picture" })).await.data());
    lines += &format!("{}\n", world.tool(&id, "read", json!({ "path": "empty" })).await.data());
    expect![[r#"
        failed: there is no "src/mian.rs" in the workspace; did you mean src/main.rs? ["sandbox.applied"]
        failed: invalid path: is a directory; use glob to see what is in it ["sandbox.applied"]
        failed: there is no "nothing/here" in the workspace ["sandbox.applied"]
        denied: "/workspace/one" leads out of the workspace; paths are relative to the workspace: `a/b`, not `/workspace/a/b` ["permission.evaluated"]
        denied: "../one" leads out of the workspace; paths are relative to the workspace: `a/b`, not `/workspace/a/b` ["permission.evaluated"]
        failed: invalid path: is a directory; use glob to see what is in it ["sandbox.applied"]
        line 2 is behind the end: the file has 1 lines
        {"binary":true,"media_type":"image/gif","size_bytes":8}
        {"content":"","digest":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","lines":0,"size_bytes":0}
    "#]].assert_eq(&lines);

    let ended = world.tool(&id, "read", json!({ "path": "long" })).await;
    let content = ended.data()["content"].as_str().unwrap().to_owned();
    assert!(content.ends_with("xxx… [3000 bytes omitted]\n") && content.len() < 2_100);
    let ended = world.tool(&id, "read", json!({ "path": "a\0b" })).await;
    assert_eq!(ended.error().0, "schema");
}

#[sqlx::test(migrations = false)]
async fn a_file_is_written_whole(db: PgPool) {
    let world = World::start(db).await;
    let id = world.workspace("echo old > run; chmod 750 run; mkdir a; ln -s a/b link").await;
    let write = async |path: &str, content: &str| {
        world.tool(&id, "write", json!({ "path": path, "content": content })).await
    };
    let data = write("x/y/new", "hello\n").await.data();
    assert_eq!((&data["created"], &data["size_bytes"]), (&json!(true), &json!(6)));
    assert_eq!(write("run", "new\n").await.data()["created"], false);
    assert_eq!(write("link", "through\n").await.data()["created"], true);

    let folder = world.folder(&id);
    assert_eq!(folder.join("run").metadata().unwrap().permissions().mode() & 0o7777, 0o750);
    let command = "cat x/y/new run a/b; readlink link; echo more >> x/y/new; mv x/y x/z; \
                   rm run; ls -A . a x x/z; stat -c %a x x/z/new";
    expect![[r#"
        hello
        new
        through
        a/b
        .:
        a
        link
        x

        a:
        b

        x:
        z

        x/z:
        new
        755
        644
    "#]]
    .assert_eq(&world.prints(&id, command).await);
    // We own what we make as little as commands own the machine.
    let owner = |path: &str| folder.join(path).metadata().unwrap().uid();
    assert_eq!((owner("x"), owner("x/z/new")), (owner(""), owner("")));

    let mut lines = String::new();
    for path in ["x", "x/", ".", "", "..", "x/..", "../out", "/etc/out", "a/b/c"] {
        let ended = write(path, "no").await;
        lines += &format!("{path}: {} {}\n", ended.error().0, ended.error().1);
    }
    expect![[r#"
        x: failed invalid path: is a directory
        x/: failed invalid path: ends in a slash, so it names no file
        .: failed invalid path: names no file
        : failed invalid path: names no file
        ..: denied ".." leads out of the workspace; paths are relative to the workspace: `a/b`, not `/workspace/a/b`
        x/..: failed invalid path: names no file
        ../out: denied "../out" leads out of the workspace; paths are relative to the workspace: `a/b`, not `/workspace/a/b`
        /etc/out: denied "/etc/out" leads out of the workspace; paths are relative to the workspace: `a/b`, not `/workspace/a/b`
        a/b/c: failed there is no "a/b/c" in the workspace
    "#]].assert_eq(&lines);
}

#[sqlx::test(migrations = false)]
async fn an_edit_replaces_what_is_there_once(db: PgPool) {
    let world = World::start(db).await;
    let command = "printf 'one\\r\\ntwo\\r\\nthree\\r\\n' > dos; chmod 600 dos; \
                   printf 'a\\nb\\na\\n' > twice; printf '\\xff' > bytes; \
                   truncate -s 9M large; ln -s twice link";
    let id = world.workspace(command).await;
    let edit = async |path: &str, old: &str, new: &str, all| {
        let input = json!({
            "path": path, "old_text": old, "new_text": new, "replace_all": all,
        });
        world.tool(&id, "edit", input).await
    };
    let data = edit("dos", "two\nthree", "2\n3", false).await.data();
    expect![[r#"
        @@ -1,3 +1,3 @@
         one\r
        -two\r
        -three\r
        +2\r
        +3\r
    "#]]
    .assert_eq(&data["diff"].as_str().unwrap().replace('\r', "\\r"));
    expect![[r#"
           o   n   e  \r  \n   2  \r  \n   3  \r  \n
        600
    "#]]
    .assert_eq(&world.prints(&id, "od -An -c dos; stat -c %a dos").await);

    let mut lines = String::new();
    for (path, old, new) in [
        ("twice", "a", "x"),
        ("twice", "c", "x"),
        ("twice", "b", "b"),
        ("bytes", "b", "x"),
        ("large", "b", "x"),
        ("gone", "b", "x"),
        ("twice/", "b", "x"),
    ] {
        let ended = edit(path, old, new, false).await;
        lines += &format!("{path}: {} {}\n", ended.error().0, ended.error().1);
    }
    expect![[r#"
        twice: failed old_text is in the file 2 times; add lines around it until it is there once, or set replace_all
        twice: failed old_text is not in the file; read it again, and copy the text exactly
        twice: failed old_text and new_text are the same, so there is nothing to change
        bytes: failed the file is no UTF-8 text, so it cannot be edited
        large: failed invalid path: is larger than 8 MiB, use bash to change it
        gone: failed there is no "gone" in the workspace
        twice/: failed invalid path: ends in a slash, so it names no file
    "#]].assert_eq(&lines);
    assert_eq!(world.prints(&id, "cat twice").await, "a\nb\na\n");

    let data = edit("link", "a", "x", true).await.data();
    assert_eq!(data["replacements"], 2);
    assert_eq!(world.prints(&id, "cat twice; readlink link").await, "x\nb\nx\ntwice\n");

    let expecting = async |digest: &str| {
        let input = json!({
            "path": "twice", "old_text": "b", "new_text": "y", "expected_digest": digest,
        });
        world.tool(&id, "edit", input).await
    };
    assert!(expecting(&"0".repeat(64)).await.error().1.contains("it was changed"));
    assert_eq!(world.prints(&id, "cat twice").await, "x\nb\nx\n");
    let digest = data["digest"].as_str().unwrap();
    let digest = expecting(digest).await.data()["digest"].as_str().unwrap().to_owned();
    let read = world.tool(&id, "read", json!({ "path": "twice" })).await.data();
    assert_eq!(read["digest"], digest);
}

#[sqlx::test(migrations = false)]
async fn an_output_that_was_too_long_is_read_by_its_own_session_only(db: PgPool) {
    let world = World::start(db).await;
    let call = world.bash("seq 1 20000");
    let metadata = world.execute(call.clone()).await.unwrap().outcome.metadata.unwrap();
    let input = json!({ "path": metadata.output_path, "offset": 19_999, "limit": 10 });
    let mut read = world.call("read", input);
    let stranger = world.execute(read.clone()).await.unwrap();
    assert!(stranger.error().1.starts_with("there is no output out_"), "{:?}", stranger.error());

    read.session_id = call.session_id;
    read.tool_call_id = world.call("read", json!({})).tool_call_id;
    let data = world.execute(read).await.unwrap().data();
    assert_eq!(data["content"], " 19999\t19999\n 20000\t20000\n");
    assert_eq!(data["lines"], 20_000);
}
