//! The triggers that requests are for, as they were a moment ago.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use moka::future::Cache;
use secrecy::SecretString;
use sqlx::PgPool;
use tokio::sync::Semaphore;
use tracing::error;

use crate::{
    credential,
    error::{Error, Result},
    ids::TriggerId,
    sealed::Keys,
    store::{
        secrets::{self, Kept},
        triggers,
    },
    template::Expression,
    trigger::{Kind, Trigger},
    webhook::Provider,
};

/// How long a process believes what it read of a trigger, or that there is none.
const CACHED: Duration = Duration::from_secs(1);

/// Bounds the memory that senders with invented ids can take up.
const CACHE_ENTRIES: u64 = 10_000;

/// How many triggers are looked up at once. Anybody can invent ids, and looking for them must not
/// take the connections that others wait for.
const LOOKUPS: usize = 4;

pub struct Known {
    db: PgPool,
    keys: Arc<Keys>,
    lookups: Semaphore,
    cache: Cache<TriggerId, Option<Arc<Receiver>>>,
}

/// A trigger that is fired over HTTP.
pub struct Receiver {
    pub trigger: Trigger,
    pub proof: Proof,
}

/// What a request has to show.
pub enum Proof {
    Webhook { provider: Provider, filter: Option<Expression>, secrets: Vec<Live<SecretString>> },
    Api { hashes: Vec<Live<[u8; 32]>> },
}

/// Something that works until another has taken its place for a while.
pub struct Live<T> {
    pub value: T,
    expires_at: Option<Timestamp>,
}

impl<T> Live<T> {
    pub fn is_live(&self, now: Timestamp) -> bool {
        self.expires_at.is_none_or(|time| now < time)
    }
}

impl Known {
    pub fn new(db: PgPool, keys: Arc<Keys>) -> Known {
        Known::lasting(db, keys, CACHED)
    }

    /// What is read of a trigger is believed for so long.
    pub fn lasting(db: PgPool, keys: Arc<Keys>, time: Duration) -> Known {
        let cache = Cache::builder().max_capacity(CACHE_ENTRIES).time_to_live(time).build();
        Known { db, keys, lookups: Semaphore::new(LOOKUPS), cache }
    }

    /// What was read of it a moment ago, if it was.
    pub async fn at_hand(&self, id: TriggerId) -> Option<Option<Arc<Receiver>>> {
        self.cache.get(&id).await
    }

    pub async fn get(&self, id: TriggerId) -> Result<Option<Arc<Receiver>>, Arc<Error>> {
        let look_up = async {
            let _permit = self.lookups.acquire().await.map_err(|_| sqlx::Error::PoolClosed)?;
            let Some(trigger) = triggers::find(&self.db, id).await? else { return Ok(None) };
            let kept = secrets::live(&self.db, id).await?;
            let proof = self.proof(&trigger, kept);
            Ok::<_, Error>(proof.map(|proof| Arc::new(Receiver { trigger, proof })))
        };
        self.cache.try_get_with(id, look_up).await
    }

    fn proof(&self, trigger: &Trigger, kept: Vec<(Kept, Option<Timestamp>)>) -> Option<Proof> {
        match &trigger.definition.kind {
            Kind::Webhook(webhook) => {
                // Both were read before they were stored.
                let provider = credential::provider(webhook).ok()?;
                let filter = match webhook.filter.as_str() {
                    "" => None,
                    filter => Some(Expression::parse(filter).ok()?),
                };
                let secrets = kept.into_iter().filter_map(|(kept, expires_at)| {
                    Some(Live { value: self.open(trigger.id, kept)?, expires_at })
                });
                Some(Proof::Webhook { provider, filter, secrets: secrets.collect() })
            }
            Kind::Api => {
                let hashes = kept.into_iter().filter_map(|(kept, expires_at)| match kept {
                    Kept::Sha256(hash) => Some(Live { value: hash.try_into().ok()?, expires_at }),
                    Kept::Sealed(_) => None,
                });
                Some(Proof::Api { hashes: hashes.collect() })
            }
            Kind::Schedule(_) | Kind::McpEvent(_) => None,
        }
    }

    fn open(&self, id: TriggerId, kept: Kept) -> Option<SecretString> {
        let Kept::Sealed(sealed) = kept else { return None };
        let opened = self.keys.open(&id.to_string(), &sealed);
        opened.inspect_err(|problem| error!(trigger.id = %id, "trigger {id}: {problem}")).ok()
    }
}
