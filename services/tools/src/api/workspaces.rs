use std::sync::Arc;

use chassis::auth::Kind;
use data_encoding::HEXLOWER;
use prost::Message as _;
use proto::tools::v1::{
    self as pb, import_workspace_request::Format as PbFormat,
    workspace_service_server::WorkspaceService,
};
use sandbox::Profile;
use sha2::{Digest as _, Sha256};
use tonic::{Request, Response, Status, Streaming};

use super::{invalid, parse, pieces::Pieces};
use crate::{
    call::{ReplicaId, WorkspaceId},
    error::{Error, Result},
    execute::Executor,
    facts::{int32, int64},
    files::Used,
    processes::Processes,
    store::{snapshots::Which, workspaces as store},
    workspaces::{Format, Git, Received, Workspaces},
};

/// Limits that the contract promises.
const LONGEST_PROJECT: usize = 200;
const LONGEST_REQUEST_ID: usize = 100;
const LARGEST_PAGE: i32 = 500;
const USUAL_PAGE: i64 = 50;
const LARGEST_ARCHIVE: u64 = 1024 * 1024 * 1024;
const LARGEST_PIECE: usize = 1024 * 1024;

pub struct Api {
    pub executor: Arc<Executor>,
    pub processes: Processes,
}

#[tonic::async_trait]
impl WorkspaceService for Api {
    async fn create_workspace(
        &self,
        request: Request<pb::CreateWorkspaceRequest>,
    ) -> Result<Response<pb::CreateWorkspaceResponse>, Status> {
        let tenant = chassis::caller(&request)?.tenant;
        let request = request.into_inner();
        let request_id = request_id(&request.request_id)?;
        if request.project.chars().count() > LONGEST_PROJECT || request.project.contains('\0') {
            return Err(invalid("project", "is not up to 200 characters without NUL").into());
        }
        let most = int64(self.workspaces().limits.bytes);
        let quota_bytes = match request.quota_bytes {
            0 => None,
            bytes if (1..=most).contains(&bytes) => Some(bytes),
            _ => {
                let problem = format!("is not between 0 and {most}, the server's own limit");
                return Err(invalid("quota_bytes", problem).into());
            }
        };
        let new = store::New {
            tenant: &tenant,
            workspace_id: WorkspaceId::new(),
            request_id,
            request_digest: &HEXLOWER.encode(&Sha256::digest(request.encode_to_vec())),
            project: &request.project,
            quota_bytes,
            replica_id: self.workspaces().replica,
        };
        let created = store::create(&self.workspaces().db, new).await?;
        if created.replica_id == self.workspaces().replica {
            // Files can be put into it right away.
            self.workspaces().enter(&tenant, created.workspace_id).await?;
        }
        let workspace = Some(self.encode(&created, Used::default()));
        Ok(Response::new(pb::CreateWorkspaceResponse { workspace }))
    }

    async fn get_workspace(
        &self,
        request: Request<pb::GetWorkspaceRequest>,
    ) -> Result<Response<pb::GetWorkspaceResponse>, Status> {
        let tenant = chassis::caller(&request)?.tenant;
        let id = parse("workspace_id", &request.into_inner().workspace_id)?;
        let found = self.find(&tenant, id).await?;
        let used = self.workspaces().used(&tenant, id).await?;
        let workspace = Some(self.encode(&found, used));
        Ok(Response::new(pb::GetWorkspaceResponse { workspace }))
    }

    async fn list_workspaces(
        &self,
        request: Request<pb::ListWorkspacesRequest>,
    ) -> Result<Response<pb::ListWorkspacesResponse>, Status> {
        let tenant = chassis::caller(&request)?.tenant;
        let request = request.into_inner();
        let limit = match request.page_size {
            0 => USUAL_PAGE,
            size @ 1..=LARGEST_PAGE => size.into(),
            _ => return Err(invalid("page_size", "is not between 0 and 500").into()),
        };
        let before = match request.page_token.as_str() {
            "" => None,
            token => Some(token.parse().map_err(|_| Error::InvalidCursor)?),
        };
        let mut found = store::list(&self.workspaces().db, &tenant, before, limit + 1).await?;
        let more = found.len() as i64 > limit;
        found.truncate(limit as usize);
        let next_page_token = match found.last() {
            Some(last) if more => last.workspace_id.to_string(),
            _ => String::new(),
        };
        let workspaces = found.iter().map(|found| self.encode(found, Used::default())).collect();
        Ok(Response::new(pb::ListWorkspacesResponse { workspaces, next_page_token }))
    }

    async fn delete_workspace(
        &self,
        request: Request<pb::DeleteWorkspaceRequest>,
    ) -> Result<Response<pb::DeleteWorkspaceResponse>, Status> {
        let tenant = chassis::caller(&request)?.tenant;
        let id = parse("workspace_id", &request.into_inner().workspace_id)?;
        // Those on this server end with the workspace; others that share its disk have to be told.
        self.processes.end_workspace(&tenant, id).await?;
        self.workspaces().delete(&tenant, id).await?;
        Ok(Response::new(pb::DeleteWorkspaceResponse {}))
    }

    async fn import_workspace(
        &self,
        request: Request<Streaming<pb::ImportWorkspaceRequest>>,
    ) -> Result<Response<pb::ImportWorkspaceResponse>, Status> {
        let tenant = chassis::caller(&request)?.tenant;
        let mut pieces = Pieces::new(request.into_inner());
        let Some(first) = pieces.next().await? else {
            return Err(invalid("workspace_id", "is missing").into());
        };
        let id = parse("workspace_id", &first.workspace_id)?;
        let format = match first.format() {
            PbFormat::Unspecified => return Err(invalid("format", "is missing or unknown").into()),
            PbFormat::GitBundle => Format::GitBundle,
            PbFormat::Tar => Format::Tar,
            PbFormat::TarGzip => Format::TarGzip,
            PbFormat::TarZstd => Format::TarZstd,
        };
        self.executor.check_tier()?;
        let mut received = self.workspaces().receive(&tenant, id).await?;
        received = append(received, first.data).await?;
        while let Some(more) = pieces.next().await? {
            if !more.workspace_id.is_empty() || more.format != 0 {
                return Err(invalid("workspace_id", "belongs into the first message only").into());
            }
            received = append(received, more.data).await?;
        }
        // To tonic a call that was dropped is a stream that ended. The server drops us, too, but
        // only once we wait for something: so we do, before anything is unpacked.
        tokio::task::yield_now().await;
        let profile = Profile::at_least(self.executor.minimum_tier);
        let git = Git { sandbox: &self.executor.sandbox, profile: &profile };
        let used = self.workspaces().import(&tenant, id, format, received, git).await?;
        let workspace = Some(self.encode(&self.find(&tenant, id).await?, used));
        Ok(Response::new(pb::ImportWorkspaceResponse { workspace, files: int32(used.files) }))
    }

    async fn snapshot_workspace(
        &self,
        request: Request<pb::SnapshotWorkspaceRequest>,
    ) -> Result<Response<pb::SnapshotWorkspaceResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        let id = parse("workspace_id", &request.workspace_id)?;
        let request_id = request_id(&request.request_id)?;
        // A session keeps what it is about to use for the first time, which nobody else knows.
        let make = caller.kind == Kind::Service;
        let snapshot = self.workspaces().snapshot(&caller.tenant, id, request_id, make).await?;
        Ok(Response::new(pb::SnapshotWorkspaceResponse {
            snapshot_id: snapshot.snapshot_id.to_string(),
            create_time: Some(time(snapshot.create_time)),
        }))
    }

    async fn restore_workspace(
        &self,
        request: Request<pb::RestoreWorkspaceRequest>,
    ) -> Result<Response<pb::RestoreWorkspaceResponse>, Status> {
        let tenant = chassis::caller(&request)?.tenant;
        let request = request.into_inner();
        let id = parse("workspace_id", &request.workspace_id)?;
        let which = match (request.snapshot_id.as_str(), request.request_id.as_str()) {
            (snapshot_id, "") => Which::Id(parse("snapshot_id", snapshot_id)?),
            ("", _) => Which::Request(request_id(&request.request_id)?.to_owned()),
            _ => return Err(invalid("request_id", "excludes snapshot_id").into()),
        };
        let restored = self.workspaces().restore(&tenant, id, &which).await?;
        Ok(Response::new(pb::RestoreWorkspaceResponse {
            workspace: Some(self.encode(&self.find(&tenant, id).await?, restored.used)),
            snapshot_id: restored.snapshot_id.to_string(),
            replaced_snapshot_id: restored.replaced_snapshot_id.to_string(),
        }))
    }
}

impl Api {
    fn workspaces(&self) -> &Arc<Workspaces> {
        &self.executor.workspaces
    }

    async fn find(&self, tenant: &chassis::Tenant, id: WorkspaceId) -> Result<store::Workspace> {
        let found = store::get(&self.workspaces().db, tenant, id).await?;
        found.filter(|found| !found.deleting).ok_or(Error::WorkspaceNotFound(id))
    }

    fn encode(&self, found: &store::Workspace, used: Used) -> pb::Workspace {
        let limits = self.workspaces().limits_of(found);
        pb::Workspace {
            workspace_id: found.workspace_id.to_string(),
            project: found.project.clone(),
            used_bytes: int64(used.bytes),
            quota_bytes: int64(limits.bytes),
            create_time: Some(time(found.create_time)),
            replica: found.replica_id.as_ref().map(ReplicaId::to_string).unwrap_or_default(),
            used_files: int64(used.files),
            quota_files: int64(limits.files),
        }
    }
}

async fn append(received: Received, data: Vec<u8>) -> Result<Received> {
    if data.len() > LARGEST_PIECE {
        return Err(invalid("data", "is larger than 1 MiB"));
    }
    if received.bytes + data.len() as u64 > LARGEST_ARCHIVE {
        return Err(invalid("data", "is more than 1 GiB in all"));
    }
    received.append(data).await
}

fn request_id(text: &str) -> Result<&str> {
    match (1..=LONGEST_REQUEST_ID).contains(&text.chars().count()) && !text.contains('\0') {
        true => Ok(text),
        false => Err(invalid("request_id", "is not 1 to 100 characters without NUL")),
    }
}

fn time(time: jiff_sqlx::Timestamp) -> pbjson_types::Timestamp {
    let time = time.to_jiff();
    pbjson_types::Timestamp { seconds: time.as_second(), nanos: time.subsec_nanosecond() }
}
