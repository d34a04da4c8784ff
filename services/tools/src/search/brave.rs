use futures::{FutureExt as _, future::BoxFuture};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;

use super::{Found, Place, Problem, Provider, ask};
use crate::host::Host;

pub const URL: &str = "https://api.search.brave.com";

/// The Brave Search API.
pub struct Brave {
    pub place: Place,
    pub key: SecretString,
}

#[derive(Deserialize)]
struct Answer {
    /// Absent when nothing was found.
    web: Option<Web>,
}

#[derive(Deserialize)]
struct Web {
    results: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    title: String,
    url: String,
    #[serde(default)]
    description: String,
}

impl Provider for Brave {
    fn search<'a>(
        &'a self,
        query: &'a str,
        count: usize,
    ) -> BoxFuture<'a, Result<Vec<Found>, Problem>> {
        let searching = async move {
            let count_text = count.to_string();
            // Without decorations, which would be markup in the texts.
            let query =
                [("q", query), ("count", count_text.as_str()), ("text_decorations", "false")];
            let request = self.place.get("/res/v1/web/search", &query);
            let request = request.header("x-subscription-token", self.key.expose_secret());
            let answer: Answer = ask(request).await?;
            let items = answer.web.map(|web| web.results).unwrap_or_default().into_iter();
            let found = items.map(|Item { title, url, description }| Found {
                title,
                url,
                snippet: description,
            });
            Ok(found.take(count).collect())
        };
        searching.boxed()
    }

    fn host(&self) -> &Host {
        &self.place.host
    }
}
