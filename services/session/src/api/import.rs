//! A session as JSON lines, in.

use std::time::Duration;

use chassis::Caller;
use futures::{Stream, TryStreamExt as _};
use proto::{
    event::v1::{HistoryReconstructed, Payload, SessionCreated},
    session::v1 as pb,
};
use sha2::{Digest as _, Sha256};
use tokio::time::timeout;
use tonic::Status;
use tracing::warn;

use super::{Api, check, sessions::payload, stamp};
use crate::{
    archive::{Import, MAX_BYTES, MAX_LINE, MessageRow, SessionLine, Step, TurnRow},
    error::Error,
    ids::{SessionId, WorkspaceId},
    seal::hex,
    store::imports::{self, Finished},
    time,
};

/// How much is stored in one statement.
const BATCH_BYTES: usize = 1024 * 1024;
const BATCH_MESSAGES: usize = 500;

/// How long the caller may be silent, and how long an import may take in all.
const SILENCE: Duration = Duration::from_secs(30);
const WHOLE: Duration = Duration::from_secs(3600);

impl Api {
    /// Stores an import under a session that nobody can see until all of it is there.
    pub(super) async fn import(
        &self,
        caller: &Caller,
        requests: impl Stream<Item = Result<pb::ImportSessionRequest, Status>> + Send,
    ) -> Result<SessionId, Status> {
        let place = self.rooms.imports.try_take(&caller.tenant);
        let _place = place.ok_or(Error::Overloaded)?;
        let (id, workspace_id) = (SessionId::new(), WorkspaceId::new());
        let mut incoming = Incoming {
            api: self,
            caller,
            id,
            workspace_id,
            request_id: String::new(),
            import: Import::new(time::now()),
            session: None,
            hash: Sha256::new(),
            bytes: 0,
            line: Vec::new(),
            lines: 0,
            messages: vec![],
            turns: vec![],
            batch_bytes: 0,
        };
        let taken = timeout(WHOLE, incoming.take(requests)).await;
        let taken = taken.unwrap_or_else(|_| Err(incoming.invalid("it takes too long").into()));
        let result = match taken {
            Ok(()) => incoming.finish().await,
            Err(status) => Err(status),
        };
        if result.is_err()
            && let Err(error) = imports::drop(&self.host.db, &caller.tenant, id).await
        {
            warn!(%error, "cannot give an import up, it will be found");
        }
        result
    }
}

/// An import on its way in.
struct Incoming<'a> {
    api: &'a Api,
    caller: &'a Caller,
    id: SessionId,
    workspace_id: WorkspaceId,
    request_id: String,
    import: Import,
    session: Option<Box<SessionLine>>,
    /// Of everything, so that a repeated call is known from another one with the same id.
    hash: Sha256,
    bytes: usize,
    /// The line that has begun, and how many were before it.
    line: Vec<u8>,
    lines: usize,
    messages: Vec<MessageRow>,
    turns: Vec<TurnRow>,
    batch_bytes: usize,
}

impl Incoming<'_> {
    async fn take(
        &mut self,
        requests: impl Stream<Item = Result<pb::ImportSessionRequest, Status>>,
    ) -> Result<(), Status> {
        let mut requests = std::pin::pin!(requests);
        let mut first = true;
        loop {
            let next = timeout(SILENCE, requests.try_next()).await;
            let next = next.map_err(|_| self.invalid("nothing came for 30 seconds"))?;
            let Some(request) = next? else { break };
            if first {
                self.request_id = check::request_id(&request.request_id)?.to_owned();
                first = false;
            } else if !request.request_id.is_empty() && request.request_id != self.request_id {
                return Err(check::invalid("request_id", "in the first message only").into());
            }
            if request.data.len() > BATCH_BYTES {
                return Err(check::invalid("data", "at most 1 MiB").into());
            }
            self.chunk(&request.data).await?;
        }
        if first {
            check::request_id("")?;
        }
        // The last line may end with the stream.
        self.end_of_line().await?;
        if self.session.is_none() {
            return Err(self.invalid("there is no session line").into());
        }
        Ok(self.store().await?)
    }

    async fn chunk(&mut self, data: &[u8]) -> Result<(), Error> {
        self.bytes += data.len();
        self.hash.update(data);
        if self.bytes > MAX_BYTES {
            return Err(self.invalid("more than 1 GiB"));
        }
        let mut pieces = data.split(|byte| *byte == b'\n').peekable();
        while let Some(piece) = pieces.next() {
            if self.line.len() + piece.len() > MAX_LINE {
                return Err(self.invalid("the line is longer than 16 MiB"));
            }
            self.line.extend_from_slice(piece);
            if pieces.peek().is_some() {
                self.end_of_line().await?;
            }
        }
        Ok(())
    }

    async fn end_of_line(&mut self) -> Result<(), Error> {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            return Ok(());
        }
        let step = self.import.line(&line).map_err(|problem| self.invalid(&problem))?;
        self.lines += 1;
        match step {
            Step::Begin(session) => {
                let (db, tenant) = (&self.api.host.db, &self.caller.tenant);
                let subject = &self.caller.subject;
                imports::begin(db, tenant, subject, self.id, self.workspace_id, &session).await?;
                self.session = Some(session);
            }
            Step::Store(message, turn) => {
                self.messages.push(*message);
                self.turns.extend(turn.map(|turn| *turn));
                self.batch_bytes += line.len();
                if self.batch_bytes >= BATCH_BYTES || self.messages.len() >= BATCH_MESSAGES {
                    self.store().await?;
                }
            }
            Step::Checked => {}
        }
        Ok(())
    }

    async fn store(&mut self) -> Result<(), Error> {
        if !self.messages.is_empty() {
            imports::add(&self.api.host.db, self.id, &self.messages, &self.turns).await?;
        }
        self.messages.clear();
        self.turns.clear();
        self.batch_bytes = 0;
        Ok(())
    }

    /// Shows the session to its tenant.
    async fn finish(self) -> Result<SessionId, Status> {
        let Some(session) = &self.session else {
            return Err(self.invalid("there is no session line").into());
        };
        let digest = hex(&self.hash.clone().finalize());
        let created = Payload::SessionCreated(SessionCreated {
            title: session.title.clone(),
            agent: session.agent.clone(),
            workspace_id: self.workspace_id.to_string(),
            ..SessionCreated::default()
        });
        let imported = Payload::HistoryReconstructed(HistoryReconstructed {
            through_sequence: session.last_sequence,
            source: "import".to_owned(),
            imported_session_id: session.session_id.to_string(),
            messages: self.import.messages() as i32,
            digest: digest.clone(),
            seals: self.import.seals(),
        });
        let finished = Finished {
            tenant: &self.caller.tenant,
            id: self.id,
            request_id: &self.request_id,
            digest: &digest,
            created: &payload(&created)?,
            imported: &payload(&imported)?,
        };
        let host = &self.api.host;
        Ok(imports::finish(&host.db, finished, &stamp(host.replica)).await?)
    }

    fn invalid(&self, problem: &str) -> Error {
        Error::ImportInvalid { line: self.lines + 1, problem: problem.to_owned() }
    }
}
