use expect_test::expect;
use proto::tools::v1::{
    File, ListFilesRequest, ListFilesResponse, ReadFileRequest, ReadFileResponse, StatFileRequest,
    file_service_client::FileServiceClient,
};
use sqlx::PgPool;
use tonic::{Code, Status, transport::Channel};

use crate::world::{World, assert_code, explain};

pub fn client(world: &World) -> FileServiceClient<Channel> {
    FileServiceClient::new(world.peer.channel())
}

async fn list(world: &World, request: ListFilesRequest) -> Result<ListFilesResponse, Status> {
    let request = world.peer.request(&world.caller, request);
    Ok(client(world).list_files(request).await?.into_inner())
}

pub async fn stat(world: &World, workspace_id: &str, path: &str) -> Result<File, Status> {
    let request = StatFileRequest { workspace_id: workspace_id.into(), path: path.into() };
    let request = world.peer.request(&world.caller, request);
    Ok(client(world).stat_file(request).await?.into_inner().file.unwrap())
}

async fn read(world: &World, request: ReadFileRequest) -> Result<ReadFileResponse, Status> {
    let request = world.peer.request(&world.caller, request);
    Ok(client(world).read_file(request).await?.into_inner())
}

pub fn show(file: &File) -> String {
    let File { path, size_bytes, executable, modify_time, .. } = file;
    assert!(modify_time.unwrap().seconds > 1_600_000_000);
    let kind = file.kind().as_str_name();
    format!(
        "{path}: {kind} of {size_bytes} bytes{}\n",
        if *executable { ", executable" } else { "" }
    )
}

#[sqlx::test(migrations = false)]
async fn a_directory_is_listed_in_pages(db: PgPool) {
    let world = World::start(db).await;
    let command = "mkdir -p src/deep empty; echo main > src/main.rs; printf x > run; \
                   chmod +x run; ln -s src link; ln -s /etc out; mkfifo pipe; touch .hidden";
    let workspace_id = world.workspace(command).await;
    let request = ListFilesRequest { workspace_id, ..ListFilesRequest::default() };

    let all = list(&world, request.clone()).await.unwrap();
    assert!(all.next_page_token.is_empty());
    expect![[r#"
        .hidden: KIND_FILE of 0 bytes
        empty: KIND_DIRECTORY of 0 bytes
        link: KIND_SYMLINK of 0 bytes
        out: KIND_SYMLINK of 0 bytes
        pipe: KIND_OTHER of 0 bytes
        run: KIND_FILE of 1 bytes, executable
        src: KIND_DIRECTORY of 0 bytes
    "#]]
    .assert_eq(&all.files.iter().map(show).collect::<String>());

    let mut paged = Vec::new();
    let mut page = ListFilesRequest { page_size: 3, ..request.clone() };
    loop {
        let response = list(&world, page.clone()).await.unwrap();
        assert!(response.files.len() <= 3);
        paged.extend(response.files);
        page.page_token = response.next_page_token;
        if page.page_token.is_empty() {
            break;
        }
    }
    assert_eq!(paged, all.files);

    for path in ["src", "./src/", "link", "empty/../src"] {
        let below = list(&world, ListFilesRequest { path: path.into(), ..request.clone() }).await;
        let paths: Vec<_> = below.unwrap().files.into_iter().map(|file| file.path).collect();
        let path = path.trim_start_matches("./").trim_end_matches('/');
        assert_eq!(paths, [format!("{path}/deep"), format!("{path}/main.rs")]);
    }
    let empty = ListFilesRequest { path: "empty".into(), ..request };
    assert!(list(&world, empty).await.unwrap().files.is_empty());
}

#[sqlx::test(migrations = false)]
async fn a_file_is_read_in_pieces(db: PgPool) {
    let world = World::start(db).await;
    let command = "mkdir a; printf 0123456789 > a/digits; ln -s a/digits link; \
                   head -c 1500000 /dev/zero > large";
    let workspace_id = world.workspace(command).await;
    let request =
        ReadFileRequest { workspace_id, path: "a/digits".into(), ..ReadFileRequest::default() };
    let piece = async |path: &str, offset, limit| {
        let request = ReadFileRequest { path: path.into(), offset, limit, ..request.clone() };
        let response = read(&world, request).await.unwrap();
        (String::from_utf8(response.data).unwrap(), response.size_bytes)
    };
    assert_eq!(piece("a/digits", 0, 0).await, ("0123456789".into(), 10));
    assert_eq!(piece("link", 3, 4).await, ("3456".into(), 10));
    assert_eq!(piece("a/../a/digits", 8, 4).await, ("89".into(), 10));
    assert_eq!(piece("a/digits", i64::MAX, 4).await, (String::new(), 10));
    let (data, size_bytes) = piece("large", 0, 0).await;
    assert_eq!((data.len(), size_bytes), (1024 * 1024, 1_500_000));
    let (data, _) = piece("large", 1024 * 1024, 0).await;
    assert_eq!(data.len(), 1_500_000 - 1024 * 1024);

    let file = stat(&world, &request.workspace_id, "link").await.unwrap();
    assert_eq!(show(&file), "link: KIND_SYMLINK of 0 bytes\n");
    let file = stat(&world, &request.workspace_id, "").await.unwrap();
    assert_eq!(show(&file), ": KIND_DIRECTORY of 0 bytes\n");
}

#[sqlx::test(migrations = false)]
async fn no_path_leads_out_of_a_workspace(db: PgPool) {
    let world = World::start(db).await;
    let command = "mkdir -p a; echo kept > a/note; ln -s .. up; ln -s /etc/passwd absolute; \
                   ln -s /workspace/a/note inside; ln -s loop loop; ln -s gone dangling; mkfifo pipe";
    let workspace_id = world.workspace(command).await;
    let mut lines = String::new();
    for path in [
        "..",
        "../..",
        "a/../../x",
        "/etc/passwd",
        "/",
        "up",
        "up/x",
        "absolute",
        "absolute/x",
        "inside",
        "loop",
        "dangling",
        "gone",
        "a/note/x",
        "a",
        "pipe",
        "a\0b",
        &"n".repeat(300),
        &"n/".repeat(2_048),
        &"n".repeat(4_097),
    ] {
        let (workspace_id, path) = (workspace_id.clone(), path.to_owned());
        let request = ReadFileRequest { workspace_id, path, ..ReadFileRequest::default() };
        let status = read(&world, request.clone()).await.unwrap_err();
        lines += &format!("{}\n", explain(&status).replace(&"n".repeat(200), "n…n"));
    }
    expect![[r#"
        InvalidArgument REASON_PATH_OUTSIDE: ".." leads out of the workspace
        InvalidArgument REASON_PATH_OUTSIDE: "../.." leads out of the workspace
        InvalidArgument REASON_PATH_OUTSIDE: "a/../../x" leads out of the workspace
        InvalidArgument REASON_PATH_OUTSIDE: "/etc/passwd" leads out of the workspace
        InvalidArgument REASON_PATH_OUTSIDE: "/" leads out of the workspace
        InvalidArgument REASON_PATH_OUTSIDE: "up" leads out of the workspace
        InvalidArgument REASON_PATH_OUTSIDE: "up/x" leads out of the workspace
        InvalidArgument REASON_PATH_OUTSIDE: "absolute" leads out of the workspace
        InvalidArgument REASON_PATH_OUTSIDE: "absolute/x" leads out of the workspace
        InvalidArgument REASON_PATH_OUTSIDE: "inside" leads out of the workspace
        NotFound REASON_PATH_NOT_FOUND: there is no "loop" in the workspace
        NotFound REASON_PATH_NOT_FOUND: there is no "dangling" in the workspace
        NotFound REASON_PATH_NOT_FOUND: there is no "gone" in the workspace
        NotFound REASON_PATH_NOT_FOUND: there is no "a/note/x" in the workspace
        InvalidArgument REASON_INVALID_FIELD: invalid path: is a directory
        InvalidArgument REASON_INVALID_FIELD: invalid path: is no regular file
        InvalidArgument REASON_INVALID_FIELD: invalid path: has a NUL
        NotFound REASON_PATH_NOT_FOUND: there is no "n…n…" in the workspace
        NotFound REASON_PATH_NOT_FOUND: there is no "n/…n/…" in the workspace
        InvalidArgument REASON_INVALID_FIELD: invalid path: is longer than 4096 bytes
    "#]]
    .assert_eq(&lines.replace(&"n/".repeat(100), "n/…n/"));

    // A link is a fact about the workspace; what it leads to is not.
    let link = stat(&world, &workspace_id, "up").await.unwrap();
    assert_eq!(show(&link), "up: KIND_SYMLINK of 0 bytes\n");
    for path in ["up/.", "up/x", "absolute/.", ".."] {
        let status = stat(&world, &workspace_id, path).await.unwrap_err();
        assert!(explain(&status).contains("REASON_PATH_OUTSIDE"), "{path}: {status:?}");
    }
    for (path, reason) in [("up", "REASON_PATH_OUTSIDE"), ("a/note", "REASON_PATH_NOT_FOUND")] {
        let (workspace_id, path) = (workspace_id.clone(), path.into());
        let request = ListFilesRequest { workspace_id, path, ..ListFilesRequest::default() };
        let status = list(&world, request).await.unwrap_err();
        assert!(explain(&status).contains(reason), "{status:?}");
    }
}

#[sqlx::test(migrations = false)]
async fn a_workspace_is_its_tenants_alone(db: PgPool) {
    let mut world = World::start(db).await;
    let workspace_id = world.workspace("echo kept > note").await;
    let unused = world.bash("true").workspace_id;
    let status = stat(&world, &unused, "").await.unwrap_err();
    assert!(explain(&status).contains("REASON_WORKSPACE_NOT_FOUND"), "{status:?}");
    assert!(!world.workspaces.join("acme").join(&unused).exists(), "reading makes nothing");

    world.caller.tenant = "other".parse().unwrap();
    let reading = ReadFileRequest {
        workspace_id: workspace_id.clone(),
        path: "note".into(),
        ..ReadFileRequest::default()
    };
    let listing =
        ListFilesRequest { workspace_id: workspace_id.clone(), ..ListFilesRequest::default() };
    for status in [
        read(&world, reading).await.unwrap_err(),
        list(&world, listing).await.unwrap_err(),
        stat(&world, &workspace_id, "note").await.unwrap_err(),
    ] {
        assert_code(&status, Code::NotFound);
        assert!(explain(&status).contains("REASON_WORKSPACE_NOT_FOUND"), "{status:?}");
    }
}

#[sqlx::test(migrations = false)]
async fn a_bad_request_about_files_names_its_field(db: PgPool) {
    let world = World::start(db).await;
    let workspace_id = world.workspace("touch a").await;
    let listing =
        ListFilesRequest { workspace_id: workspace_id.clone(), ..ListFilesRequest::default() };
    let reading = ReadFileRequest {
        workspace_id: workspace_id.clone(),
        path: "a".into(),
        ..ReadFileRequest::default()
    };
    let elsewhere = ReadFileRequest { workspace_id: "../acme".into(), ..reading.clone() };
    let mut lines = String::new();
    for status in [
        list(&world, ListFilesRequest { page_size: 1_001, ..listing.clone() }).await.unwrap_err(),
        list(&world, ListFilesRequest { page_size: -1, ..listing.clone() }).await.unwrap_err(),
        list(&world, ListFilesRequest { page_token: "?".into(), ..listing }).await.unwrap_err(),
        read(&world, ReadFileRequest { offset: -1, ..reading.clone() }).await.unwrap_err(),
        read(&world, ReadFileRequest { limit: -1, ..reading.clone() }).await.unwrap_err(),
        read(&world, ReadFileRequest { limit: 1_048_577, ..reading }).await.unwrap_err(),
        read(&world, elsewhere).await.unwrap_err(),
    ] {
        lines += &format!("{}\n", explain(&status));
    }
    expect![[r#"
        InvalidArgument REASON_INVALID_FIELD: invalid page_size: is not between 0 and 1000
        InvalidArgument REASON_INVALID_FIELD: invalid page_size: is not between 0 and 1000
        InvalidArgument REASON_INVALID_CURSOR: page_token is not one of ours
        InvalidArgument REASON_INVALID_FIELD: invalid offset: is negative
        InvalidArgument REASON_INVALID_FIELD: invalid limit: is not between 0 and 1048576
        InvalidArgument REASON_INVALID_FIELD: invalid limit: is not between 0 and 1048576
        InvalidArgument REASON_INVALID_FIELD: invalid workspace_id: expected ws_ and 26 characters
    "#]]
    .assert_eq(&lines);
}
