//! Packs, out; and turns, again.

mod pack;
mod log;
mod everything;
mod requests;
mod review;
mod replay;
mod again;

use std::time::Duration;

use chassis::Caller;
use futures::{StreamExt as _, TryStreamExt as _, stream::BoxStream};
use proto::session::v1::{
    self as pb, evidence_scope::Scope as Asked, evidence_service_server::EvidenceService,
};
use tokio::time::sleep;
use tonic::{Request, Response, Status};

use super::{Api, check};
use crate::{
    error::{Error, Result, parse},
    evidence::{Kind, Scope},
    host::Host,
    ids::{SessionId, TurnId},
    keeper,
    store::{
        evidence::{self as store, Selection},
        seals, sessions,
    },
};
use pack::Pack;

/// How many sessions a task may have left events in.
const MOST_LOGS: i64 = 1000;

/// How often somebody else who seals the same log is waited for, and how long.
const SEAL_TRIES: u32 = 40;
const SEAL_REST: Duration = Duration::from_millis(50);

/// What a pack is about, found.
#[derive(Debug, Clone)]
struct Subject {
    scope: Scope,
    selections: Vec<Selection>,
}

impl Subject {
    /// The log that says that there is a pack, and the turn that it is about.
    fn home(&self) -> Option<(SessionId, Option<TurnId>)> {
        let first = self.selections.first()?;
        let turn = first.turns.first().filter(|_| self.scope.kind == "turn");
        Some((first.session_id, turn.copied()))
    }
}

#[tonic::async_trait]
impl EvidenceService for Api {
    async fn export_evidence(
        &self,
        request: Request<pb::ExportEvidenceRequest>,
    ) -> Result<Response<BoxStream<'static, Result<pb::ExportEvidenceResponse, Status>>>, Status>
    {
        let caller = chassis::caller(&request)?;
        let pieces = self.export_pack(Kind::Evidence, caller, request.into_inner().scope).await?;
        Ok(Response::new(pieces.map_ok(|data| pb::ExportEvidenceResponse { data }).boxed()))
    }

    async fn export_replay(
        &self,
        request: Request<pb::ExportReplayRequest>,
    ) -> Result<Response<BoxStream<'static, Result<pb::ExportReplayResponse, Status>>>, Status>
    {
        let caller = chassis::caller(&request)?;
        let pieces = self.export_pack(Kind::Replay, caller, request.into_inner().scope).await?;
        Ok(Response::new(pieces.map_ok(|data| pb::ExportReplayResponse { data }).boxed()))
    }

    async fn export_review(
        &self,
        request: Request<pb::ExportReviewRequest>,
    ) -> Result<Response<BoxStream<'static, Result<pb::ExportReviewResponse, Status>>>, Status>
    {
        let caller = chassis::caller(&request)?;
        let pieces = self.export_pack(Kind::Review, caller, request.into_inner().scope).await?;
        Ok(Response::new(pieces.map_ok(|data| pb::ExportReviewResponse { data }).boxed()))
    }

    async fn replay_turn(
        &self,
        request: Request<pb::ReplayTurnRequest>,
    ) -> Result<Response<pb::ReplayTurnResponse>, Status> {
        let caller = chassis::caller(&request)?;
        Ok(Response::new(self.again(caller, request.into_inner()).await?))
    }
}

impl Api {
    async fn export_pack(
        &self,
        kind: Kind,
        caller: Caller,
        scope: Option<pb::EvidenceScope>,
    ) -> Result<BoxStream<'static, Result<Vec<u8>, Status>>> {
        let subject = self.find(&caller, scope.and_then(|scope| scope.scope)).await?;
        let Some((home, turn)) = subject.home() else {
            return Err(Error::Corrupt("a pack is about nothing"));
        };
        let (host, tenant) = (self.host.clone(), caller.tenant.clone());
        let write = async move |out| {
            for selection in &subject.selections {
                seal(&host, selection.session_id).await?;
            }
            let mut pack = Pack::begin(&host, &caller, kind, &subject.scope, out)?;
            let signals = match kind {
                Kind::Evidence => everything::write(&host, &caller, &subject, &mut pack).await?,
                Kind::Replay => replay::write(&host, &caller, &subject, &mut pack).await?,
                Kind::Review => review::write(&host, &caller, &subject, &mut pack).await?,
            };
            pack.finish(&host, &caller, signals, home, turn).await
        };
        Ok(self.send(tenant, home, write).boxed())
    }

    /// Finds what somebody wants evidence of.
    async fn find(&self, caller: &Caller, scope: Option<Asked>) -> Result<Subject> {
        let (db, tenant) = (&self.host.db, &caller.tenant);
        let of_session = |session_id, whole, turns| Selection {
            session_id,
            whole,
            turns,
            task_id: String::new(),
        };
        let (kind, id, selections) = match scope {
            None => {
                let problem = "name a session, a turn or a task";
                return Err(check::invalid("scope", problem));
            }
            Some(Asked::SessionId(text)) => {
                let id = parse("scope.session_id", &text)?;
                let found = match sessions::get(db, tenant, id).await {
                    Ok(session) => vec![of_session(session.id, true, vec![])],
                    Err(Error::SessionNotFound(_)) => vec![],
                    Err(error) => return Err(error),
                };
                ("session", text, found)
            }
            Some(Asked::TurnId(text)) => {
                let id = parse("scope.turn_id", &text)?;
                let found = store::session_of(db, tenant, id).await?;
                let found = found.map(|session_id| of_session(session_id, false, vec![id]));
                ("turn", text, found.into_iter().collect())
            }
            Some(Asked::TaskId(text)) => {
                let found = store::of_task(db, tenant, &text, MOST_LOGS).await?;
                ("task", text, found)
            }
        };
        match selections.is_empty() {
            true => Err(Error::EvidenceNotFound { scope: kind, id }),
            false => Ok(Subject { scope: Scope { kind: kind.to_owned(), id }, selections }),
        }
    }
}

/// Seals what can be sealed: turns that have ended, whoever else is at it.
async fn seal(host: &Host, id: SessionId) -> Result<()> {
    for _ in 0..SEAL_TRIES {
        keeper::seal_session(&host.db, id).await?;
        if seals::head(&host.db, id).await?.end.is_none() {
            return Ok(());
        }
        sleep(SEAL_REST).await;
    }
    Ok(())
}
