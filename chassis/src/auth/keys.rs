//! API keys: `wl_`, the 26 characters of the id, `_`, and 52 that are the secret.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use moka::future::Cache;
use proto::auth::v1::Scope;
use rand::{TryRngCore as _, rngs::OsRng};
use secrecy::SecretString;
use sha2::{Digest as _, Sha256};
use sqlx::{PgExecutor, PgPool};
use subtle::ConstantTimeEq as _;

use super::{Caller, Error, Kind, Scopes, caller::is_subject};
use crate::{
    Tenant,
    id::{BASE32, decode_bare},
};

crate::id!(
    /// Names an API key without giving it away.
    KeyId, "key"
);

pub const PREFIX: &str = "wl_";

/// A key as people manage it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    pub id: KeyId,
    pub tenant: Tenant,
    pub subject: String,
    pub name: String,
    pub scopes: Scopes,
    pub created_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    pub revoked_at: Option<Timestamp>,
}

/// A key that shall be made.
#[derive(Debug, Clone)]
pub struct NewKey {
    pub tenant: Tenant,
    pub subject: String,
    pub name: String,
    pub scopes: Scopes,
    pub expires_at: Option<Timestamp>,
}

#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("invalid {field}: {problem}")]
    Invalid { field: &'static str, problem: &'static str },

    #[error("API key {0} not found")]
    NotFound(KeyId),

    #[error("database failed")]
    Database(#[from] sqlx::Error),
}

/// Makes a key. The text returned beside it is the only copy of its secret.
pub async fn create(db: impl PgExecutor<'_>, new: NewKey) -> Result<(Key, SecretString), KeyError> {
    let invalid = |field, problem| Err(KeyError::Invalid { field, problem });
    if new.scopes.is_empty() || new.scopes.contains(Scope::Internal) {
        return invalid("scopes", "expected at least one of read, run, configure, admin");
    }
    if !is_subject(&new.subject) {
        return invalid("subject", "expected 1 to 256 printable characters");
    }
    if !(1..=200).contains(&new.name.chars().count()) || new.name.chars().any(char::is_control) {
        return invalid("name", "expected 1 to 200 printable characters");
    }
    if new.expires_at.is_some_and(|time| time <= Timestamp::now()) {
        return invalid("expires_at", "expected a time to come");
    }

    let id = KeyId::new();
    let (secret, hash) = new_secret();
    let created_at = sqlx::query_scalar!(
        r#"
        insert into auth.api_key (id, tenant_id, subject, name, secret_sha256, scopes, expires_at)
        values ($1, $2, $3, $4, $5, $6, $7)
        returning created_at as "created_at: jiff_sqlx::Timestamp"
        "#,
        id as _,
        &new.tenant as _,
        new.subject,
        new.name,
        hash.as_slice(),
        &new.scopes.names(),
        new.expires_at.map(|time| time.to_sqlx()) as _,
    )
    .fetch_one(db)
    .await?;

    let bare_id = BASE32.encode(id.uuid().as_bytes());
    let text = SecretString::from(format!("{PREFIX}{bare_id}_{secret}"));
    let NewKey { tenant, subject, name, scopes, expires_at } = new;
    let created_at = created_at.to_jiff();
    let key = Key { id, tenant, subject, name, scopes, created_at, expires_at, revoked_at: None };
    Ok((key, text))
}

/// A tenant's keys in the order they were made, revoked ones too, beginning after `after`.
pub async fn list(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    after: Option<KeyId>,
    limit: i64,
) -> sqlx::Result<Vec<Key>> {
    sqlx::query!(
        r#"
        select
            id as "id: KeyId", tenant_id as "tenant: Tenant", subject, name, scopes,
            created_at as "created_at: jiff_sqlx::Timestamp",
            expires_at as "expires_at: jiff_sqlx::Timestamp",
            revoked_at as "revoked_at: jiff_sqlx::Timestamp"
        from auth.api_key
        where tenant_id = $1 and id > coalesce($2, '')
        order by id
        limit $3
        "#,
        tenant as _,
        after as _,
        limit,
    )
    .map(|row| Key {
        id: row.id,
        tenant: row.tenant,
        subject: row.subject,
        name: row.name,
        scopes: Scopes::from_names(row.scopes.iter().map(String::as_str)),
        created_at: row.created_at.to_jiff(),
        expires_at: row.expires_at.map(|time| time.to_jiff()),
        revoked_at: row.revoked_at.map(|time| time.to_jiff()),
    })
    .fetch_all(db)
    .await
}

/// Revokes a key, everywhere within [`CACHED`]. Revoking twice changes nothing.
pub async fn revoke(
    db: impl PgExecutor<'_>,
    tenant: &Tenant,
    id: KeyId,
) -> Result<Timestamp, KeyError> {
    let revoked_at = sqlx::query_scalar!(
        r#"
        update auth.api_key
        set revoked_at = coalesce(revoked_at, now())
        where tenant_id = $1 and id = $2
        returning revoked_at as "revoked_at!: jiff_sqlx::Timestamp"
        "#,
        tenant as _,
        id as _,
    )
    .fetch_optional(db)
    .await?;
    revoked_at.map(|time| time.to_jiff()).ok_or(KeyError::NotFound(id))
}

/// How long a process believes what it read about a key, or that there is none.
pub const CACHED: Duration = Duration::from_secs(5);

/// Bounds the memory that callers with invented ids can take up.
const CACHE_ENTRIES: u64 = 10_000;

/// Verifies keys without asking the database about the same one again and again.
pub struct Keys {
    db: PgPool,
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

impl Keys {
    pub fn new(db: PgPool) -> Keys {
        let cache = Cache::builder().max_capacity(CACHE_ENTRIES).time_to_live(CACHED).build();
        Keys { db, cache }
    }

    pub async fn verify(&self, text: &str) -> Result<Caller, Error> {
        let (id, hash) = parse(text).ok_or(Error::Unauthenticated("malformed API key"))?;
        let stored = self.cache.try_get_with(id, stored(&self.db, id)).await?;
        let stored = stored.ok_or(Error::Unauthenticated("unknown API key"))?;
        if !bool::from(stored.secret_sha256.ct_eq(&hash)) {
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

const SECRET_BYTES: usize = 32;

fn new_secret() -> (String, [u8; 32]) {
    let mut bytes = [0; SECRET_BYTES];
    OsRng.try_fill_bytes(&mut bytes).expect("the system has randomness");
    (BASE32.encode(&bytes), Sha256::digest(bytes).into())
}

/// The id in a key's text and the hash of the secret in it, if the text can be a key at all.
fn parse(text: &str) -> Option<(KeyId, [u8; 32])> {
    let (id, secret) = text.strip_prefix(PREFIX)?.split_once('_')?;
    let id = KeyId::from_uuid(decode_bare(id)?);
    let secret =
        BASE32.decode(secret.as_bytes()).ok().filter(|bytes| bytes.len() == SECRET_BYTES)?;
    Some((id, Sha256::digest(secret).into()))
}
