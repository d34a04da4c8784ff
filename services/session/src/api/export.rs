//! A session as JSON lines, out.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use chassis::Tenant;
use futures::{Stream, StreamExt as _, TryStreamExt as _, stream::BoxStream};
use jiff::Timestamp;
use proto::session::v1 as pb;
use sqlx::{PgConnection, PgPool};
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};
use tonic::Status;

use super::{Api, snapshot};
use crate::{
    archive::{Line, MessageLine, PartLine, SessionLine, TurnLine, VERSION},
    error::{Error, Result},
    ids::SessionId,
    keeper::SEALED,
    store::{
        events::{self, PAGE_BYTES},
        messages::{self, Stored, Window},
        seals,
        sessions::{self, Session},
        turns,
    },
};

/// How much goes out in one piece.
const CHUNK: usize = 1024 * 1024;

/// How many messages one read takes.
const PAGE: i64 = 200;

/// A transaction that waits for the reader says so to Postgres this often, which ends those that
/// forget about it.
const AWAKE: Duration = Duration::from_millis(300);

/// How many exports of this process hold a connection.
pub const AT_ONCE: usize = 4;

impl Api {
    pub(super) async fn export(
        &self,
        tenant: Tenant,
        id: SessionId,
        request: pb::ExportSessionRequest,
    ) -> Result<BoxStream<'static, Result<pb::ExportSessionResponse, Status>>> {
        sessions::get(&self.host.db, &tenant, id).await?;
        let patience = Duration::from_secs_f64(self.host.config.reader_patience);
        let (chunks, receiver) = mpsc::channel(1);
        let (end, last_words) = oneshot::channel();
        let (db, places, stop) = (self.host.db.clone(), self.exports.clone(), self.stop.clone());
        tokio::spawn(async move {
            let Ok(_place) = places.acquire_owned().await else { return };
            let mut out = Out { chunks, buffer: Vec::new(), patience, id };
            let written = stop.run_until_cancelled(write(&db, &tenant, id, &request, &mut out));
            match written.await {
                Some(Ok(())) => {}
                Some(Err(error)) => drop(end.send(error)),
                None => drop(end.send(Error::Stopping)),
            }
        });
        Ok(stream(receiver, last_words).map_err(Status::from).boxed())
    }
}

fn stream(
    mut chunks: mpsc::Receiver<Vec<u8>>,
    last_words: oneshot::Receiver<Error>,
) -> impl Stream<Item = Result<pb::ExportSessionResponse>> + Send {
    async_stream::try_stream! {
        while let Some(data) = chunks.recv().await {
            yield pb::ExportSessionResponse { data };
        }
        if let Ok(error) = last_words.await {
            Err(error)?;
        }
    }
}

/// Writes everything as it is at one moment, a piece at a time.
async fn write(
    db: &PgPool,
    tenant: &Tenant,
    id: SessionId,
    request: &pb::ExportSessionRequest,
    out: &mut Out,
) -> Result<()> {
    let mut db = snapshot::one_state(db).await?;
    let session = sessions::get(&mut *db, tenant, id).await?;
    let last = session.last_sequence;
    let first = seals::first_sequence(&mut *db, id).await?;
    let session = session_line(session, first);
    out.line(&mut db, &Line::Session { version: VERSION, session }).await?;

    let hidden = request.include_hidden;
    let mut after = i64::MIN;
    loop {
        let window = Window::After(after, PAGE);
        let (page, more) = messages::page(&mut db, id, window, hidden, PAGE_BYTES).await?;
        after = page.last().and_then(|message| message.position).unwrap_or(after);
        out.messages(&mut db, id, page).await?;
        if !more {
            break;
        }
    }
    let (queued, _) = messages::page(&mut db, id, Window::Queued, hidden, i64::MAX).await?;
    out.messages(&mut db, id, queued).await?;
    if request.events {
        out.log(&mut db, id, last).await?;
    }
    out.flush(&mut db).await?;
    db.commit().await?;
    Ok(())
}

/// Where lines go.
struct Out {
    chunks: mpsc::Sender<Vec<u8>>,
    buffer: Vec<u8>,
    patience: Duration,
    id: SessionId,
}

impl Out {
    async fn messages(
        &mut self,
        db: &mut PgConnection,
        id: SessionId,
        messages: Vec<Stored>,
    ) -> Result<()> {
        let ids: Vec<_> = messages.iter().map(|message| message.turn_id).collect();
        let mut turns = turns::of(&mut *db, id, &ids).await?;
        for message in messages {
            let turn = turns.iter().position(|turn| turn.message_id == message.id);
            let turn = turn.map(|index| turns.swap_remove(index));
            let message = message_line(message, turn)?;
            self.line(db, &Line::Message { message: message.into() }).await?;
        }
        Ok(())
    }

    /// The events, and each seal behind those it covers.
    async fn log(&mut self, db: &mut PgConnection, id: SessionId, last: i64) -> Result<()> {
        let (mut after, mut number) = (0, 0);
        loop {
            let page = seals::after(&mut *db, id, number, 1).await?;
            let Some(seal) = page.into_iter().next() else { break };
            number = seal.number;
            self.events(db, id, after, seal.through_sequence).await?;
            after = seal.through_sequence;
            self.line(db, &Line::Seal { seal }).await?;
        }
        self.events(db, id, after, last).await
    }

    async fn events(
        &mut self,
        db: &mut PgConnection,
        id: SessionId,
        mut after: i64,
        through: i64,
    ) -> Result<()> {
        loop {
            let rows = events::rows(&mut *db, id, after, through, SEALED, PAGE_BYTES).await?;
            let Some(last) = rows.last() else { return Ok(()) };
            after = last.seq;
            for row in rows {
                self.line(db, &Line::Event { event: row.into_envelope()? }).await?;
            }
        }
    }

    /// Adds a line, and sends what is complete.
    async fn line(&mut self, db: &mut PgConnection, line: &Line) -> Result<()> {
        let start = self.buffer.len();
        serde_json::to_writer(&mut self.buffer, line)?;
        self.buffer.push(b'\n');
        if self.buffer.len() < CHUNK {
            return Ok(());
        }
        let rest = match start {
            0 => vec![],
            start => self.buffer.split_off(start),
        };
        self.flush(db).await?;
        self.buffer = rest;
        match self.buffer.len() < CHUNK {
            true => Ok(()),
            false => self.flush(db).await,
        }
    }

    async fn flush(&mut self, db: &mut PgConnection) -> Result<()> {
        let buffer = std::mem::take(&mut self.buffer);
        for chunk in buffer.chunks(CHUNK) {
            self.send(db, chunk.to_vec()).await?;
        }
        Ok(())
    }

    /// Waits for the reader, but not for ever, and keeps the transaction while it does.
    async fn send(&mut self, db: &mut PgConnection, chunk: Vec<u8>) -> Result<()> {
        let started = Instant::now();
        let gone = || Error::ReaderTooSlow { id: self.id, last: 0 };
        loop {
            match timeout(AWAKE, self.chunks.reserve()).await {
                Ok(place) => {
                    place.map_err(|_| gone())?.send(chunk);
                    return Ok(());
                }
                Err(_) if started.elapsed() > self.patience => return Err(gone()),
                Err(_) => events::keep_awake(&mut *db).await?,
            }
        }
    }
}

fn session_line(session: Session, first_sequence: i64) -> SessionLine {
    SessionLine {
        session_id: session.id,
        title: session.title,
        agent: session.agent,
        subject: session.subject,
        status: session.status,
        created_at: session.created_at.to_jiff(),
        updated_at: session.updated_at.to_jiff(),
        metadata: session.metadata.0,
        input_tokens: session.input_tokens,
        output_tokens: session.output_tokens,
        cost_micros: session.cost_micros,
        model_calls: session.model_calls,
        first_sequence,
        last_sequence: session.last_sequence,
    }
}

fn message_line(message: Stored, turn: Option<turns::Recorded>) -> Result<MessageLine> {
    let parts = message.parts().iter().map(|row| {
        Ok(PartLine {
            part_id: row.id,
            index: row.index,
            r#type: row.r#type.clone(),
            data: row.part()?.data(),
        })
    });
    Ok(MessageLine {
        message_id: message.id,
        turn_id: message.turn_id,
        role: message.role.0,
        status: message.status.clone(),
        synthetic: message.synthetic,
        created_at: message.created_at.to_jiff(),
        hidden_at: message.hidden_at.map(|at| -> Timestamp { at.to_jiff() }),
        metadata: message.metadata.0.clone(),
        parts: parts.collect::<Result<_>>()?,
        turn: turn.map(|turn| TurnLine {
            turn_id: turn.id,
            status: turn.status,
            subject: turn.subject,
            submitted_at: turn.submitted_at.to_jiff(),
            view: turn.view.0,
        }),
    })
}

/// The places that exports of this process share.
pub fn places() -> Arc<tokio::sync::Semaphore> {
    Arc::new(tokio::sync::Semaphore::new(AT_ONCE))
}
