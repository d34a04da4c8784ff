use chassis::Tenant;
use futures::{StreamExt as _, TryStreamExt as _, stream::BoxStream};
use proto::{
    event::v1::{Event, Payload, SCHEMA_VERSION, SnapshotRepaired},
    session::v1::{self as pb, stream_service_server::StreamService, subscribe_request::From},
};
use tonic::{Request, Response, Status, metadata::MetadataMap};
use tracing::warn;

use super::{Api, check, snapshot, stamp};
use crate::{
    error::{Error, Result, parse},
    ids::SessionId,
    reader::{self, Opening},
    store::{
        self,
        channels::{self, Connection, NewConnection, Start},
        turns::Stamp,
    },
    time,
};

/// How many turns the snapshot at the head of a stream shows.
const TURNS: i64 = 20;

#[tonic::async_trait]
impl StreamService for Api {
    async fn subscribe(
        &self,
        request: Request<pb::SubscribeRequest>,
    ) -> Result<Response<BoxStream<'static, Result<pb::SubscribeResponse, Status>>>, Status> {
        let caller = chassis::caller(&request)?;
        let client = client(request.metadata());
        let request = request.into_inner();
        let id: SessionId = parse("session_id", &request.session_id)?;
        let limit = check::count("messages", request.messages, 0, 200)?;
        let start = match request.from {
            Some(From::FromStart(true)) => Start::Beginning,
            Some(From::AfterSequence(after)) if after < 0 => {
                return Err(check::invalid("after_sequence", "must not be negative").into());
            }
            Some(From::AfterSequence(after)) => Start::After(after),
            Some(From::FromAcknowledged(true)) if request.channel.is_empty() => {
                let problem = "only a channel acknowledges, name one";
                return Err(check::invalid("from_acknowledged", problem).into());
            }
            Some(From::FromAcknowledged(true)) => Start::Acknowledged,
            Some(From::FromStart(false) | From::Live(_) | From::FromAcknowledged(false)) | None => {
                Start::Live
            }
        };
        let channel = match request.channel.as_str() {
            "" => None,
            name => Some(channel_name(name)?),
        };

        // Whose session it is comes before listening to it; and listening before reading it.
        store::sessions::get(&self.host.db, &caller.tenant, id).await?;
        let listener = self.hub.listen(id).await;
        let (connection, start) = match channel {
            None => (None, start),
            Some(name) => {
                let (tenant, subject) = (&caller.tenant, &caller.subject);
                let new =
                    NewConnection { tenant, session_id: id, name, subject, client: &client, start };
                let (connection, after) = self.connect(new).await?;
                (Some(connection), Start::After(after))
            }
        };
        let opening = match self.open(&caller.tenant, id, start, limit).await {
            Ok(opening) => opening,
            Err(error) => {
                if let Some(connection) = connection {
                    disconnect(self.clone(), connection, reader::Left::Lost).await;
                }
                return Err(error.into());
            }
        };

        let events = reader::read(self.host.db.clone(), id, opening, listener, self.stop.clone());
        let api = self.clone();
        let left = async move |left| {
            if let Some(connection) = connection {
                disconnect(api, connection, left).await;
            }
        };
        let patience = self.host.config.reader_patience;
        let served = reader::serve(id, events, patience, left);
        Ok(Response::new(served.map_err(Status::from).boxed()))
    }

    async fn acknowledge(
        &self,
        request: Request<pb::AcknowledgeRequest>,
    ) -> Result<Response<pb::AcknowledgeResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        let id: SessionId = parse("session_id", &request.session_id)?;
        let name = channel_name(&request.channel)?;
        if request.sequence < 0 {
            return Err(check::invalid("sequence", "must not be negative").into());
        }
        let db = &self.host.db;
        let sequence =
            channels::acknowledge(db, &caller.tenant, id, name, request.sequence).await?;
        Ok(Response::new(pb::AcknowledgeResponse { sequence }))
    }

    async fn watch_tenant(
        &self,
        request: Request<pb::WatchTenantRequest>,
    ) -> Result<Response<BoxStream<'static, Result<pb::WatchTenantResponse, Status>>>, Status> {
        let caller = chassis::caller(&request)?;
        let news = self.lifecycle.watch(&caller.tenant, self.stop.clone()).await;
        Ok(Response::new(news.map_err(Status::from).boxed()))
    }
}

impl Api {
    /// Connects a named reader, and tells everybody.
    async fn connect(&self, new: NewConnection<'_>) -> Result<(Connection, i64)> {
        let (host, stamp) = (&self.host, stamp(self.host.replica));
        let (connection, after, events) =
            channels::connect(&host.db, new, host.replica, &stamp).await?;
        host.bus.publish(&connection.tenant, connection.session_id, events, false);
        Ok((connection, after))
    }

    /// What a reader sees first, and from where it goes on.
    async fn open(
        &self,
        tenant: &Tenant,
        id: SessionId,
        start: Start,
        messages: i64,
    ) -> Result<Opening> {
        let mut db = snapshot::one_state(&self.host.db).await?;
        let (snapshot, session) = snapshot::load(&mut db, tenant, id, TURNS).await?;
        let messages = match messages {
            0 => vec![],
            limit => snapshot::messages(&mut db, id, limit).await?,
        };
        let last = session.last_sequence;
        let after = match start {
            Start::Beginning => 0,
            Start::After(after) if after > last => {
                return Err(Error::CursorAhead { id, after, last });
            }
            Start::After(after) => after,
            Start::Live | Start::Acknowledged => last,
        };
        let first = store::events::gap_after(&mut *db, id, after, last).await?;
        db.commit().await?;
        Ok(Opening {
            snapshot: pb::SubscribeSnapshot { snapshot: Some(snapshot), messages },
            repaired: first.map(|first| self.repaired(id, after, first)),
            after: first.map_or(after, |first| first - 1),
            reached: last,
        })
    }

    /// Says to one reader that the events up to `first` are gone. Its place is that of the last
    /// one that is gone, so that a reader that counts goes on from the right one.
    fn repaired(&self, id: SessionId, after: i64, first: i64) -> Event {
        let now = Some(time::to_proto(time::now()));
        Event {
            event_id: id.event(first - 1),
            schema_version: SCHEMA_VERSION.to_owned(),
            runtime_id: self.host.replica.to_string(),
            timestamp: now,
            sequence: first - 1,
            session_id: id.to_string(),
            thread_id: id.thread().to_string(),
            ..Event::fact(Payload::SnapshotRepaired(SnapshotRepaired {
                requested_after_sequence: after,
                first_sequence: first,
                stale: vec!["messages".to_owned(), "turns".to_owned()],
                unavailable: vec![format!("events:{}-{}", after + 1, first - 1)],
                repair_time: now,
            }))
        }
    }
}

/// Says in the log why a reader is gone. When that fails, whoever looks for readers of dead
/// replicas or takes the name will say so.
async fn disconnect(api: Api, connection: Connection, left: reader::Left) {
    let host = &api.host;
    let stamp = Stamp::of(host.replica);
    let id = connection.session_id;
    match channels::disconnect(&host.db, &connection, left.as_str(), &stamp).await {
        Ok(events) => host.bus.publish(&connection.tenant, id, events, false),
        Err(error) => {
            warn!(%error, session.id = %id, "cannot say that a reader of session {id} is gone");
        }
    }
}

fn channel_name(name: &str) -> Result<&str> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    match (1..=64).contains(&name.len()) && name.bytes().all(allowed) {
        true => Ok(name),
        false => Err(check::invalid(
            "channel",
            "expected 1 to 64 characters of A-Z, a-z, 0-9, _, - and .",
        )),
    }
}

/// What the client says it is.
fn client(metadata: &MetadataMap) -> String {
    let agent = metadata.get("user-agent").and_then(|agent| agent.to_str().ok());
    agent.unwrap_or("grpc").chars().take(100).collect()
}
