//! Tells other replicas that something happened. All the Redis. Hints, never facts:
//! each has a path that finds the same thing in Postgres a little later.

use std::{collections::HashSet, time::Duration};

use chassis::Redis;
use futures::StreamExt as _;
use prost::Message as _;
use proto::{event::v1::Event, session::v1::ListEventsResponse};
use redis::{AsyncCommands as _, Direction, RedisResult, aio::PubSubSink};
use tokio::{
    sync::{mpsc, oneshot},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::ids::SessionId;

/// Sessions that wait for a worker.
const READY: &str = "windlass:ready";

/// Events that were committed while nobody could be told are found by the poll, so
/// there is no use in keeping more than this.
const BACKLOG: usize = 1024;

/// How long to wait before connecting again.
const PAUSE: Duration = Duration::from_millis(500);

#[derive(Clone)]
pub struct Bus {
    redis: Redis,
    publications: mpsc::Sender<Publication>,
}

/// Committed events of one session, in order.
struct Publication {
    session_id: SessionId,
    events: Vec<Event>,
    ready: bool,
}

impl Bus {
    /// Publishes until `stop`.
    pub fn start(redis: Redis, stop: CancellationToken) -> Bus {
        let (publications, queue) = mpsc::channel(BACKLOG);
        tokio::spawn(stop.run_until_cancelled_owned(publish(redis.clone(), queue)));
        Bus { redis, publications }
    }

    /// Shows readers what was committed, and workers that there is a turn to claim.
    pub fn publish(&self, session_id: SessionId, events: Vec<Event>, ready: bool) {
        let publication = Publication { session_id, events, ready };
        if self.publications.try_send(publication).is_err() {
            debug!(session.id = %session_id, "readers of session {session_id} were not told, they will look");
        }
    }

    /// Waits up to a second for sessions to be ready, and returns at most `limit`.
    pub async fn ready(
        &self,
        connection: &mut redis::aio::MultiplexedConnection,
        limit: usize,
    ) -> RedisResult<Vec<SessionId>> {
        let popped: Option<(String, Vec<String>)> =
            connection.blmpop(1.0, 1, READY, Direction::Left, limit).await?;
        let ids = popped.map(|(_, ids)| ids).unwrap_or_default();
        Ok(ids.iter().filter_map(|id| id.parse().ok()).collect())
    }

    /// A connection of its own for `ready`, which blocks it.
    pub async fn blocking(&self) -> RedisResult<redis::aio::MultiplexedConnection> {
        let config = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(Some(Duration::from_secs(2)))
            .set_response_timeout(Some(Duration::from_secs(5)));
        self.redis.client().get_multiplexed_async_connection_with_config(&config).await
    }

    /// Follows the sessions that `wanted` asks for until `stop`; reconnects by itself.
    pub fn follow(
        &self,
        wanted: mpsc::UnboundedReceiver<Want>,
        deliver: impl Fn(SessionId, Vec<Event>) + Send + Sync + 'static,
        stop: CancellationToken,
    ) {
        let redis = self.redis.clone();
        tokio::spawn(stop.run_until_cancelled_owned(follow(redis, wanted, deliver)));
    }
}

/// A change in which sessions this replica has readers for.
pub enum Want {
    /// Answered when messages flow.
    Start(SessionId, oneshot::Sender<()>),
    Stop(SessionId),
}

async fn publish(redis: Redis, mut queue: mpsc::Receiver<Publication>) {
    let mut batch = Vec::new();
    while queue.recv_many(&mut batch, 64).await > 0 {
        let mut pipeline = redis::pipe();
        for Publication { session_id, events, ready } in batch.drain(..) {
            if !events.is_empty() {
                let message = ListEventsResponse { events, ..ListEventsResponse::default() };
                pipeline.publish(channel(session_id), message.encode_to_vec()).ignore();
            }
            if ready {
                pipeline.rpush(READY, session_id.to_string()).ignore();
            }
        }
        let told: RedisResult<()> = pipeline.query_async(&mut redis.connection()).await;
        if let Err(error) = told {
            debug!(%error, "readers and workers were not told, they will look");
        }
    }
}

async fn follow(
    redis: Redis,
    mut wanted: mpsc::UnboundedReceiver<Want>,
    deliver: impl Fn(SessionId, Vec<Event>) + Send + Sync + 'static,
) {
    let mut followed = HashSet::new();
    loop {
        match follow_once(&redis, &mut wanted, &mut followed, &deliver).await {
            Ok(()) => return,
            Err(error) => warn!(%error, "live events stopped, readers poll until Redis is back"),
        }
        // Nobody waits for an answer that cannot come.
        while let Ok(want) = wanted.try_recv() {
            note(&mut followed, want);
        }
        sleep(PAUSE).await;
    }
}

/// Follows until the connection is lost, or until nobody can want anything any more.
async fn follow_once(
    redis: &Redis,
    wanted: &mut mpsc::UnboundedReceiver<Want>,
    followed: &mut HashSet<SessionId>,
    deliver: &impl Fn(SessionId, Vec<Event>),
) -> RedisResult<()> {
    let connect = timeout(Duration::from_secs(2), redis.client().get_async_pubsub());
    let Ok(pubsub) = connect.await else {
        return Err((redis::ErrorKind::Io, "connecting took too long").into());
    };
    let (mut sink, mut stream) = pubsub?.split();
    for id in followed.iter() {
        sink.subscribe(channel(*id)).await?;
    }
    loop {
        tokio::select! {
            want = wanted.recv() => match want {
                Some(want) => change(&mut sink, followed, want).await?,
                None => return Ok(()),
            },
            message = stream.next() => {
                let Some(message) = message else {
                    return Err((redis::ErrorKind::Io, "the connection was closed").into());
                };
                let id = message.get_channel_name().rsplit(':').next().and_then(|id| id.parse().ok());
                let events = ListEventsResponse::decode(message.get_payload_bytes());
                if let (Some(id), Ok(response)) = (id, events) {
                    deliver(id, response.events);
                }
            }
        }
    }
}

/// Notes what is wanted before it asks for it, so that a connection that breaks in
/// between leaves nobody out of the next one.
async fn change(
    sink: &mut PubSubSink,
    followed: &mut HashSet<SessionId>,
    want: Want,
) -> RedisResult<()> {
    match want {
        Want::Start(id, flowing) => {
            followed.insert(id);
            sink.subscribe(channel(id)).await?;
            let _ = flowing.send(());
        }
        Want::Stop(id) => {
            followed.remove(&id);
            sink.unsubscribe(channel(id)).await?;
        }
    }
    Ok(())
}

fn note(followed: &mut HashSet<SessionId>, want: Want) {
    match want {
        Want::Start(id, _) => followed.insert(id),
        Want::Stop(id) => followed.remove(&id),
    };
}

/// The one place that spells the channel's name.
fn channel(id: SessionId) -> String {
    format!("windlass:session:{id}")
}
