//! Following a process.

use std::{sync::Arc, time::Duration};

use chassis::Tenant;
use futures::StreamExt as _;
use proto::tools::v1::{
    self as pb,
    attach_process_response::{Item, Output},
};
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, codegen::BoxStream};

use super::{Api, invalid};
use crate::{
    call::{OutputRef, ProcessId},
    error::{Error, Result},
    facts::int64,
    processes::{Journal, Running, stream_name, stretch_at},
    store::processes::{Row, Stream},
};

/// How long a reader may take nothing.
const PATIENCE: Duration = Duration::from_secs(30);

/// How many pieces wait for a slow reader.
const BACKLOG: usize = 4;

const PIECE: u64 = 64 * 1024;

/// The way to a reader.
struct Reader {
    id: ProcessId,
    sender: mpsc::Sender<Result<pb::AttachProcessResponse, Status>>,
}

/// Streams what a process prints from an offset on.
pub async fn attach(
    api: Api,
    tenant: Tenant,
    id: ProcessId,
    offset: u64,
) -> Result<BoxStream<pb::AttachProcessResponse>> {
    let (sender, answers) = mpsc::channel(BACKLOG);
    let reader = Reader { id, sender };
    match api.processes.find(&tenant, id) {
        Some(running) => {
            check(offset, running.journal.state().total)?;
            let place = running.reader()?;
            tokio::spawn(async move {
                let followed = tokio::select! {
                    followed = follow(&running, &reader, offset) => followed,
                    () = api.stop.cancelled() => Err(chassis::stopping()),
                    () = reader.sender.closed() => Ok(()),
                };
                reader.end(followed).await;
                drop(place);
            });
        }
        None => {
            let row = api.processes.get(&tenant, id).await?;
            if row.is_running() {
                return Err(Error::Elsewhere(id));
            }
            check(offset, row.output_bytes.try_into().unwrap_or_default())?;
            if let Ok(output_ref) = row.output_ref.parse::<OutputRef>() {
                // Refuses at once what would be refused in the middle.
                api.outputs.read(&tenant, output_ref, 0, 1).await?;
            }
            tokio::spawn(async move {
                let replayed = replay(&api, &tenant, &reader, row, offset).await;
                reader.end(replayed).await;
            });
        }
    }
    Ok(ReceiverStream::new(answers).boxed())
}

fn check(offset: u64, total: u64) -> Result<()> {
    match offset <= total {
        true => Ok(()),
        false => Err(invalid("offset", format!("is behind the {total} bytes that were printed"))),
    }
}

/// What a process that runs here has printed, and prints, until it ends.
async fn follow(running: &Arc<Running>, reader: &Reader, mut offset: u64) -> Result<(), Status> {
    let journal: &Journal = &running.journal;
    let mut changes = journal.watch();
    loop {
        let state = changes.borrow_and_update().clone();
        while offset < state.kept {
            let (stream, data) = journal.read(offset).await.map_err(Error::from)?;
            let length = data.len() as u64;
            reader.output(stream, offset, data).await?;
            offset += length;
        }
        if let Some(ended) = state.over {
            return reader.send(Item::Ended((*ended).clone())).await;
        }
        if changes.changed().await.is_err() {
            return Err(Error::Elsewhere(reader.id).into());
        }
    }
}

/// What is kept of a process that is over.
async fn replay(
    api: &Api,
    tenant: &Tenant,
    reader: &Reader,
    row: Row,
    mut offset: u64,
) -> Result<(), Status> {
    let kept = u64::try_from(row.kept_bytes).unwrap_or_default();
    if let Ok(output_ref) = row.output_ref.parse::<OutputRef>() {
        while offset < kept {
            let (stream, end) = stretch_at(&row.streams.0, offset);
            let length = (end - offset).min(PIECE);
            let (data, _) = api.outputs.read(tenant, output_ref, offset, length).await?;
            if data.is_empty() {
                break;
            }
            let length = data.len() as u64;
            reader.output(stream, offset, data).await?;
            offset += length;
        }
    }
    reader.send(Item::Ended(row.into())).await
}

impl Reader {
    async fn output(&self, stream: Stream, offset: u64, data: Vec<u8>) -> Result<(), Status> {
        let stream = stream_name(stream).to_owned();
        self.send(Item::Output(Output { offset: int64(offset), data, stream })).await
    }

    async fn send(&self, item: Item) -> Result<(), Status> {
        let answer = Ok(pb::AttachProcessResponse { item: Some(item) });
        match timeout(PATIENCE, self.sender.send(answer)).await {
            // One that hung up is noticed by whoever waits for that.
            Ok(_) => Ok(()),
            Err(_) => Err(Error::ReaderTooSlow(self.id).into()),
        }
    }

    async fn end(&self, result: Result<(), Status>) {
        if let Err(status) = result {
            let _ = timeout(PATIENCE, self.sender.send(Err(status))).await;
        }
    }
}
