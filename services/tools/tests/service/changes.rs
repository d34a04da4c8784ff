use expect_test::expect;
use proto::tools::v1::{DeleteFileRequest, File, MoveFileRequest, WriteFileRequest};
use sqlx::PgPool;
use tonic::Status;

use crate::{
    files::{client, show, stat},
    world::{World, explain},
};

pub async fn write(world: &World, id: &str, path: &str, data: &[u8]) -> Result<File, Status> {
    let (workspace_id, path) = (id.into(), path.into());
    let request = WriteFileRequest { workspace_id, path, data: data.into() };
    let request = world.peer.request(&world.caller, request);
    Ok(client(world).write_file(request).await?.into_inner().file.unwrap())
}

async fn rename(world: &World, id: &str, path: &str, new_path: &str) -> Result<File, Status> {
    let request =
        MoveFileRequest { workspace_id: id.into(), path: path.into(), new_path: new_path.into() };
    let request = world.peer.request(&world.caller, request);
    Ok(client(world).move_file(request).await?.into_inner().file.unwrap())
}

pub async fn delete(world: &World, id: &str, path: &str) -> Result<(), Status> {
    let request = DeleteFileRequest { workspace_id: id.into(), path: path.into() };
    let request = world.peer.request(&world.caller, request);
    client(world).delete_file(request).await.map(|_| ())
}

#[sqlx::test(migrations = false)]
async fn a_client_writes_files(db: PgPool) {
    let world = World::start(db).await;
    let id = world.workspace("echo old > run; chmod +x run; mkdir dir; ln -s dir link").await;
    let file = write(&world, &id, "./link//new", b"\0\xff").await.unwrap();
    assert_eq!(show(&file), "link/new: KIND_FILE of 2 bytes\n");
    let file = write(&world, &id, "run", b"").await.unwrap();
    assert_eq!(show(&file), "run: KIND_FILE of 0 bytes, executable\n");
    assert_eq!(stat(&world, &id, "run").await.unwrap(), file);
    assert_eq!(
        world.prints(&id, "ls -A . dir; wc -c < dir/new").await,
        ".:\ndir\nlink\nrun\n\ndir:\nnew\n2\n"
    );

    let mut lines = String::new();
    for (path, size) in
        [("", 0), ("dir", 0), ("run/x", 0), ("../x", 0), ("a\0", 0), ("x", 1_048_577)]
    {
        let status = write(&world, &id, path, &vec![0; size]).await.unwrap_err();
        lines += &format!("{}\n", explain(&status));
    }
    let unused = world.bash("true").workspace_id;
    let status = write(&world, &unused, "x", b"").await.unwrap_err();
    lines += &explain(&status).replace(&unused, "ws_…");
    expect![[r#"
        InvalidArgument REASON_INVALID_FIELD: invalid path: names no file
        InvalidArgument REASON_INVALID_FIELD: invalid path: is a directory
        NotFound REASON_PATH_NOT_FOUND: there is no "run/x" in the workspace
        InvalidArgument REASON_PATH_OUTSIDE: "../x" leads out of the workspace
        InvalidArgument REASON_INVALID_FIELD: invalid path: has a NUL
        InvalidArgument REASON_INVALID_FIELD: invalid data: is larger than 1 MiB
        NotFound REASON_WORKSPACE_NOT_FOUND: there is no workspace ws_…, or nothing has used it yet"#]].assert_eq(&lines);
    assert!(!world.folder(&unused).exists());
    write(&world, &id, "x", &vec![0; 1_048_576]).await.unwrap();
}

#[sqlx::test(migrations = false)]
async fn a_client_moves_files(db: PgPool) {
    let world = World::start(db).await;
    let command = "mkdir -p a/b; echo kept > a/b/c; echo x > taken; ln -s /etc out; mkfifo pipe";
    let id = world.workspace(command).await;
    let file = rename(&world, &id, "a/b/c", "new/place/c").await.unwrap();
    assert_eq!(show(&file), "new/place/c: KIND_FILE of 5 bytes\n");
    let directory = rename(&world, &id, "new/", "a/b/new").await.unwrap();
    assert_eq!(show(&directory), "a/b/new: KIND_DIRECTORY of 0 bytes\n");
    let link = rename(&world, &id, "out", "a/out").await.unwrap();
    assert_eq!(show(&link), "a/out: KIND_SYMLINK of 0 bytes\n");
    rename(&world, &id, "pipe", "a/pipe").await.unwrap();
    assert_eq!(
        world.prints(&id, "cat a/b/new/place/c; ls; ls a").await,
        "kept\na\ntaken\nb\nout\npipe\n"
    );

    let mut lines = String::new();
    for (path, new_path) in [
        ("gone", "x/y"),
        ("a", "taken"),
        ("a", "a/b/a"),
        ("", "x"),
        ("a", ""),
        ("a", "../a"),
        ("../a", "a"),
        ("taken", "a/out/taken"),
        ("a/out/passwd", "passwd"),
        ("taken", "a\0"),
    ] {
        let status = rename(&world, &id, path, new_path).await.unwrap_err();
        lines += &format!("{}\n", explain(&status));
    }
    expect![[r#"
        NotFound REASON_PATH_NOT_FOUND: there is no "gone" in the workspace
        InvalidArgument REASON_INVALID_FIELD: invalid new_path: is there already
        InvalidArgument REASON_INVALID_FIELD: invalid new_path: lies within what is moved
        InvalidArgument REASON_INVALID_FIELD: invalid path: names no file
        InvalidArgument REASON_INVALID_FIELD: invalid new_path: names no file
        InvalidArgument REASON_PATH_OUTSIDE: "../a" leads out of the workspace
        InvalidArgument REASON_PATH_OUTSIDE: "../a" leads out of the workspace
        InvalidArgument REASON_PATH_OUTSIDE: "a/out/taken" leads out of the workspace
        InvalidArgument REASON_PATH_OUTSIDE: "a/out/passwd" leads out of the workspace
        InvalidArgument REASON_INVALID_FIELD: invalid new_path: has a NUL
    "#]]
    .assert_eq(&lines);
    assert_eq!(world.prints(&id, "ls; cat taken").await, "a\ntaken\nx\n");
}

#[sqlx::test(migrations = false)]
async fn a_client_deletes_trees_and_nothing_else(db: PgPool) {
    let world = World::start(db).await;
    let id = world
        .workspace(
            "mkdir -p tree/a/b/c tree/empty kept/dir; touch tree/{1..50} tree/a/{1..50} kept/file; \
             ln -s ../../kept tree/a/link; ln -s ../kept/file tree/link; ln -s kept linked; \
             mkfifo tree/pipe; touch tree/$'new\\nline' tree/$'\\xff'; chmod 0 tree/a/b; touch file",
        )
        .await;
    for path in ["tree", "tree", "tree/a/b", "linked", "file", "gone/x"] {
        delete(&world, &id, path).await.unwrap();
    }
    assert_eq!(world.prints(&id, "ls -A . kept").await, ".:\nkept\n\nkept:\ndir\nfile\n");

    let mut lines = String::new();
    for path in ["", ".", "kept/..", "..", "/etc/hostname", "kept/../../x"] {
        lines += &format!("{}\n", explain(&delete(&world, &id, path).await.unwrap_err()));
    }
    expect![[r#"
        InvalidArgument REASON_INVALID_FIELD: invalid path: names no file
        InvalidArgument REASON_INVALID_FIELD: invalid path: names no file
        InvalidArgument REASON_INVALID_FIELD: invalid path: names no file
        InvalidArgument REASON_PATH_OUTSIDE: ".." leads out of the workspace
        InvalidArgument REASON_PATH_OUTSIDE: "/etc/hostname" leads out of the workspace
        InvalidArgument REASON_PATH_OUTSIDE: "kept/../../x" leads out of the workspace
    "#]]
    .assert_eq(&lines);
}
