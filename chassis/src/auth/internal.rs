//! How our services vouch for callers to each other.

use jsonwebtoken::{
    Algorithm, DecodingKey, EncodingKey, Header, Validation, get_current_timestamp,
};
use proto::auth::v1::Scope;
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};

use super::{Args, Caller, Error, Kind, Scopes, caller::is_subject};
use crate::Tenant;

pub const ALGORITHM: Algorithm = Algorithm::HS256;
const ISSUER: &str = "windlass";

/// A token is made for one call, so it need not live longer than the call takes to arrive.
const LIFETIME_SECONDS: u64 = 60;

/// How far the clocks of two machines may be apart.
const LEEWAY_SECONDS: u64 = 5;

pub struct Internal {
    encoding: EncodingKey,
    /// More than one while the secret changes.
    decoding: Vec<DecodingKey>,
    validation: Validation,
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
        Ok(Internal { encoding: EncodingKey::from_secret(secret), decoding, validation })
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

    pub fn verify(&self, token: &str) -> Result<Caller, Error> {
        let read = |key| jsonwebtoken::decode::<Claims>(token, key, &self.validation).ok();
        let read = self.decoding.iter().find_map(read);
        let claims = read.ok_or(Error::Unauthenticated("internal token"))?.claims;
        let latest = get_current_timestamp() + LIFETIME_SECONDS + LEEWAY_SECONDS;
        if claims.exp > latest || !is_subject(&claims.sub) {
            return Err(Error::Unauthenticated("internal token lives too long or names nobody"));
        }
        Ok(Caller {
            tenant: claims.tenant,
            subject: claims.sub,
            scopes: Scopes::from_names(claims.scopes.iter().map(String::as_str)),
            kind: Kind::Service,
        })
    }
}

fn bytes<'a>(name: &str, secret: &'a SecretString) -> anyhow::Result<&'a [u8]> {
    let secret = secret.expose_secret().as_bytes();
    anyhow::ensure!(secret.len() >= 32, "{name} is shorter than 32 bytes");
    Ok(secret)
}
