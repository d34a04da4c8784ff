//! Workspaces as wholes: made, found, listed and deleted.

use std::time::Duration;

use chassis::Caller;
use expect_test::expect;
use proto::tools::v1::{
    CreateWorkspaceRequest, DeleteWorkspaceRequest, GetWorkspaceRequest, ListWorkspacesRequest,
    ListWorkspacesResponse, Workspace, workspace_service_client::WorkspaceServiceClient,
};
use sqlx::PgPool;
use tokio::time::{sleep, timeout};
use tonic::{Status, transport::Channel};

use crate::{
    changes::write,
    world::{World, explain},
};

pub fn client(world: &World) -> WorkspaceServiceClient<Channel> {
    WorkspaceServiceClient::new(world.peer.channel())
}

pub fn other(tenant: &str) -> Caller {
    Caller::service(tenant.parse().unwrap(), "tests")
}

pub async fn create_as(
    world: &World,
    caller: &Caller,
    request: CreateWorkspaceRequest,
) -> Result<Workspace, Status> {
    let request = world.peer.request(caller, request);
    Ok(client(world).create_workspace(request).await?.into_inner().workspace.unwrap())
}

/// A new workspace.
pub async fn create(world: &World) -> String {
    let request_id = crate::world::WorkspaceId::new().to_string();
    let request = CreateWorkspaceRequest { request_id, ..CreateWorkspaceRequest::default() };
    create_as(world, &world.caller, request).await.unwrap().workspace_id
}

pub async fn get(world: &World, workspace_id: &str) -> Result<Workspace, Status> {
    get_as(world, &world.caller, workspace_id).await
}

async fn get_as(world: &World, caller: &Caller, workspace_id: &str) -> Result<Workspace, Status> {
    let request = GetWorkspaceRequest { workspace_id: workspace_id.into() };
    let request = world.peer.request(caller, request);
    Ok(client(world).get_workspace(request).await?.into_inner().workspace.unwrap())
}

pub async fn delete(world: &World, workspace_id: &str) -> Result<(), Status> {
    let request = DeleteWorkspaceRequest { workspace_id: workspace_id.into() };
    let request = world.peer.request(&world.caller, request);
    client(world).delete_workspace(request).await.map(|_| ())
}

async fn list(
    world: &World,
    caller: &Caller,
    page_size: i32,
    page_token: &str,
) -> Result<ListWorkspacesResponse, Status> {
    let request = ListWorkspacesRequest { page_size, page_token: page_token.into() };
    let request = world.peer.request(caller, request);
    Ok(client(world).list_workspaces(request).await?.into_inner())
}

/// Waits until something is so.
pub async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let waiting = async {
        while !is_so() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(20), waiting).await.unwrap_or_else(|_| panic!("never: {what}"));
}

#[sqlx::test(migrations = false)]
async fn a_workspace_is_created_once_and_can_be_used_at_once(db: PgPool) {
    let world = World::start(db).await;
    let request = CreateWorkspaceRequest {
        request_id: "one".into(),
        project: "windlass".into(),
        quota_bytes: 1_000_000,
    };
    let created = create_as(&world, &world.caller, request.clone()).await.unwrap();
    assert_eq!(created.project, "windlass");
    assert_eq!((created.quota_bytes, created.used_bytes, created.used_files), (1_000_000, 0, 0));
    assert!(created.replica.is_empty());
    let again = create_as(&world, &world.caller, request.clone()).await.unwrap();
    assert_eq!(again, created);
    let theirs = create_as(&world, &other("other"), request.clone()).await.unwrap();
    assert_ne!(theirs.workspace_id, created.workspace_id);

    write(&world, &created.workspace_id, "dir/file", b"hello").await.unwrap();
    let found = get(&world, &created.workspace_id).await.unwrap();
    assert_eq!(found.used_files, 2);
    assert!((5..=100_000).contains(&found.used_bytes), "{}", found.used_bytes);
    assert_eq!(world.prints(&created.workspace_id, "cat dir/file").await, "hello");

    let mut lines = String::new();
    for request in [
        CreateWorkspaceRequest { project: "other".into(), ..request.clone() },
        CreateWorkspaceRequest { request_id: String::new(), ..request.clone() },
        CreateWorkspaceRequest { request_id: "x".repeat(101), ..request.clone() },
        CreateWorkspaceRequest { project: "x".repeat(201), ..request.clone() },
        CreateWorkspaceRequest { quota_bytes: -1, ..request.clone() },
        CreateWorkspaceRequest { quota_bytes: i64::MAX, ..request.clone() },
    ] {
        let status = create_as(&world, &world.caller, request).await.unwrap_err();
        lines += &format!("{}\n", explain(&status));
    }
    expect![[r#"
        AlreadyExists REASON_REQUEST_ID_REUSED: request_id "one" was used before for something else
        InvalidArgument REASON_INVALID_FIELD: invalid request_id: is not 1 to 100 characters without NUL
        InvalidArgument REASON_INVALID_FIELD: invalid request_id: is not 1 to 100 characters without NUL
        InvalidArgument REASON_INVALID_FIELD: invalid project: is not up to 200 characters without NUL
        InvalidArgument REASON_INVALID_FIELD: invalid quota_bytes: is not between 0 and 10737418240, the server's own limit
        InvalidArgument REASON_INVALID_FIELD: invalid quota_bytes: is not between 0 and 10737418240, the server's own limit
    "#]]
    .assert_eq(&lines);
}

#[sqlx::test(migrations = false)]
async fn workspaces_are_listed_newest_first_and_only_to_their_tenant(db: PgPool) {
    let world = World::start(db).await;
    let first = create(&world).await;
    let second = world.workspace("true").await;
    let third = create(&world).await;
    let names = |page: &ListWorkspacesResponse| -> Vec<String> {
        page.workspaces.iter().map(|workspace| workspace.workspace_id.clone()).collect()
    };
    let all = list(&world, &world.caller, 0, "").await.unwrap();
    assert_eq!(names(&all), [third.clone(), second.clone(), first.clone()]);
    assert!(all.next_page_token.is_empty());
    let page = list(&world, &world.caller, 2, "").await.unwrap();
    assert_eq!(names(&page), [third.clone(), second.clone()]);
    let rest = list(&world, &world.caller, 2, &page.next_page_token).await.unwrap();
    assert_eq!((names(&rest), rest.next_page_token.as_str()), (vec![first.clone()], ""));

    let theirs = list(&world, &other("other"), 0, "").await.unwrap();
    assert!(theirs.workspaces.is_empty());
    let mut lines = String::new();
    for status in [
        get_as(&world, &other("other"), &first).await.unwrap_err(),
        get(&world, "ws_nothing").await.unwrap_err(),
        list(&world, &world.caller, 501, "").await.unwrap_err(),
        list(&world, &world.caller, 0, "nonsense").await.unwrap_err(),
    ] {
        lines += &format!("{}\n", explain(&status).replace(&first, "ws_…"));
    }
    expect![[r#"
        NotFound REASON_WORKSPACE_NOT_FOUND: there is no workspace ws_…, or nothing has used it yet
        InvalidArgument REASON_INVALID_FIELD: invalid workspace_id: expected ws_ and 26 characters
        InvalidArgument REASON_INVALID_FIELD: invalid page_size: is not between 0 and 500
        InvalidArgument REASON_INVALID_CURSOR: page_token is not one of ours
    "#]]
    .assert_eq(&lines);
}

#[sqlx::test(migrations = false)]
async fn what_is_deleted_is_gone_with_whatever_runs_in_it(db: PgPool) {
    let world = World::start(db).await;
    let id = world.workspace("mkdir -p deep/er; echo x > deep/er/file; chmod 000 deep").await;
    crate::snapshots::take(&world, &id, "one").await.unwrap();
    let folder = world.folder(&id);
    let snapshots = folder.with_file_name(".snapshots").join(&id);
    assert!(folder.exists() && snapshots.exists());

    let mut call = world.bash("touch begun; sleep 60");
    call.workspace_id = id.clone();
    let running = world.begin(call).await.unwrap();
    until("it runs", || folder.join("begun").exists()).await;
    // To others it does not exist, and they cannot delete it.
    let request = DeleteWorkspaceRequest { workspace_id: id.clone() };
    let request = world.peer.request(&other("other"), request);
    client(&world).delete_workspace(request).await.unwrap();
    assert!(folder.exists());

    delete(&world, &id).await.unwrap();
    let ended = world.finish(running).await.unwrap();
    assert_eq!(ended.error(), ("aborted", "the workspace was deleted"));
    assert!(!folder.exists() && !snapshots.exists());
    delete(&world, &id).await.unwrap();
    assert!(explain(&get(&world, &id).await.unwrap_err()).contains("WORKSPACE_NOT_FOUND"));
    let staging = folder.with_file_name(".staging");
    until("what was taken away is removed", || {
        std::fs::read_dir(&staging).unwrap().next().is_none()
    })
    .await;
    // Whoever goes on with it finds it empty.
    assert_eq!(world.prints(&id, "ls -A").await, "");
}

#[sqlx::test(migrations = false)]
async fn a_deletion_that_was_cut_off_is_finished(db: PgPool) {
    let world = World::start(db.clone()).await;
    let id = world.workspace("echo x > file").await;
    // As far as a process comes that is killed right after it put its intention on record.
    sqlx::query("update tools.workspace set deleting = true").execute(&db).await.unwrap();
    let world = world.restart().await;
    let folder = world.folder(&id);
    until("the sweep removes it", || !folder.exists()).await;
    assert!(explain(&get(&world, &id).await.unwrap_err()).contains("WORKSPACE_NOT_FOUND"));
}
