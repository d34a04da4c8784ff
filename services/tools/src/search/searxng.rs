use futures::{FutureExt as _, future::BoxFuture};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;

use super::{Found, Place, Problem, Provider, ask};
use crate::host::Host;

/// A SearXNG, which asks others and has no keys of its own; a proxy before it may want one.
pub struct Searxng {
    pub place: Place,
    pub key: Option<SecretString>,
}

#[derive(Deserialize)]
struct Answer {
    results: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    title: String,
    url: String,
    /// What is `null` for some of those it asks.
    content: Option<String>,
}

impl Provider for Searxng {
    fn search<'a>(
        &'a self,
        query: &'a str,
        count: usize,
    ) -> BoxFuture<'a, Result<Vec<Found>, Problem>> {
        let searching = async move {
            let mut request = self.place.get("/search", &[("q", query), ("format", "json")]);
            if let Some(key) = &self.key {
                request = request.bearer_auth(key.expose_secret());
            }
            let answer: Answer = ask(request).await?;
            let found = answer.results.into_iter().map(|Item { title, url, content }| Found {
                title,
                url,
                snippet: content.unwrap_or_default(),
            });
            Ok(found.take(count).collect())
        };
        searching.boxed()
    }

    fn host(&self) -> &Host {
        &self.place.host
    }
}
