//! Who calls, and what they may do. Whoever cannot say is refused.
//!
//! Three kinds of credential: API keys from the database, tokens of an identity
//! provider whose public keys we are given, and the short-lived tokens with which our
//! services vouch for a caller to each other. Only the last can hold `internal`.

mod caller;
mod internal;
mod jwks;
mod jwk_source;
pub mod keys;
mod key_check;
mod key_text;
mod scopes;

use std::sync::Arc;

use http::{HeaderMap, header::AUTHORIZATION};
use proto::{auth::v1::Scope, error::v1::Reason};
use secrecy::SecretString;
use sqlx::PgPool;
use tonic::Status;

pub use caller::{Caller, Kind, caller};
pub use scopes::Scopes;

use crate::status;

#[derive(Debug, Clone, clap::Args)]
#[group(skip)]
pub struct Args {
    /// At least 32 bytes, the same in all services: what they sign calls to each other with.
    #[arg(long, env, hide_env_values = true)]
    pub auth_internal_secret: SecretString,

    /// Another such secret that is believed too, for as long as services change from one to the other.
    #[arg(long, env, hide_env_values = true)]
    pub auth_internal_secret_also: Option<SecretString>,

    /// File or http(s) URL with the public keys (JWKS) of the identity provider. Unset: no outside tokens.
    #[arg(long, env, requires_all = ["auth_issuer", "auth_audience"])]
    pub auth_jwks: Option<String>,

    /// Issuer that outside tokens must name.
    #[arg(long, env)]
    pub auth_issuer: Option<String>,

    /// Audience that outside tokens must name.
    #[arg(long, env)]
    pub auth_audience: Option<String>,
}

/// Tells callers apart. Cheap to clone.
#[derive(Clone)]
pub struct Auth(Arc<Inner>);

struct Inner {
    internal: internal::Internal,
    jwks: Option<jwks::Jwks>,
    keys: key_check::KeyCheck,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// One sentence for everything that is wrong with a credential: a precise one
    /// would help whoever is guessing. The log has the cause.
    #[error("the credential is missing, malformed, unknown, expired or revoked")]
    Unauthenticated(&'static str),

    #[error("the credential does not hold the scope {}", .0.name())]
    ScopeMissing(Scope),

    #[error("database failed")]
    Database(#[from] Arc<sqlx::Error>),

    #[error("the identity provider does not answer")]
    Provider,
}

impl Auth {
    /// `service` is the name under which other services address this one.
    pub async fn new(service: &str, args: &Args, db: PgPool) -> anyhow::Result<Auth> {
        Ok(Auth(Arc::new(Inner {
            internal: internal::Internal::new(service, args)?,
            jwks: jwks::Jwks::new(args).await?,
            keys: key_check::KeyCheck::new(db),
        })))
    }

    /// Who is behind the `authorization` header.
    pub async fn authenticate(&self, headers: &HeaderMap) -> Result<Caller, Error> {
        let credential = bearer(headers)?;
        if credential.starts_with(key_text::PREFIX) {
            return self.0.keys.verify(credential).await;
        }
        if let Some(caller) = self.0.internal.known(credential) {
            return Ok(caller);
        }
        let header = jsonwebtoken::decode_header(credential)
            .map_err(|_| Error::Unauthenticated("neither an API key nor a token"))?;
        if header.alg == internal::ALGORITHM {
            return self.0.internal.verify(credential);
        }
        match &self.0.jwks {
            Some(jwks) => jwks.verify(&header, credential).await,
            None => Err(Error::Unauthenticated("no identity provider is configured")),
        }
    }

    /// Vouches to the service `callee` for `caller`, for as long as one call may take to arrive.
    pub fn vouch(&self, callee: &str, caller: &Caller) -> String {
        self.0.internal.sign(callee, caller)
    }
}

/// Refuses a caller that lacks the scope of the RPC at `path`. A path that is not
/// ours has none: whoever is authenticated may learn that it does not exist.
pub fn authorize(caller: &Caller, path: &str) -> Result<(), Error> {
    match proto::auth::v1::scope_of(path) {
        Some(scope) if !caller.scopes.contains(scope) => Err(Error::ScopeMissing(scope)),
        _ => Ok(()),
    }
}

/// Longer than any credential; what is longer is not looked at.
const MAX_CREDENTIAL: usize = 8 * 1024;

fn bearer(headers: &HeaderMap) -> Result<&str, Error> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next().ok_or(Error::Unauthenticated("no credential"))?;
    if values.next().is_some() {
        return Err(Error::Unauthenticated("more than one credential"));
    }
    let text = value.to_str().map_err(|_| Error::Unauthenticated("unreadable credential"))?;
    match text.split_once(' ') {
        Some((scheme, credential))
            if scheme.eq_ignore_ascii_case("bearer") && credential.len() <= MAX_CREDENTIAL =>
        {
            Ok(credential)
        }
        _ => Err(Error::Unauthenticated("not a bearer credential")),
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Status {
        match &error {
            Error::Unauthenticated(cause) => {
                tracing::info!(cause, "caller refused");
                status(Reason::Unauthenticated, &error, vec![])
            }
            Error::ScopeMissing(scope) => {
                status(Reason::ScopeMissing, &error, vec![("scope", scope.name())])
            }
            Error::Database(cause) => crate::database_error(cause),
            Error::Provider => crate::unavailable("identity provider", crate::status::RETRY),
        }
    }
}
