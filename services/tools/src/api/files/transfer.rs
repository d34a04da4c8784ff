//! Files in pieces: none of them is ever in memory as a whole.

use std::fs::File;

use chassis::Tenant;
use futures::{Stream, stream::try_unfold};
use proto::tools::v1 as pb;
use tonic::{Status, Streaming};

use super::{Disk, Files, encode, invalid, path, piece, plain, wanted};
use crate::{
    api::pieces::Pieces,
    error::Result,
    files::{Draft, Parents, Workspace, read_at},
};

/// As large as a file that a command may write.
const LARGEST_UPLOAD: u64 = 2 * 1024 * 1024 * 1024;

const PIECE: usize = 256 * 1024;

/// Receives a file, which appears when all of it is there.
pub async fn upload(
    files: &Files,
    tenant: Tenant,
    pieces: Streaming<pb::UploadFileRequest>,
) -> Result<pb::File, Status> {
    let _place = files.workspaces.upload(&tenant)?;
    let mut pieces = Pieces::new(pieces);
    let Some(first) = pieces.next().await? else {
        return Err(invalid("path", "is missing").into());
    };
    let path = path(first.path)?;
    let place = path.clone();
    let open = move |workspace: &Workspace, _: &_| {
        Draft::new(workspace.place_of_file(&place, Parents::Create)?)
    };
    let disk = files.disk(tenant.clone());
    let mut draft = files.within(tenant, &first.workspace_id, open).await?;
    draft = append(&disk, draft, first.data).await?;
    while let Some(more) = pieces.next().await? {
        if !more.path.is_empty() || !more.workspace_id.is_empty() {
            let field = if more.path.is_empty() { "workspace_id" } else { "path" };
            return Err(invalid(field, "belongs into the first message only").into());
        }
        draft = append(&disk, draft, more.data).await?;
    }
    // To tonic a call that was dropped is a stream that ended. The server drops us, too, but only
    // once we wait for something: so we do, before anything is published.
    tokio::task::yield_now().await;
    let publish = move |stop: &_| {
        wanted(stop)?;
        draft.publish()
    };
    let published = disk.run(publish).await?;
    Ok(encode(plain(&path), &published.metadata))
}

async fn append(disk: &Disk, mut draft: Draft, data: Vec<u8>) -> Result<Draft> {
    let data = piece(data)?;
    if draft.size_bytes() + data.len() as u64 > LARGEST_UPLOAD {
        return Err(invalid("data", "is more than 2 GiB in all"));
    }
    let write = move |_: &_| {
        draft.write(&data)?;
        Ok(draft)
    };
    disk.run(write).await
}

/// Sends a file as large as it is now. One that becomes shorter meanwhile ends earlier.
pub async fn download(
    files: &Files,
    tenant: Tenant,
    request: pb::DownloadFileRequest,
) -> Result<impl Stream<Item = Result<pb::DownloadFileResponse, Status>> + use<>> {
    let path = path(request.path)?;
    let offset = u64::try_from(request.offset).map_err(|_| invalid("offset", "is negative"))?;
    let open = move |workspace: &Workspace, _: &_| workspace.open_file(&path);
    let disk = files.disk(tenant.clone());
    let (file, metadata) = files.within(tenant, &request.workspace_id, open).await?;
    Ok(try_unfold((disk, file, offset, metadata.len()), read))
}

type Position = (Disk, File, u64, u64);

async fn read(
    (disk, file, offset, end): Position,
) -> Result<Option<(pb::DownloadFileResponse, Position)>, Status> {
    let size = end.saturating_sub(offset).min(PIECE as u64) as usize;
    let read = move |_: &_| Ok((read_at(&file, offset, size)?, file));
    let (data, file) = disk.run(read).await?;
    if data.is_empty() {
        return Ok(None);
    }
    let next = offset + data.len() as u64;
    Ok(Some((pb::DownloadFileResponse { data }, (disk, file, next, end))))
}
