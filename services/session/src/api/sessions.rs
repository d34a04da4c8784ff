use jiff::Timestamp;
use proto::{
    event::v1::{Payload, SessionCreated},
    session::v1::{self as pb, session_service_server::SessionService},
};
use serde_json::{Value, json};
use tonic::{Request, Response, Status};

use super::{Api, check, convert, snapshot, stamp};
use crate::{
    agent,
    error::{Error, Result, parse},
    ids::{SessionId, WorkspaceId},
    store::{
        self,
        messages::Window,
        sessions::{Cursor, NewSession},
    },
};

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
        if request.include_ephemeral
            || request.include_archived
            || !request.parent_session_id.is_empty()
        {
            return Err(check::invalid(
                "include_ephemeral, include_archived, parent_session_id",
                "no session is ephemeral, archived or a child in this version",
            )
            .into());
        }
        let limit = check::count("page_size", request.page_size, 50, 200)?;
        let after = match request.page_token.as_str() {
            "" => None,
            token => Some(cursor(token).ok_or(Error::InvalidCursor("page_token"))?),
        };
        let mut sessions =
            store::sessions::list(&self.host.db, &caller.tenant, after, limit + 1).await?;
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
        let window = Window::Before(before, limit + 1);
        let mut stored = store::messages::load(&mut db, id, window, request.include_hidden).await?;
        let next_page_token = match stored.len() as i64 > limit {
            true => {
                stored.remove(0);
                stored.first().and_then(|message| message.position).unwrap_or_default().to_string()
            }
            false => String::new(),
        };
        // What waits has no place in the conversation yet; it stands at its end.
        if request.page_token.is_empty() {
            stored.extend(store::messages::load(&mut db, id, Window::Queued, false).await?);
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
        let mut events = store::events::after(&self.host.db, id, after, limit + 1).await?;
        let more = events.len() as i64 > limit;
        events.truncate(limit as usize);
        let json = events.iter().map(|event| event.to_json()).collect::<Result<_, _>>();
        let json = json.map_err(Error::Json)?;
        Ok(Response::new(pb::ListEventsResponse { events, json, more }))
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
