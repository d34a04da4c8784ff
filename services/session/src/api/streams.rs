use futures::{StreamExt as _, TryStreamExt as _, stream::BoxStream};
use proto::session::v1::{
    self as pb, stream_service_server::StreamService, subscribe_request::From,
};
use tonic::{Request, Response, Status};

use super::{Api, check, snapshot};
use crate::{
    error::{Error, Result, parse},
    ids::SessionId,
    reader,
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
        let request = request.into_inner();
        let id: SessionId = parse("session_id", &request.session_id)?;
        if !request.channel.is_empty() || matches!(request.from, Some(From::FromAcknowledged(_))) {
            return Err(check::invalid(
                "channel",
                "named channels are not there yet, leave it empty",
            )
            .into());
        }
        let limit = check::count("messages", request.messages, 0, 200)?;

        // Whose session it is comes before listening to it; and listening before reading it.
        crate::store::sessions::get(&self.host.db, &caller.tenant, id).await?;
        let listener = self.hub.listen(id).await;
        let mut db = snapshot::one_state(&self.host.db).await?;
        let (snapshot, session) = snapshot::load(&mut db, &caller.tenant, id, TURNS).await?;
        let messages = match limit {
            0 => vec![],
            limit => snapshot::messages(&mut db, id, limit).await?,
        };
        db.commit().await.map_err(Error::Database)?;

        let last = session.last_sequence;
        let after = match request.from {
            Some(From::FromStart(true)) => 0,
            Some(From::AfterSequence(after)) if after < 0 => {
                return Err(check::invalid("after_sequence", "must not be negative").into());
            }
            Some(From::AfterSequence(after)) if after > last => {
                return Err(Error::CursorAhead { id, after, last }.into());
            }
            Some(From::AfterSequence(after)) => after,
            Some(From::FromStart(false) | From::Live(_) | From::FromAcknowledged(_)) | None => last,
        };
        let first = pb::SubscribeSnapshot { snapshot: Some(snapshot), messages };
        let (db, stop) = (self.host.db.clone(), self.stop.clone());
        let events = reader::read(db, id, first, after, last, listener, stop);
        Ok(Response::new(events.map_err(Status::from).boxed()))
    }
}
