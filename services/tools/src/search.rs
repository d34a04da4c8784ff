//! Who searches the web for us: a seam, and the two that fit into it.

mod brave;
mod searxng;

use std::{fs, path::PathBuf, time::Duration};

use anyhow::{Context as _, bail, ensure};
use futures::future::BoxFuture;
use reqwest::{RequestBuilder, redirect::Policy};
use secrecy::SecretString;
use serde::de::DeserializeOwned;
use url::Url;

use self::{brave::Brave, searxng::Searxng};
use crate::{
    egress::cause,
    host::Host,
    text::{clean, shorten},
};

/// How long a provider may take, and how much it may say.
const PATIENCE: Duration = Duration::from_secs(20);
const LARGEST_ANSWER: usize = 2 * 1024 * 1024;

/// How long the texts of one result may be, in characters.
const LONGEST_TITLE: usize = 200;
const LONGEST_SNIPPET: usize = 500;
const LONGEST_URL: usize = 1_000;

#[derive(Debug, Clone, Default, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Who searches the web for agents. Unset: nobody, and there is no tool for it.
    #[arg(long, env)]
    pub search_provider: Option<Kind>,

    /// Where the provider is. Needed for SearXNG; unset: the public address of the provider.
    #[arg(long, env)]
    pub search_url: Option<Url>,

    /// Key for the provider.
    #[arg(long, env, hide_env_values = true, conflicts_with = "search_key_file")]
    pub search_key: Option<SecretString>,

    /// File with the key for the provider, read at the start.
    #[arg(long, env)]
    pub search_key_file: Option<PathBuf>,

    /// How many searches a tenant may make in a minute, on each replica.
    #[arg(long, env, default_value_t = 60)]
    pub search_per_minute: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// The Brave Search API, which needs a key.
    Brave,
    /// A SearXNG of yours, with the format `json` switched on.
    Searxng,
}

/// Searches the web.
pub trait Provider: Send + Sync {
    /// At most `count` results, in the provider's order.
    fn search<'a>(
        &'a self,
        query: &'a str,
        count: usize,
    ) -> BoxFuture<'a, Result<Vec<Found>, Problem>>;

    /// Where queries go.
    fn host(&self) -> &Host;
}

/// One result, as long as the provider made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub title: String,
    pub url: String,
    pub snippet: String,
}

/// Why there are no results.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("the search provider refuses our key or the format; this is for the operator to mend")]
    Refused,
    #[error("the search provider has had enough of us for now; try again later")]
    Limited,
    #[error("the search provider answers with status {0}")]
    Status(u16),
    #[error("the search provider does not answer within {} s", PATIENCE.as_secs())]
    Silent,
    #[error("the search provider cannot be reached: {0}")]
    Unreachable(String),
    #[error("the search provider's answer cannot be understood: {0}")]
    Unreadable(String),
}

impl Found {
    /// A result that can be shown: of an ordinary length, and with an address that can be used.
    pub fn tidy(self) -> Option<Found> {
        let url = Url::parse(&self.url).ok()?;
        let usable = matches!(url.scheme(), "http" | "https") && url.as_str().len() <= LONGEST_URL;
        let short = |text: &str, longest| shorten(clean(text.as_bytes()).trim(), longest);
        usable.then(|| Found {
            title: short(&self.title, LONGEST_TITLE),
            snippet: short(&self.snippet, LONGEST_SNIPPET),
            url: url.into(),
        })
    }
}

impl Args {
    /// The provider that is configured, if any is.
    pub fn provider(&self) -> anyhow::Result<Option<Box<dyn Provider>>> {
        let Some(kind) = self.search_provider else {
            ensure!(self.search_url.is_none(), "SEARCH_URL needs SEARCH_PROVIDER");
            return Ok(None);
        };
        let key = self.key()?;
        let url = match (kind, &self.search_url) {
            (_, Some(url)) => url.clone(),
            (Kind::Brave, None) => brave::URL.parse()?,
            (Kind::Searxng, None) => bail!("SEARCH_PROVIDER searxng needs SEARCH_URL"),
        };
        ensure!(matches!(url.scheme(), "http" | "https"), "SEARCH_URL is no http or https URL");
        let place = Place::new(url)?;
        Ok(Some(match (kind, key) {
            (Kind::Brave, Some(key)) => Box::new(Brave { place, key }),
            (Kind::Brave, None) => {
                bail!("SEARCH_PROVIDER brave needs SEARCH_KEY or SEARCH_KEY_FILE")
            }
            (Kind::Searxng, key) => Box::new(Searxng { place, key }),
        }))
    }

    fn key(&self) -> anyhow::Result<Option<SecretString>> {
        let Some(path) = &self.search_key_file else { return Ok(self.search_key.clone()) };
        let text = fs::read_to_string(path)
            .with_context(|| format!("cannot read SEARCH_KEY_FILE {}", path.display()))?;
        let key = text.trim();
        ensure!(!key.is_empty(), "SEARCH_KEY_FILE {} is empty", path.display());
        Ok(Some(key.into()))
    }
}

/// Where a provider is. The operator named it, so it may be anywhere; but it sends us nowhere.
struct Place {
    url: Url,
    host: Host,
    client: reqwest::Client,
}

impl Place {
    fn new(url: Url) -> anyhow::Result<Place> {
        chassis::tls::install_default();
        let host = Host::of(&url).context("SEARCH_URL has no host")?;
        let client = reqwest::Client::builder()
            .no_proxy()
            .redirect(Policy::none())
            .timeout(PATIENCE)
            .build()?;
        Ok(Place { url, host, client })
    }

    fn get(&self, path: &str, query: &[(&str, &str)]) -> RequestBuilder {
        let mut url = self.url.clone();
        let base = url.path().trim_end_matches('/').to_owned();
        url.set_path(&(base + path));
        url.query_pairs_mut().extend_pairs(query);
        self.client.get(url).header(http::header::ACCEPT, "application/json")
    }
}

/// Sends a request and reads its answer. Keys are in headers, and no header is in an error.
async fn ask<T: DeserializeOwned>(request: RequestBuilder) -> Result<T, Problem> {
    let mut answer = request.send().await.map_err(problem)?;
    match answer.status().as_u16() {
        200 => (),
        401 | 403 | 422 => return Err(Problem::Refused),
        429 => return Err(Problem::Limited),
        other => return Err(Problem::Status(other)),
    }
    let mut bytes = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(problem)? {
        if bytes.len() + chunk.len() > LARGEST_ANSWER {
            return Err(Problem::Unreadable("it is too large".into()));
        }
        bytes.extend_from_slice(&chunk);
    }
    serde_json::from_slice(&bytes).map_err(|error| Problem::Unreadable(error.to_string()))
}

fn problem(error: reqwest::Error) -> Problem {
    if error.is_timeout() {
        return Problem::Silent;
    }
    Problem::Unreachable(cause(&error.without_url()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_of_an_ordinary_length_and_leads_somewhere() {
        let found = |url: &str| Found {
            title: " a\0title ".to_owned() + &"x".repeat(1_000),
            url: url.into(),
            snippet: "y".repeat(1_000),
        };
        let tidy = found("https://example.com/a").tidy().unwrap();
        assert!(tidy.title.starts_with("a\u{fffd}title x") && tidy.title.ends_with('…'));
        assert_eq!(tidy.snippet.chars().count(), LONGEST_SNIPPET + 1);
        for url in [
            "javascript:alert(1)",
            "nowhere",
            "ftp://a/",
            &format!("http://a/{}", "x".repeat(1_000)),
        ] {
            assert_eq!(found(url).tidy(), None, "{url}");
        }
    }

    #[test]
    fn what_is_configured_is_complete_or_refused() {
        let args = |provider, url: Option<&str>, key: Option<&str>| Args {
            search_provider: provider,
            search_url: url.map(|url| url.parse().unwrap()),
            search_key: key.map(Into::into),
            ..Args::default()
        };
        let error = |args: Args| args.provider().err().map(|error| error.to_string());
        assert!(args(None, None, None).provider().unwrap().is_none());
        assert!(args(Some(Kind::Brave), None, Some("key")).provider().unwrap().is_some());
        let searxng = Some(Kind::Searxng);
        assert!(args(searxng, Some("http://searx/"), None).provider().unwrap().is_some());
        assert_eq!(
            [
                error(args(None, Some("http://searx/"), None)),
                error(args(Some(Kind::Brave), None, None)),
                error(args(searxng, None, None)),
                error(args(searxng, Some("file:///x"), None)),
            ]
            .map(Option::unwrap_or_default),
            [
                "SEARCH_URL needs SEARCH_PROVIDER",
                "SEARCH_PROVIDER brave needs SEARCH_KEY or SEARCH_KEY_FILE",
                "SEARCH_PROVIDER searxng needs SEARCH_URL",
                "SEARCH_URL is no http or https URL",
            ]
        );
    }
}
