//! How our services vouch for callers to each other.

use std::time::Duration;

use jsonwebtoken::{
    Algorithm, DecodingKey, EncodingKey, Header, Validation, get_current_timestamp,
};
use moka::sync::Cache;
use proto::auth::v1::Scope;
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};

use super::{Args, Caller, Error, Kind, Scopes, caller::is_subject};
use crate::Tenant;

pub const ALGORITHM: Algorithm = Algorithm::HS256;
const ISSUER: &str = "windlass";

/// A token is made for one call, so it need not live longer than the call takes to arrive. Those
/// for calls of the same caller within the same second are the same.
const LIFETIME_SECONDS: u64 = 60;

/// How long a token that was checked need not be checked again, and how many of them.
const REMEMBERED: Duration = Duration::from_secs(2);
const REMEMBERED_TOKENS: u64 = 1_000;

/// How far the clocks of two machines may be apart.
const LEEWAY_SECONDS: u64 = 5;

pub struct Internal {
    encoding: EncodingKey,
    /// More than one while the secret changes.
    decoding: Vec<DecodingKey>,
    validation: Validation,
    /// Callers by the tokens that prove who they are, which are still good for longer than they stay
    /// here.
    verified: Cache<String, Caller>,
}

#[derive(Serialize, Deserialize)]
struct Claims {
    iss: String,
    aud: String,
    iat: u64,
    exp: u64,
    tenant: Tenant,
    sub: String,
    scopes: Vec<String>,
}

impl Internal {
    pub fn new(service: &str, args: &Args) -> anyhow::Result<Internal> {
        let secret = bytes("AUTH_INTERNAL_SECRET", &args.auth_internal_secret)?;
        let mut decoding = vec![DecodingKey::from_secret(secret)];
        if let Some(also) = &args.auth_internal_secret_also {
            decoding.push(DecodingKey::from_secret(bytes("AUTH_INTERNAL_SECRET_ALSO", also)?));
        }
        let mut validation = Validation::new(ALGORITHM);
        validation.leeway = LEEWAY_SECONDS;
        validation.set_issuer(&[ISSUER]);
        validation.set_audience(&[service]);
        validation.set_required_spec_claims(&["iss", "aud", "exp", "sub"]);
        let verified =
            Cache::builder().max_capacity(REMEMBERED_TOKENS).time_to_live(REMEMBERED).build();
        Ok(Internal { encoding: EncodingKey::from_secret(secret), decoding, validation, verified })
    }

    pub fn sign(&self, callee: &str, caller: &Caller) -> String {
        let now = get_current_timestamp();
        let claims = Claims {
            iss: ISSUER.to_owned(),
            aud: callee.to_owned(),
            iat: now,
            exp: now + LIFETIME_SECONDS,
            tenant: caller.tenant.clone(),
            sub: caller.subject.clone(),
            scopes: caller.scopes.with(Scope::Internal).names(),
        };
        jsonwebtoken::encode(&Header::new(ALGORITHM), &claims, &self.encoding)
            .expect("text and numbers have a JSON form")
    }

    /// Whom a token is known to belong to: it was checked a moment ago.
    pub fn known(&self, token: &str) -> Option<Caller> {
        self.verified.get(token)
    }

    pub fn verify(&self, token: &str) -> Result<Caller, Error> {
        let read = |key| jsonwebtoken::decode::<Claims>(token, key, &self.validation).ok();
        let read = self.decoding.iter().find_map(read);
        let claims = read.ok_or(Error::Unauthenticated("internal token"))?.claims;
        let latest = get_current_timestamp() + LIFETIME_SECONDS + LEEWAY_SECONDS;
        if claims.exp > latest || !is_subject(&claims.sub) {
            return Err(Error::Unauthenticated("internal token lives too long or names nobody"));
        }
        let caller = Caller {
            tenant: claims.tenant,
            subject: claims.sub,
            scopes: Scopes::from_names(claims.scopes.iter().map(String::as_str)),
            kind: Kind::Service,
        };
        if claims.exp > get_current_timestamp() + REMEMBERED.as_secs() {
            self.verified.insert(token.to_owned(), caller.clone());
        }
        Ok(caller)
    }
}

fn bytes<'a>(name: &str, secret: &'a SecretString) -> anyhow::Result<&'a [u8]> {
    let secret = secret.expose_secret().as_bytes();
    anyhow::ensure!(secret.len() >= 32, "{name} is shorter than 32 bytes");
    Ok(secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn internal() -> Internal {
        let args = Args {
            auth_internal_secret: "0123456789abcdef0123456789abcdef".into(),
            auth_internal_secret_also: None,
            auth_jwks: None,
            auth_issuer: None,
            auth_audience: None,
        };
        Internal::new("models", &args).unwrap()
    }

    /// A token for `audience` that expires in so many seconds.
    fn token(internal: &Internal, audience: &str, expires_in: i64) -> String {
        let now = get_current_timestamp();
        let claims = Claims {
            iss: ISSUER.to_owned(),
            aud: audience.to_owned(),
            iat: now,
            exp: now.saturating_add_signed(expires_in),
            tenant: "acme".parse().unwrap(),
            sub: "ada".to_owned(),
            scopes: vec!["run".to_owned(), "internal".to_owned()],
        };
        jsonwebtoken::encode(&Header::new(ALGORITHM), &claims, &internal.encoding).unwrap()
    }

    #[test]
    fn a_token_that_was_checked_is_known() {
        let internal = internal();
        let token = token(&internal, "models", 60);
        assert_eq!(internal.known(&token), None);
        let caller = internal.verify(&token).unwrap();
        assert_eq!(caller.subject, "ada");
        assert_eq!(internal.known(&token), Some(caller));
    }

    #[test]
    fn a_token_that_ends_soon_is_checked_every_time() {
        let internal = internal();
        for expires_in in [2, 1, 0, -2] {
            let token = token(&internal, "models", expires_in);
            internal.verify(&token).unwrap();
            assert_eq!(internal.known(&token), None, "expires in {expires_in}");
        }
    }

    #[test]
    fn a_token_that_was_refused_is_not_known() {
        let internal = internal();
        for (audience, expires_in) in [("tools", 60), ("models", 120), ("models", -60)] {
            let token = token(&internal, audience, expires_in);
            internal.verify(&token).unwrap_err();
            assert_eq!(internal.known(&token), None, "for {audience}, expires in {expires_in}");
        }
    }
}
