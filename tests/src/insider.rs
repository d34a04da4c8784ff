//! Somebody whom each service takes for one of the others.

use std::{
    fs,
    time::{SystemTime, UNIX_EPOCH},
};

use data_encoding::BASE64URL_NOPAD;
use local::Service;
use serde_json::{Value, json};

use crate::{Client, World, hmac_of};

/// No service takes a token that lives longer.
const SECONDS: u64 = 60;

impl World {
    /// One who acts for somebody of `tenant`, for a minute.
    pub fn insider(&mut self, tenant: &str) -> Client {
        let secret = fs::read_to_string(self.fleet.dir().join("internal.secret")).unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let part = |json: Value| BASE64URL_NOPAD.encode(json.to_string().as_bytes());
        let token = |service: Service| {
            let claims = json!({
                "iss": "windlass", "aud": service.name(), "iat": now, "exp": now + SECONDS,
                "tenant": tenant, "sub": "ann", "scopes": ["read", "run", "internal"],
            });
            let header = part(json!({ "alg": "HS256", "typ": "JWT" }));
            let signed = format!("{header}.{}", part(claims));
            let signature = BASE64URL_NOPAD.encode(&hmac_of(secret.as_bytes(), &[&signed]));
            format!("{signed}.{signature}")
        };
        Client::with_keys(&mut self.fleet, |service| Some(token(service)))
    }
}
