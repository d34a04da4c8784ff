//! Whether an API key is good, without asking the database about the same one again and again.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use moka::future::Cache;
use proto::auth::v1::Scope;
use sqlx::PgPool;
use subtle::ConstantTimeEq as _;
use tokio::sync::Semaphore;

use super::{Caller, Error, Kind, Scopes, key_text, keys::KeyId};
use crate::Tenant;

/// How long a process believes what it read about a key, or that there is none.
const CACHED: Duration = Duration::from_secs(5);

/// Bounds the memory that callers with invented ids can take up.
const CACHE_ENTRIES: u64 = 10_000;

/// How many keys are looked up at once. Anybody can invent keys, and looking for them must
/// not take the connections that calls of others wait for.
const LOOKUPS: usize = 4;

pub struct KeyCheck {
    db: PgPool,
    lookups: Semaphore,
    cache: Cache<KeyId, Option<Arc<Stored>>>,
}

/// What verification needs to know of a key.
struct Stored {
    tenant: Tenant,
    subject: String,
    scopes: Scopes,
    secret_sha256: Vec<u8>,
    expires_at: Option<Timestamp>,
    revoked_at: Option<Timestamp>,
}

impl KeyCheck {
    pub fn new(db: PgPool) -> KeyCheck {
        let cache = Cache::builder().max_capacity(CACHE_ENTRIES).time_to_live(CACHED).build();
        KeyCheck { db, lookups: Semaphore::new(LOOKUPS), cache }
    }

    pub async fn verify(&self, text: &str) -> Result<Caller, Error> {
        let (id, secret) =
            key_text::parse(text).ok_or(Error::Unauthenticated("malformed API key"))?;
        let look_up = async {
            let _permit = self.lookups.acquire().await.map_err(|_| sqlx::Error::PoolClosed)?;
            stored(&self.db, id).await
        };
        let stored = self.cache.try_get_with(id, look_up).await?;
        let stored = stored.ok_or(Error::Unauthenticated("unknown API key"))?;
        if !bool::from(stored.secret_sha256.ct_eq(secret.sha256().as_slice())) {
            return Err(Error::Unauthenticated("wrong API key secret"));
        }
        if stored.revoked_at.is_some() {
            return Err(Error::Unauthenticated("revoked API key"));
        }
        if stored.expires_at.is_some_and(|time| time <= Timestamp::now()) {
            return Err(Error::Unauthenticated("expired API key"));
        }
        Ok(Caller {
            tenant: stored.tenant.clone(),
            subject: stored.subject.clone(),
            scopes: stored.scopes.without(Scope::Internal),
            kind: Kind::ApiKey,
        })
    }
}

async fn stored(db: &PgPool, id: KeyId) -> sqlx::Result<Option<Arc<Stored>>> {
    sqlx::query!(
        r#"
        select
            tenant_id as "tenant: Tenant", subject, scopes, secret_sha256,
            expires_at as "expires_at: jiff_sqlx::Timestamp",
            revoked_at as "revoked_at: jiff_sqlx::Timestamp"
        from auth.api_key
        where id = $1
        "#,
        id as _,
    )
    .map(|row| {
        Arc::new(Stored {
            tenant: row.tenant,
            subject: row.subject,
            scopes: Scopes::from_names(row.scopes.iter().map(String::as_str)),
            secret_sha256: row.secret_sha256,
            expires_at: row.expires_at.map(|time| time.to_jiff()),
            revoked_at: row.revoked_at.map(|time| time.to_jiff()),
        })
    })
    .fetch_optional(db)
    .await
}
