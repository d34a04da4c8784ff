//! Files that go out in pieces, while what they are made of is read.

use std::time::{Duration, Instant};

use chassis::Tenant;
use futures::{Stream, TryStreamExt as _};
use sqlx::PgConnection;
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};
use tonic::Status;

use super::Api;
use crate::{
    error::{Error, Result},
    ids::SessionId,
    store::events,
};

/// How much goes out in one piece.
const CHUNK: usize = 1024 * 1024;

/// A transaction that waits for the reader says so to Postgres this often, which ends those that
/// forget about it.
const AWAKE: Duration = Duration::from_millis(300);

/// How long a reader may take for all of it.
const LONGEST: Duration = Duration::from_secs(600);

impl Api {
    /// Has something written, and gives it to the reader piece by piece, as fast as that reads.
    pub(super) fn send<Writing>(
        &self,
        tenant: Tenant,
        id: SessionId,
        write: impl FnOnce(Outgoing) -> Writing + Send + 'static,
    ) -> impl Stream<Item = Result<Vec<u8>, Status>> + Send + 'static
    where
        Writing: Future<Output = Result<()>> + Send,
    {
        let patience = self.host.config.reader_patience;
        let (chunks, receiver) = mpsc::channel(1);
        let (end, last_words) = oneshot::channel();
        let (rooms, stop) = (self.rooms.clone(), self.stop.clone());
        tokio::spawn(async move {
            let written = async {
                let _place = tokio::select! {
                    place = rooms.exports.take(&tenant) => place.map_err(|_| Error::Stopping)?,
                    // Nobody reads any more.
                    () = chunks.closed() => return Ok(()),
                };
                let awake = Instant::now();
                let out = Outgoing { chunks, buffer: Vec::new(), patience, id, awake };
                let written = timeout(LONGEST, write(out)).await;
                written.unwrap_or(Err(Error::ReaderTooSlow { id, last: 0 }))
            };
            let written = stop.run_until_cancelled(written).await;
            if let Err(error) = written.unwrap_or(Err(Error::Stopping)) {
                drop(end.send(error));
            }
        });
        stream(receiver, last_words).map_err(Status::from)
    }
}

fn stream(
    mut chunks: mpsc::Receiver<Vec<u8>>,
    last_words: oneshot::Receiver<Error>,
) -> impl Stream<Item = Result<Vec<u8>>> + Send {
    async_stream::try_stream! {
        while let Some(data) = chunks.recv().await {
            yield data;
        }
        if let Ok(error) = last_words.await {
            Err(error)?;
        }
    }
}

/// Where lines go.
pub struct Outgoing {
    chunks: mpsc::Sender<Vec<u8>>,
    buffer: Vec<u8>,
    patience: Duration,
    id: SessionId,
    /// When Postgres last heard of the transaction.
    awake: Instant,
}

impl Outgoing {
    /// Adds a line, and sends what is complete. `db` is the transaction that waits meanwhile.
    pub async fn add(&mut self, db: Option<&mut PgConnection>, line: Vec<u8>) -> Result<()> {
        let mut db = db;
        // What is made of one page may take a busy machine longer than Postgres waits.
        if let Some(db) = db.as_deref_mut()
            && self.awake.elapsed() > AWAKE
        {
            events::keep_awake(db).await?;
            self.awake = Instant::now();
        }
        if !self.buffer.is_empty() && self.buffer.len() + line.len() >= CHUNK {
            self.flush(db.as_deref_mut()).await?;
        }
        self.buffer.extend(line);
        match self.buffer.len() < CHUNK {
            true => Ok(()),
            false => self.flush(db).await,
        }
    }

    pub async fn flush(&mut self, mut db: Option<&mut PgConnection>) -> Result<()> {
        let buffer = std::mem::take(&mut self.buffer);
        for chunk in buffer.chunks(CHUNK) {
            self.send(db.as_deref_mut(), chunk.to_vec()).await?;
        }
        Ok(())
    }

    /// Waits for the reader, but not for ever, and keeps the transaction while it does.
    async fn send(&mut self, mut db: Option<&mut PgConnection>, chunk: Vec<u8>) -> Result<()> {
        let started = Instant::now();
        let gone = || Error::ReaderTooSlow { id: self.id, last: 0 };
        loop {
            match timeout(AWAKE, self.chunks.reserve()).await {
                Ok(place) => {
                    place.map_err(|_| gone())?.send(chunk);
                    return Ok(());
                }
                Err(_) if started.elapsed() > self.patience => return Err(gone()),
                Err(_) => {
                    if let Some(db) = db.as_deref_mut() {
                        events::keep_awake(db).await?;
                    }
                }
            }
        }
    }
}
