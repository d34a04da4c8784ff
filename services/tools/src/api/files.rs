use std::{
    fs::Metadata,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::PathBuf,
};

use chassis::Tenant;
use data_encoding::BASE64URL_NOPAD;
use proto::tools::v1::{self as pb, file::Kind, file_service_server::FileService};
use tonic::{Request, Response, Status};

use super::{invalid, parse};
use crate::{
    call::WorkspaceId,
    error::{Error, Result},
    facts::int64,
    files::Workspace,
};

/// Limits that the contract promises.
const LONGEST_PATH: usize = 4_096;
const LARGEST_PAGE: i32 = 1_000;
const USUAL_PAGE: i32 = 200;
const LARGEST_PIECE: i32 = 1024 * 1024;

pub struct Files {
    pub workspaces: PathBuf,
}

#[tonic::async_trait]
impl FileService for Files {
    async fn list_files(
        &self,
        request: Request<pb::ListFilesRequest>,
    ) -> Result<Response<pb::ListFilesResponse>, Status> {
        let tenant = chassis::caller(&request)?.tenant;
        let request = request.into_inner();
        let limit = match request.page_size {
            0 => USUAL_PAGE as usize,
            size @ 1..=LARGEST_PAGE => size as usize,
            _ => return Err(invalid("page_size", "is not between 0 and 1000").into()),
        };
        let after = BASE64URL_NOPAD
            .decode(request.page_token.as_bytes())
            .map_err(|_| Error::InvalidCursor)?;
        let path = path(request.path)?;
        let listed = path.clone();
        let list = move |workspace: Workspace| workspace.list(&listed, &after, limit + 1);
        let mut entries = self.within(tenant, &request.workspace_id, list).await?;
        let more = entries.len() > limit;
        entries.truncate(limit);
        let next_page_token = match entries.last() {
            Some((name, _)) if more => BASE64URL_NOPAD.encode(name),
            _ => String::new(),
        };
        let file = |(name, metadata): (Vec<u8>, Metadata)| {
            let name = String::from_utf8_lossy(&name);
            encode(plain(&format!("{path}/{name}")), &metadata)
        };
        let files = entries.into_iter().map(file).collect();
        Ok(Response::new(pb::ListFilesResponse { files, next_page_token }))
    }

    async fn stat_file(
        &self,
        request: Request<pb::StatFileRequest>,
    ) -> Result<Response<pb::StatFileResponse>, Status> {
        let tenant = chassis::caller(&request)?.tenant;
        let request = request.into_inner();
        let path = path(request.path)?;
        let wanted = path.clone();
        let stat = move |workspace: Workspace| workspace.stat(&wanted);
        let metadata = self.within(tenant, &request.workspace_id, stat).await?;
        let file = Some(encode(plain(&path), &metadata));
        Ok(Response::new(pb::StatFileResponse { file }))
    }

    async fn read_file(
        &self,
        request: Request<pb::ReadFileRequest>,
    ) -> Result<Response<pb::ReadFileResponse>, Status> {
        let tenant = chassis::caller(&request)?.tenant;
        let request = request.into_inner();
        let path = path(request.path)?;
        let offset = u64::try_from(request.offset).map_err(|_| invalid("offset", "is negative"))?;
        let limit = match request.limit {
            0 => LARGEST_PIECE as usize,
            limit @ 1..=LARGEST_PIECE => limit as usize,
            _ => return Err(invalid("limit", "is not between 0 and 1048576").into()),
        };
        let read = move |workspace: Workspace| workspace.read(&path, offset, limit);
        let piece = self.within(tenant, &request.workspace_id, read).await?;
        let size_bytes = int64(piece.size_bytes);
        Ok(Response::new(pb::ReadFileResponse { data: piece.data, size_bytes }))
    }
}

impl Files {
    /// Looks into one of the tenant's workspaces, where waiting for a disk harms nobody.
    async fn within<T: Send + 'static>(
        &self,
        tenant: Tenant,
        workspace_id: &str,
        look: impl FnOnce(Workspace) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let id: WorkspaceId = parse("workspace_id", workspace_id)?;
        let root = self.workspaces.clone();
        let looking =
            tokio::task::spawn_blocking(move || Workspace::find(&root, &tenant, id).and_then(look));
        looking.await.map_err(|error| Error::Files(error.into()))?
    }
}

fn path(path: String) -> Result<String> {
    if path.len() > LONGEST_PATH {
        return Err(invalid("path", "is longer than 4096 bytes"));
    }
    if path.contains('\0') {
        return Err(invalid("path", "has a NUL"));
    }
    Ok(path)
}

/// A path without what does not matter in it.
fn plain(path: &str) -> String {
    let parts: Vec<_> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    parts.join("/")
}

fn encode(path: String, metadata: &Metadata) -> pb::File {
    let kind = metadata.file_type();
    let is_file = kind.is_file();
    pb::File {
        path,
        kind: if is_file {
            Kind::File
        } else if kind.is_dir() {
            Kind::Directory
        } else if kind.is_symlink() {
            Kind::Symlink
        } else {
            Kind::Other
        }
        .into(),
        size_bytes: if is_file { int64(metadata.len()) } else { 0 },
        modify_time: Some(pbjson_types::Timestamp {
            seconds: metadata.mtime(),
            nanos: metadata.mtime_nsec() as i32,
        }),
        executable: is_file && metadata.permissions().mode() & 0o111 != 0,
    }
}
