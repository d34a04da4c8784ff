use futures::stream::BoxStream;
use jiff::Timestamp;
use proto::{
    event::v1::{Payload, SessionCreated},
    session::v1::{self as pb, session_service_server::SessionService},
};
use serde_json::{Value, json};
use tonic::{Request, Response, Status, Streaming};

use super::{Api, admin, check, compaction, convert, snapshot, stamp};
use crate::{
    agent,
    error::{Error, Result, parse},
    ids::{SessionId, WorkspaceId},
    store::{
        self,
        messages::Window,
        sessions::{Cursor, Filter, NewSession},
    },
};

/// How much a page of events holds, which goes out twice, as messages and as JSON: with
/// both it stays below what clients take in one answer unless told otherwise, 4 MiB.
const EVENT_BYTES: i64 = 1024 * 1024;

#[tonic::async_trait]
impl SessionService for Api {
    async fn create_session(
        &self,
        request: Request<pb::CreateSessionRequest>,
    ) -> Result<Response<pb::CreateSessionResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        let request_id = check::request_id(&request.request_id)?;
        let title = check::text("title", &request.title, 200)?;
        let agent = check::agent_id("agent", &request.agent)?.unwrap_or(agent::DEFAULT);
        let metadata = check::metadata(&request.metadata_json)?.unwrap_or_else(|| json!({}));
        let workspace_id = match request.workspace_id.as_str() {
            "" => WorkspaceId::new(),
            text => parse("workspace_id", text)?,
        };
        self.host.agent(&caller.tenant, agent).await?;

        let created = Payload::SessionCreated(SessionCreated {
            title: title.to_owned(),
            agent: agent.to_owned(),
            workspace_id: workspace_id.to_string(),
            ..SessionCreated::default()
        });
        let new = NewSession {
            id: SessionId::new(),
            tenant: &caller.tenant,
            subject: &caller.subject,
            request_id,
            request_digest: &check::digest(&request),
            title,
            agent,
            workspace_id,
            metadata: &metadata,
            created: &payload(&created)?,
        };
        let id = store::sessions::create(&self.host.db, new, &stamp(self.host.replica)).await?;
        let session = store::sessions::get(&self.host.db, &caller.tenant, id).await?;
        Ok(Response::new(pb::CreateSessionResponse { session: Some(session.into()) }))
    }

    async fn get_session(
        &self,
        request: Request<pb::GetSessionRequest>,
    ) -> Result<Response<pb::GetSessionResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let id = parse("session_id", &request.into_inner().session_id)?;
        let session = store::sessions::get(&self.host.db, &caller.tenant, id).await?;
        Ok(Response::new(pb::GetSessionResponse { session: Some(session.into()) }))
    }

    async fn list_sessions(
        &self,
        request: Request<pb::ListSessionsRequest>,
    ) -> Result<Response<pb::ListSessionsResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        let filter = Filter {
            ephemeral: request.include_ephemeral,
            archived: request.include_archived,
            parent_id: match request.parent_session_id.as_str() {
                "" => None,
                text => Some(parse("parent_session_id", text)?),
            },
        };
        let limit = check::count("page_size", request.page_size, 50, 200)?;
        let after = match request.page_token.as_str() {
            "" => None,
            token => Some(cursor(token).ok_or(Error::InvalidCursor("page_token"))?),
        };
        let mut sessions =
            store::sessions::list(&self.host.db, &caller.tenant, filter, after, limit + 1).await?;
        let more = sessions.len() as i64 > limit;
        sessions.truncate(limit as usize);
        let next_page_token = match sessions.last() {
            Some(last) if more => {
                format!("{}-{}", last.updated_at.to_jiff().as_microsecond(), last.id)
            }
            _ => String::new(),
        };
        let sessions = sessions.into_iter().map(Into::into).collect();
        Ok(Response::new(pb::ListSessionsResponse { sessions, next_page_token }))
    }

    async fn get_snapshot(
        &self,
        request: Request<pb::GetSnapshotRequest>,
    ) -> Result<Response<pb::GetSnapshotResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        let id = parse("session_id", &request.session_id)?;
        let turns = check::count("turns", request.turns, 20, 100)?;
        let mut db = snapshot::one_state(&self.host.db).await?;
        let (snapshot, _) = snapshot::load(&mut db, &caller.tenant, id, turns).await?;
        let json = serde_json::to_string(&snapshot).map_err(Error::Json)?;
        Ok(Response::new(pb::GetSnapshotResponse { snapshot: Some(snapshot), json }))
    }

    async fn compact_session(
        &self,
        request: Request<pb::CompactSessionRequest>,
    ) -> Result<Response<pb::CompactSessionResponse>, Status> {
        compaction::compact(self, request).await
    }

    async fn list_messages(
        &self,
        request: Request<pb::ListMessagesRequest>,
    ) -> Result<Response<pb::ListMessagesResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        let id = parse("session_id", &request.session_id)?;
        let limit = check::count("page_size", request.page_size, 50, 200)?;
        let before = match request.page_token.as_str() {
            "" => i64::MAX,
            token => token.parse().map_err(|_| Error::InvalidCursor("page_token"))?,
        };
        let mut db = snapshot::one_state(&self.host.db).await?;
        let session = store::sessions::get(&mut *db, &caller.tenant, id).await?;
        let window = Window::Before(before, limit);
        let hidden = request.include_hidden;
        let (mut stored, more) =
            store::messages::page(&mut db, id, window, hidden, snapshot::MESSAGE_BYTES).await?;
        let next_page_token = match stored.first().and_then(|message| message.position) {
            Some(position) if more => position.to_string(),
            _ => String::new(),
        };
        // What waits has no place in the conversation yet; it stands at its end.
        if request.page_token.is_empty() {
            stored.extend(snapshot::queued(&mut db, id).await?);
        }
        let messages = stored.iter().map(|message| convert::message(id, message));
        Ok(Response::new(pb::ListMessagesResponse {
            messages: messages.collect::<Result<_>>()?,
            next_page_token,
            as_of_sequence: session.last_sequence,
        }))
    }

    async fn list_events(
        &self,
        request: Request<pb::ListEventsRequest>,
    ) -> Result<Response<pb::ListEventsResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        let id: SessionId = parse("session_id", &request.session_id)?;
        let limit = check::count("page_size", request.page_size, 200, 1000)?;
        if request.after_sequence < 0 {
            return Err(check::invalid("after_sequence", "must not be negative").into());
        }
        let session = store::sessions::get(&self.host.db, &caller.tenant, id).await?;
        let (after, last) = (request.after_sequence, session.last_sequence);
        if after > last {
            return Err(Error::CursorAhead { id, after, last }.into());
        }
        let mut db = snapshot::one_state(&self.host.db).await?;
        if let Some(first) = store::events::gap_after(&mut *db, id, after, last).await? {
            return Err(Error::CursorExpired { id, after, first }.into());
        }
        let rows = store::events::rows(&mut *db, id, after, last, limit, EVENT_BYTES).await?;
        db.commit().await.map_err(Error::Database)?;
        let events = rows.into_iter().map(store::events::Row::into_event);
        let events = events.collect::<Result<Vec<_>>>()?;
        let more = events.last().is_some_and(|event| event.sequence < last);
        let json = events.iter().map(|event| event.to_json()).collect::<Result<_, _>>();
        let json = json.map_err(Error::Json)?;
        Ok(Response::new(pb::ListEventsResponse { events, json, more }))
    }

    async fn update_session(
        &self,
        request: Request<pb::UpdateSessionRequest>,
    ) -> Result<Response<pb::UpdateSessionResponse>, Status> {
        admin::update(self, request).await
    }

    async fn delete_session(
        &self,
        request: Request<pb::DeleteSessionRequest>,
    ) -> Result<Response<pb::DeleteSessionResponse>, Status> {
        admin::delete(self, request).await
    }

    async fn rewind_session(
        &self,
        request: Request<pb::RewindSessionRequest>,
    ) -> Result<Response<pb::RewindSessionResponse>, Status> {
        admin::rewind(self, request).await
    }

    async fn unrewind_session(
        &self,
        request: Request<pb::UnrewindSessionRequest>,
    ) -> Result<Response<pb::UnrewindSessionResponse>, Status> {
        admin::unrewind(self, request).await
    }

    async fn fork_session(
        &self,
        request: Request<pb::ForkSessionRequest>,
    ) -> Result<Response<pb::ForkSessionResponse>, Status> {
        admin::fork(self, request).await
    }

    async fn export_session(
        &self,
        request: Request<pb::ExportSessionRequest>,
    ) -> Result<Response<BoxStream<'static, Result<pb::ExportSessionResponse, Status>>>, Status>
    {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        let id = parse("session_id", &request.session_id)?;
        Ok(Response::new(self.export(caller.tenant, id, request).await?))
    }

    async fn import_session(
        &self,
        request: Request<Streaming<pb::ImportSessionRequest>>,
    ) -> Result<Response<pb::ImportSessionResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let id = self.import(&caller, request.into_inner()).await?;
        let session = store::sessions::get(&self.host.db, &caller.tenant, id).await?;
        Ok(Response::new(pb::ImportSessionResponse { session: Some(session.into()) }))
    }

    async fn verify_log(
        &self,
        request: Request<pb::VerifyLogRequest>,
    ) -> Result<Response<pb::VerifyLogResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let id = parse("session_id", &request.into_inner().session_id)?;
        Ok(Response::new(self.verify(&caller.tenant, id).await?))
    }
}

fn cursor(token: &str) -> Option<Cursor> {
    let (micros, id) = token.split_once('-')?;
    let updated_at = Timestamp::from_microsecond(micros.parse().ok()?).ok()?;
    Some(Cursor { updated_at, id: id.parse().ok()? })
}

/// A payload as a function of the database takes it.
pub fn payload(payload: &Payload) -> Result<Value> {
    Ok(serde_json::from_str(&payload.to_json()?)?)
}
