//! Tokens of an identity provider.

use anyhow::Context as _;
use jsonwebtoken::{Algorithm, DecodingKey, Header, Validation, jwk::KeyAlgorithm};
use proto::auth::v1::Scope;
use serde::Deserialize;

use super::{Args, Caller, Error, Kind, Scopes, caller::is_subject, jwk_source::Source};
use crate::Tenant;

/// Public-key signatures only. With a shared-secret algorithm among them, anybody
/// could sign with our "public" key as the secret.
const ALGORITHMS: [Algorithm; 3] = [Algorithm::RS256, Algorithm::ES256, Algorithm::EdDSA];

/// How far the provider's clock and ours may be apart.
const LEEWAY_SECONDS: u64 = 30;

pub struct Jwks {
    source: Source,
    issuer: String,
    audience: String,
}

#[derive(Deserialize)]
struct Claims {
    tenant: Tenant,
    sub: String,
    #[serde(default)]
    scope: String,
}

impl Jwks {
    pub async fn new(args: &Args) -> anyhow::Result<Option<Jwks>> {
        let Some(location) = &args.auth_jwks else { return Ok(None) };
        Ok(Some(Jwks {
            source: Source::new(location).await?,
            issuer: args.auth_issuer.clone().context("AUTH_JWKS needs AUTH_ISSUER")?,
            audience: args.auth_audience.clone().context("AUTH_JWKS needs AUTH_AUDIENCE")?,
        }))
    }

    pub async fn verify(&self, header: &Header, token: &str) -> Result<Caller, Error> {
        if !ALGORITHMS.contains(&header.alg) {
            return Err(Error::Unauthenticated("token algorithm"));
        }
        let kid = header.kid.as_deref().ok_or(Error::Unauthenticated("token without a key id"))?;
        let jwk = self.source.find(kid).await?;
        if jwk.common.key_algorithm.is_some_and(|named| !is_same(named, header.alg)) {
            return Err(Error::Unauthenticated("token algorithm is not its key's"));
        }
        let key =
            DecodingKey::from_jwk(&jwk).map_err(|_| Error::Unauthenticated("unusable key"))?;

        let mut validation = Validation::new(header.alg);
        validation.leeway = LEEWAY_SECONDS;
        validation.validate_nbf = true;
        validation.set_issuer(&[&self.issuer]);
        validation.set_audience(&[&self.audience]);
        validation.set_required_spec_claims(&["iss", "aud", "exp", "sub"]);
        let claims: Claims = jsonwebtoken::decode(token, &key, &validation)
            .map_err(|_| Error::Unauthenticated("outside token"))?
            .claims;
        if !is_subject(&claims.sub) {
            return Err(Error::Unauthenticated("token subject"));
        }
        let scopes = Scopes::from_names(claims.scope.split_ascii_whitespace());
        Ok(Caller {
            tenant: claims.tenant,
            subject: claims.sub,
            // Whatever the provider says: it does not run our services.
            scopes: scopes.without(Scope::Internal),
            kind: Kind::Token,
        })
    }
}

fn is_same(named: KeyAlgorithm, algorithm: Algorithm) -> bool {
    matches!(
        (named, algorithm),
        (KeyAlgorithm::RS256, Algorithm::RS256)
            | (KeyAlgorithm::ES256, Algorithm::ES256)
            | (KeyAlgorithm::EdDSA, Algorithm::EdDSA)
    )
}
