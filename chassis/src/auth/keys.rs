//! The API keys of a tenant: made, listed, revoked.

use jiff::Timestamp;
use jiff_sqlx::ToSqlx as _;
use proto::{auth::v1::Scope, error::v1::Reason};
use secrecy::SecretString;
use sqlx::PgExecutor;
use tonic::Status;

use super::{Scopes, caller::is_subject, key_text::Secret};
use crate::Tenant;

crate::id!(
    /// Names an API key without giving it away.
    KeyId, "key"
);

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
    let secret = Secret::new();
    let hash = secret.sha256();
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

    let text = secret.key_text(id);
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

/// Revokes a key, everywhere within seconds. Revoking twice changes nothing.
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

impl From<KeyError> for Status {
    fn from(error: KeyError) -> Status {
        match &error {
            KeyError::Invalid { field, problem } => crate::invalid(field, *problem),
            KeyError::NotFound(id) => {
                crate::status(Reason::KeyNotFound, &error, vec![("key_id", id.to_string())])
            }
            KeyError::Database(cause) => crate::database_error(cause),
        }
    }
}
