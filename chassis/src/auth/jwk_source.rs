//! The identity provider's public keys, which change now and then.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use arc_swap::ArcSwapOption;
use jsonwebtoken::jwk::{Jwk, JwkSet};
use tokio::{fs, sync::Mutex};
use tracing::warn;

use super::Error;

/// After this long keys are fetched again, so that a withdrawn one is forgotten.
const FRESH: Duration = Duration::from_secs(300);

/// Keys this old are not believed any more, even if no newer ones can be had.
const STALE: Duration = Duration::from_secs(3600);

/// An unknown key id asks for new keys at most this often, whoever sends it.
const PAUSE: Duration = Duration::from_secs(10);

const FETCH: Duration = Duration::from_secs(5);
const MAX_BYTES: usize = 1024 * 1024;

pub struct Source {
    location: Location,
    keys: ArcSwapOption<Keys>,

    /// When keys were last asked for. Held while asking, so that one asks for all.
    asked: Mutex<Option<Instant>>,
}

enum Location {
    File(String),
    Url(String, reqwest::Client),
}

struct Keys {
    set: JwkSet,
    fetched: Instant,
}

impl Source {
    /// A file must be readable at once; a provider may be away while we start.
    pub async fn new(location: &str) -> anyhow::Result<Source> {
        let location = match location.starts_with("http://") || location.starts_with("https://") {
            false => Location::File(location.to_owned()),
            true => {
                crate::tls::install_default();
                let client = reqwest::Client::builder().timeout(FETCH).build()?;
                Location::Url(location.to_owned(), client)
            }
        };
        let source = Source { location, keys: ArcSwapOption::empty(), asked: Mutex::new(None) };
        if let Err(error) = source.fetch().await {
            match source.location {
                Location::File(_) => return Err(error),
                Location::Url(..) => warn!(%error, "the identity provider does not answer yet"),
            }
        }
        Ok(source)
    }

    pub async fn find(&self, kid: &str) -> Result<Jwk, Error> {
        match self.known(kid, FRESH) {
            Some(jwk) => Ok(jwk),
            None => {
                self.refresh().await;
                if self.keys.load().as_ref().is_none_or(|keys| keys.fetched.elapsed() > STALE) {
                    return Err(Error::Provider);
                }
                self.known(kid, STALE).ok_or(Error::Unauthenticated("unknown key id"))
            }
        }
    }

    fn known(&self, kid: &str, age: Duration) -> Option<Jwk> {
        let keys = self.keys.load();
        let keys = keys.as_ref().filter(|keys| keys.fetched.elapsed() < age)?;
        keys.set.find(kid).cloned()
    }

    async fn refresh(&self) {
        let mut asked = self.asked.lock().await;
        if asked.is_some_and(|asked| asked.elapsed() < PAUSE) {
            return;
        }
        *asked = Some(Instant::now());
        if let Err(error) = self.fetch().await {
            warn!(%error, "the identity provider's keys cannot be fetched");
        }
    }

    async fn fetch(&self) -> anyhow::Result<()> {
        let json = match &self.location {
            Location::File(path) => {
                fs::read(path).await.with_context(|| format!("cannot read AUTH_JWKS {path}"))?
            }
            Location::Url(url, client) => {
                let mut response = client.get(url).send().await?.error_for_status()?;
                let mut json = Vec::new();
                while let Some(chunk) = response.chunk().await? {
                    json.extend_from_slice(&chunk);
                    anyhow::ensure!(json.len() <= MAX_BYTES, "AUTH_JWKS is too large");
                }
                json
            }
        };
        let set = serde_json::from_slice(&json).context("AUTH_JWKS is not a set of keys")?;
        self.keys.store(Some(Arc::new(Keys { set, fetched: Instant::now() })));
        Ok(())
    }
}
