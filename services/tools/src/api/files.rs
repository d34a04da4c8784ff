mod transfer;

use std::{
    fs::Metadata,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    sync::Arc,
    time::Duration,
};

use chassis::{Places, Tenant};
use data_encoding::BASE64URL_NOPAD;
use proto::tools::v1::{self as pb, file::Kind, file_service_server::FileService};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming, codegen::BoxStream};

use super::{invalid, parse};
use crate::{
    blocking,
    call::WorkspaceId,
    error::{Error, Result},
    facts::int64,
    files::{Draft, Parents, Workspace},
    workspaces::Workspaces,
};

/// Limits that the contract promises.
const LONGEST_PATH: usize = 4_096;
const LARGEST_PAGE: i32 = 1_000;
const USUAL_PAGE: i32 = 200;
const LARGEST_PIECE: i32 = 1024 * 1024;

/// How long the disk may take for one request.
const PATIENCE: Duration = Duration::from_secs(60);

/// How many requests may wait for the disk at once, each in a thread of its own, and how many of one
/// tenant: what is asked for may be a walk over a million files.
const THREADS: usize = 64;
const THREADS_OF_A_TENANT: usize = 16;

pub struct Files {
    workspaces: Arc<Workspaces>,
    threads: Arc<Places>,
}

/// Where a tenant's requests wait for the disk, which harms nobody.
struct Disk {
    tenant: Tenant,
    threads: Arc<Places>,
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
        let list = move |workspace: &Workspace, _: &_| workspace.list(&listed, &after, limit + 1);
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
        let stat = move |workspace: &Workspace, _: &_| workspace.stat(&wanted);
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
        let read = move |workspace: &Workspace, _: &_| workspace.read(&path, offset, limit);
        let piece = self.within(tenant, &request.workspace_id, read).await?;
        let size_bytes = int64(piece.size_bytes);
        Ok(Response::new(pb::ReadFileResponse { data: piece.data, size_bytes }))
    }

    async fn write_file(
        &self,
        request: Request<pb::WriteFileRequest>,
    ) -> Result<Response<pb::WriteFileResponse>, Status> {
        let tenant = chassis::caller(&request)?.tenant;
        let request = request.into_inner();
        let path = path(request.path)?;
        let data = piece(request.data)?;
        let written = path.clone();
        let write = move |workspace: &Workspace, stop: &CancellationToken| {
            let mut draft = Draft::new(workspace.place_of_file(&written, Parents::Create)?)?;
            draft.write(&data)?;
            wanted(stop)?;
            draft.publish()
        };
        let published = self.within(tenant, &request.workspace_id, write).await?;
        let file = Some(encode(plain(&path), &published.metadata));
        Ok(Response::new(pb::WriteFileResponse { file }))
    }

    async fn move_file(
        &self,
        request: Request<pb::MoveFileRequest>,
    ) -> Result<Response<pb::MoveFileResponse>, Status> {
        let tenant = chassis::caller(&request)?.tenant;
        let request = request.into_inner();
        let old_path = path(request.path)?;
        let new_path = path(request.new_path).map_err(about_new_path)?;
        let moved_path = new_path.clone();
        let rename = move |workspace: &Workspace, stop: &CancellationToken| {
            let old = workspace.place(&old_path, Parents::Expect)?;
            if old.stat()?.is_none() {
                return Err(Error::PathNotFound(old_path));
            }
            let new = workspace.place(&moved_path, Parents::Create).map_err(about_new_path)?;
            wanted(stop)?;
            old.move_to(&new)?;
            new.stat()?.ok_or(Error::PathNotFound(moved_path))
        };
        let metadata = self.within(tenant, &request.workspace_id, rename).await?;
        let file = Some(encode(plain(&new_path), &metadata));
        Ok(Response::new(pb::MoveFileResponse { file }))
    }

    async fn delete_file(
        &self,
        request: Request<pb::DeleteFileRequest>,
    ) -> Result<Response<pb::DeleteFileResponse>, Status> {
        let tenant = chassis::caller(&request)?.tenant;
        let request = request.into_inner();
        let path = path(request.path)?;
        let delete = move |workspace: &Workspace, stop: &CancellationToken| {
            match workspace.place(&path, Parents::Expect) {
                // Neither it nor the directory it was in is there.
                Err(Error::PathNotFound(_)) => Ok(()),
                place => place?.delete(stop),
            }
        };
        self.within(tenant, &request.workspace_id, delete).await?;
        Ok(Response::new(pb::DeleteFileResponse {}))
    }

    async fn upload_file(
        &self,
        request: Request<Streaming<pb::UploadFileRequest>>,
    ) -> Result<Response<pb::UploadFileResponse>, Status> {
        let tenant = chassis::caller(&request)?.tenant;
        let file = Some(transfer::upload(self, tenant, request.into_inner()).await?);
        Ok(Response::new(pb::UploadFileResponse { file }))
    }

    async fn download_file(
        &self,
        request: Request<pb::DownloadFileRequest>,
    ) -> Result<Response<BoxStream<pb::DownloadFileResponse>>, Status> {
        let tenant = chassis::caller(&request)?.tenant;
        let pieces = transfer::download(self, tenant, request.into_inner()).await?;
        Ok(Response::new(Box::pin(pieces)))
    }
}

impl Files {
    pub fn new(workspaces: Arc<Workspaces>) -> Files {
        Files { workspaces, threads: Arc::new(Places::new(THREADS, THREADS_OF_A_TENANT)) }
    }

    fn disk(&self, tenant: Tenant) -> Disk {
        Disk { tenant, threads: self.threads.clone() }
    }

    /// Does something in one of the tenant's workspaces, where waiting for a disk harms nobody.
    async fn within<T: Send + 'static>(
        &self,
        tenant: Tenant,
        workspace_id: &str,
        work: impl FnOnce(&Workspace, &CancellationToken) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let id: WorkspaceId = parse("workspace_id", workspace_id)?;
        let entered = self.workspaces.find(&tenant, id).await?;
        self.disk(tenant).run(move |stop| work(&Workspace::of(&entered)?, stop)).await
    }
}

impl Disk {
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&CancellationToken) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let place = timeout(PATIENCE, self.threads.take(&self.tenant)).await;
        let place = place.ok().and_then(Result::ok).ok_or(Error::Overloaded)?;
        // The place is taken for as long as the thread is, whoever waits for it.
        let work = move |stop: &_| {
            let _place = place;
            work(stop)
        };
        let done = blocking::work(PATIENCE, work).await;
        done.unwrap_or_else(|blocking::TimedOut| Err(std::io::Error::other("disk too slow").into()))
    }
}

/// A change that nobody waits for any more must not happen.
fn wanted(stop: &CancellationToken) -> Result<()> {
    match stop.is_cancelled() {
        true => Err(std::io::Error::from(std::io::ErrorKind::Interrupted).into()),
        false => Ok(()),
    }
}

fn about_new_path(error: Error) -> Error {
    match error {
        Error::Invalid { field: "path", problem } => Error::Invalid { field: "new_path", problem },
        error => error,
    }
}

fn piece(data: Vec<u8>) -> Result<Vec<u8>> {
    match data.len() <= LARGEST_PIECE as usize {
        true => Ok(data),
        false => Err(invalid("data", "is larger than 1 MiB")),
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
