//! Tells that something happened: the readers here at once, other replicas through Redis. All
//! the Redis. Hints, never facts: each has a path that finds the same thing in Postgres a little
//! later.

use std::{
    collections::HashSet,
    fmt::Display,
    hash::Hash,
    str::FromStr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use chassis::{Redis, Tenant};
use futures::StreamExt as _;
use prost::{Message as _, encoding::message::encode_repeated};
use proto::{
    event::v1::Event,
    session::v1::{ListEventsResponse, WatchTenantResponse},
};
use redis::{AsyncCommands as _, Direction, RedisResult, aio::PubSubSink};
use tokio::{
    sync::{Notify, mpsc, oneshot, watch},
    time::{interval, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::{
    ids::{ReplicaId, SessionId},
    lifecycle,
    readers::Readers,
    works::Works,
};

/// Sessions that wait for a worker, each behind its tenant and a space: whose they are decides
/// whether there is a place for them. A version that does not know what this says leaves them to a
/// sweep, as this one does with what it does not know.
const READY: &str = "windlass:ready";

/// How many of them there are at most once somebody has put some back. What is taken from a sweep
/// stays in the list, and that of a tenant who has no place would be put back for ever.
const MOST_READY: isize = 10_000;

/// Events that were committed while nobody could be told are found by the poll, so
/// there is no use in keeping more than this.
const BACKLOG: usize = 1024;

/// How many publications one round trip takes, and how long it waits for them: a short turn is told in
/// one, when it is over and nothing waits for a core any more.
const AT_ONCE: usize = 64;
const GATHER: Duration = Duration::from_millis(2);

/// How long to wait before connecting again.
const PAUSE: Duration = Duration::from_millis(500);

/// How often a connection that only listens is asked whether it lives, and how long it may take to
/// answer anything.
const PULSE: Duration = Duration::from_secs(2);
const ANSWER: Duration = Duration::from_secs(2);

#[derive(Clone)]
pub struct Bus {
    redis: Redis,
    replica: ReplicaId,
    readers: Readers,
    works: Works,
    publications: mpsc::Sender<Publication>,
    mail: Arc<Mail>,
}

/// Sessions that have mail, for the courier of this process. One that dies leaves it to the others.
#[derive(Default)]
struct Mail {
    sessions: Mutex<HashSet<SessionId>>,
    arrived: Notify,
}

/// Committed events of one session, in order.
struct Publication {
    tenant: Tenant,
    session_id: SessionId,
    events: Arc<[Event]>,
    ready: bool,
}

impl Bus {
    /// Publishes until `stop`.
    pub fn start(redis: Redis, replica: ReplicaId, stop: CancellationToken) -> Bus {
        let (publications, queue) = mpsc::channel(BACKLOG);
        tokio::spawn(stop.run_until_cancelled_owned(publish(redis.clone(), replica, queue)));
        let (readers, works) = (Readers::default(), Works::default());
        Bus { redis, replica, readers, works, publications, mail: Arc::default() }
    }

    /// The readers here, who are told without Redis.
    pub fn readers(&self) -> &Readers {
        &self.readers
    }

    /// The tasks and jobs that this replica has turns of, which are told without Redis.
    pub fn works(&self) -> &Works {
        &self.works
    }

    /// Shows readers what was committed, and workers that there is a turn to claim.
    pub fn publish(&self, tenant: &Tenant, session_id: SessionId, events: Vec<Event>, ready: bool) {
        let events = Arc::from(events);
        self.readers.show(session_id, &events);
        self.works.hear(session_id, &events);
        let publication = Publication { tenant: tenant.clone(), session_id, events, ready };
        if self.publications.try_send(publication).is_err() {
            debug!(session.id = %session_id, "readers of session {session_id} were not told, they will look");
        }
    }

    /// Has mail delivered to these.
    pub fn post(&self, sessions: impl IntoIterator<Item = SessionId>) {
        let mut waiting = self.mail.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.extend(sessions);
        if !waiting.is_empty() {
            self.mail.arrived.notify_one();
        }
    }

    /// Waits until somebody has mail, and says who.
    pub async fn mail(&self) -> Vec<SessionId> {
        loop {
            let waiting = std::mem::take(
                &mut *self.mail.sessions.lock().unwrap_or_else(PoisonError::into_inner),
            );
            match waiting.is_empty() {
                true => self.mail.arrived.notified().await,
                false => return waiting.into_iter().collect(),
            }
        }
    }

    /// Waits up to a second for sessions to be ready, and returns at most `limit`.
    pub async fn ready(
        &self,
        connection: &mut redis::aio::MultiplexedConnection,
        limit: usize,
    ) -> RedisResult<Vec<(Tenant, SessionId)>> {
        let popped: Option<(String, Vec<String>)> =
            connection.blmpop(1.0, 1, READY, Direction::Left, limit).await?;
        let ready = popped.map(|(_, ready)| ready).unwrap_or_default();
        let read = |entry: &String| {
            let (tenant, id) = entry.split_once(' ')?;
            Some((tenant.parse().ok()?, id.parse().ok()?))
        };
        Ok(ready.iter().filter_map(read).collect())
    }

    /// Puts sessions behind all others that are ready, as far as the list may grow; a sweep finds the rest.
    pub async fn put_back(
        &self,
        connection: &mut redis::aio::MultiplexedConnection,
        ready: &[(Tenant, SessionId)],
    ) -> RedisResult<()> {
        let entries: Vec<String> = ready.iter().map(|(tenant, id)| entry(tenant, *id)).collect();
        let mut pipeline = redis::pipe();
        pipeline.rpush(READY, entries).ignore().ltrim(READY, 0, MOST_READY - 1).ignore();
        pipeline.query_async(connection).await
    }

    /// Tells the owner of a turn that somebody wants something of it.
    pub fn nudge(&self, owner: ReplicaId) {
        let redis = self.redis.clone();
        tokio::spawn(async move {
            let told: RedisResult<()> = redis.connection().publish(owner.channel(), "").await;
            if let Err(error) = told {
                debug!(%error, replica.id = %owner, "replica {owner} was not told, it will look");
            }
        });
    }

    /// What others want of us, until `stop`.
    pub fn nudges(&self, stop: CancellationToken) -> mpsc::Receiver<()> {
        let (nudged, arriving) = mpsc::channel(1);
        let (wants, wanted) = mpsc::unbounded_channel();
        let (flowing, _) = oneshot::channel();
        let _ = wants.send(Want::Start(self.replica, flowing));
        let deliver = move |_, ()| {
            // Who follows stops when nobody can want anything any more.
            let _ = &wants;
            // One that waits to be taken stands for all.
            let _ = nudged.try_send(());
        };
        self.follow(wanted, deliver, stop);
        arriving
    }

    /// A connection of its own for `ready`, which blocks it.
    pub async fn blocking(&self) -> RedisResult<redis::aio::MultiplexedConnection> {
        let config = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(Some(Duration::from_secs(2)))
            .set_response_timeout(Some(Duration::from_secs(5)));
        self.redis.client().get_multiplexed_async_connection_with_config(&config).await
    }

    /// Follows the topics that `wanted` asks for until `stop`; reconnects by itself, and
    /// says whether it is connected.
    pub fn follow<T: Topic>(
        &self,
        wanted: mpsc::UnboundedReceiver<Want<T>>,
        deliver: impl Fn(T, T::Message) + Send + Sync + 'static,
        stop: CancellationToken,
    ) -> watch::Receiver<bool> {
        let (redis, replica) = (self.redis.clone(), self.replica);
        let deliver = move |topic, payload: &[u8]| {
            if let Some(said) = T::read(payload, replica) {
                deliver(topic, said);
            }
        };
        let (connected, flows) = watch::channel(false);
        tokio::spawn(stop.run_until_cancelled_owned(follow(redis, wanted, deliver, connected)));
        flows
    }
}

/// Something that messages are about, with a channel of its own.
pub trait Topic: Display + FromStr + Hash + Eq + Clone + Send + Sync + 'static {
    type Message: prost::Message + Default;
    const PREFIX: &str;

    /// The one place that spells a channel's name.
    fn channel(&self) -> String {
        format!("{}{self}", Self::PREFIX)
    }

    /// What a payload says, if it is news to this replica.
    fn read(payload: &[u8], _here: ReplicaId) -> Option<Self::Message> {
        Self::Message::decode(payload).ok()
    }
}

/// What happens in a session. A line says who tells it: readers of that replica know already.
impl Topic for SessionId {
    type Message = ListEventsResponse;
    const PREFIX: &str = "windlass:session:";

    fn read(payload: &[u8], here: ReplicaId) -> Option<ListEventsResponse> {
        let line = payload.iter().position(|byte| *byte == b'\n')?;
        let (teller, said) = payload.split_at(line);
        let elsewhere = teller != here.to_string().as_bytes();
        elsewhere.then(|| ListEventsResponse::decode(&said[1..]).ok())?
    }
}

/// The payload that `SessionId::read` reads.
fn told_by(replica: ReplicaId, events: &[Event]) -> Vec<u8> {
    let mut payload = format!("{replica}\n").into_bytes();
    // As `ListEventsResponse` holds them, without being one, which would own them.
    encode_repeated(1, events, &mut payload);
    payload
}

/// How the turns of a tenant are getting on.
impl Topic for Tenant {
    type Message = WatchTenantResponse;
    const PREFIX: &str = "windlass:tenant:";
}

/// Somebody wants something of a turn that this replica owns, and it is in Postgres what.
impl Topic for ReplicaId {
    type Message = ();
    const PREFIX: &str = "windlass:replica:";
}

/// A change in what this replica has readers for.
pub enum Want<T> {
    /// Answered when messages flow.
    Start(T, oneshot::Sender<()>),
    Stop(T),
}

/// How a session stands in the list of those that wait for a worker.
fn entry(tenant: &Tenant, id: SessionId) -> String {
    format!("{tenant} {id}")
}

async fn publish(redis: Redis, replica: ReplicaId, mut queue: mpsc::Receiver<Publication>) {
    let mut batch = Vec::new();
    while queue.recv_many(&mut batch, AT_ONCE).await > 0 {
        // Nobody waits for the rest: readers here know already, and those elsewhere are far away.
        if !batch.iter().any(|publication| publication.ready) {
            sleep(GATHER).await;
            while batch.len() < AT_ONCE
                && let Ok(more) = queue.try_recv()
            {
                batch.push(more);
            }
        }
        let mut pipeline = redis::pipe();
        for Publication { tenant, session_id, events, ready } in batch.drain(..) {
            for news in events.iter().filter_map(lifecycle::news) {
                pipeline.publish(tenant.channel(), news.encode_to_vec()).ignore();
            }
            if !events.is_empty() {
                pipeline.publish(session_id.channel(), told_by(replica, &events)).ignore();
            }
            if ready {
                pipeline.rpush(READY, entry(&tenant, session_id)).ignore();
            }
        }
        let told: RedisResult<()> = pipeline.query_async(&mut redis.connection()).await;
        if let Err(error) = told {
            debug!(%error, "readers and workers were not told, they will look");
        }
    }
}

async fn follow<T: Topic>(
    redis: Redis,
    mut wanted: mpsc::UnboundedReceiver<Want<T>>,
    deliver: impl Fn(T, &[u8]) + Send + Sync + 'static,
    connected: watch::Sender<bool>,
) {
    let mut followed = HashSet::new();
    loop {
        match follow_once(&redis, &mut wanted, &mut followed, &deliver, &connected).await {
            Ok(()) => return,
            Err(error) => warn!(%error, "live events stopped, readers poll until Redis is back"),
        }
        connected.send_replace(false);
        // Nobody waits for an answer that cannot come.
        while let Ok(want) = wanted.try_recv() {
            note(&mut followed, want);
        }
        sleep(PAUSE).await;
    }
}

/// Follows until the connection is lost, or until nobody can want anything any more.
async fn follow_once<T: Topic>(
    redis: &Redis,
    wanted: &mut mpsc::UnboundedReceiver<Want<T>>,
    followed: &mut HashSet<T>,
    deliver: &impl Fn(T, &[u8]),
    connected: &watch::Sender<bool>,
) -> RedisResult<()> {
    let (mut sink, mut stream) = soon(redis.client().get_async_pubsub()).await?.split();
    for topic in followed.iter() {
        soon(sink.subscribe(topic.channel())).await?;
    }
    connected.send_replace(true);
    let mut pulse = interval(PULSE);
    loop {
        tokio::select! {
            // Nothing else tells a connection on which nothing happens from one that is dead.
            _ = pulse.tick() => soon(sink.ping()).await?,
            want = wanted.recv() => match want {
                Some(want) => change(&mut sink, followed, want).await?,
                None => return Ok(()),
            },
            message = stream.next() => {
                let Some(message) = message else {
                    return Err((redis::ErrorKind::Io, "the connection was closed").into());
                };
                let topic = message.get_channel_name().strip_prefix(T::PREFIX);
                if let Some(topic) = topic.and_then(|topic| topic.parse().ok()) {
                    deliver(topic, message.get_payload_bytes());
                }
            }
        }
    }
}

/// Notes what is wanted before it asks for it, so that a connection that breaks in
/// between leaves nobody out of the next one.
async fn change<T: Topic>(
    sink: &mut PubSubSink,
    followed: &mut HashSet<T>,
    want: Want<T>,
) -> RedisResult<()> {
    match want {
        Want::Start(topic, flowing) => {
            followed.insert(topic.clone());
            soon(sink.subscribe(topic.channel())).await?;
            let _ = flowing.send(());
        }
        Want::Stop(topic) => {
            followed.remove(&topic);
            soon(sink.unsubscribe(topic.channel())).await?;
        }
    }
    Ok(())
}

/// Gives up on a Redis that says nothing.
async fn soon<T>(answer: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
    let silent = |_| redis::RedisError::from((redis::ErrorKind::Io, "Redis does not answer"));
    timeout(ANSWER, answer).await.map_err(silent)?
}

fn note<T: Topic>(followed: &mut HashSet<T>, want: Want<T>) {
    match want {
        Want::Start(topic, _) => followed.insert(topic),
        Want::Stop(topic) => followed.remove(&topic),
    };
}
