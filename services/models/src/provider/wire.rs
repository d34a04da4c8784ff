//! Everything between a wire format and its provider: the request, the waits, the bounds,
//! and what each way to fail means. Formats are [`Dialect`]s and know nothing of sockets.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use async_stream::try_stream;
use futures::{StreamExt as _, stream::BoxStream};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use secrecy::{ExposeSecret as _, SecretString};
use tokio::time::timeout;
use tracing::warn;

use super::{
    Broken, Chunk, Failure, FinishReason, Provider, Request,
    refusal::Complaint,
    sse::{Decoder, Event},
};
use crate::{catalogue, usage::Usage};

/// One wire format: how a request is written and how its events are read.
pub trait Dialect: Send + Sync + 'static {
    type Reader: Reader;

    /// The header that carries the credential, and what stands before it.
    const CREDENTIAL: (HeaderName, &'static str);

    /// A header that every request has.
    const HEADER: Option<(HeaderName, &'static str)> = None;

    fn call(&self, request: &Request) -> Call;
}

/// One answer while it is read.
pub trait Reader: Default + Send + 'static {
    /// Adds what `event` means to `chunks`.
    fn read(&mut self, event: &Event, chunks: &mut Vec<Chunk>) -> Result<(), Failure>;

    /// The connection ended in peace. Adds the end if everything before it was said.
    fn end(&mut self, _chunks: &mut Vec<Chunk>) {}

    /// What the provider counted of all that it did so far, if it did: that is paid for also where
    /// no more comes.
    fn counted(&self) -> Option<Usage> {
        None
    }
}

/// What is sent, and where to.
pub struct Call {
    /// Appended to the base URL.
    pub path: String,
    pub body: Vec<u8>,
}

/// A provider that is spoken to in one dialect over HTTP.
pub struct Wire<D> {
    dialect: D,
    upstream: Arc<Upstream>,
}

struct Upstream {
    provider: String,
    client: reqwest::Client,
    base_url: String,
    idle_timeout: Duration,
    /// Only to take it out of what the provider says.
    credential: Option<SecretString>,
}

/// No answer is larger.
const MAX_ANSWER_BYTES: usize = 64 * 1024 * 1024;

/// What is read of an error.
const MAX_ERROR_BYTES: usize = 64 * 1024;

/// Connections that rest are closed before most providers do, so that no request meets one
/// that is being closed.
const POOL_IDLE: Duration = Duration::from_secs(50);

impl<D: Dialect> Wire<D> {
    pub fn new(provider: &catalogue::Provider, dialect: D) -> anyhow::Result<Wire<D>> {
        let mut headers = HeaderMap::new();
        for (name, value) in &provider.headers {
            headers.insert(HeaderName::try_from(name)?, HeaderValue::try_from(value)?);
        }
        if let Some((name, value)) = D::HEADER {
            headers.entry(name).or_insert(HeaderValue::from_static(value));
        }
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(header::ACCEPT, HeaderValue::from_static("text/event-stream"));
        if let Some(credential) = &provider.credential {
            let (name, before) = D::CREDENTIAL;
            let value = format!("{before}{}", credential.expose_secret());
            let mut value =
                HeaderValue::try_from(value).ok().context("a credential has odd bytes")?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        // A redirect would carry the prompt, and perhaps the credential, to somebody else.
        let client = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(provider.connect_timeout)
            .pool_idle_timeout(POOL_IDLE)
            .tcp_nodelay(true)
            .default_headers(headers)
            .build()
            .with_context(|| format!("cannot prepare calls to {}", provider.name))?;
        let upstream = Upstream {
            provider: provider.name.clone(),
            client,
            base_url: provider.base_url.clone(),
            idle_timeout: provider.idle_timeout,
            credential: provider.credential.clone(),
        };
        Ok(Wire { dialect, upstream: Arc::new(upstream) })
    }
}

impl<D: Dialect> Provider for Wire<D> {
    fn generate(&self, request: Request) -> BoxStream<'static, Result<Chunk, Broken>> {
        let call = self.dialect.call(&request);
        drop(request);
        answer::<D::Reader>(self.upstream.clone(), call).boxed()
    }
}

fn answer<R: Reader>(
    upstream: Arc<Upstream>,
    call: Call,
) -> impl futures::Stream<Item = Result<Chunk, Broken>> + Send {
    try_stream! {
        let mut response = upstream.ask(call).await?;
        let (mut decoder, mut reader) = (Decoder::default(), R::default());
        let (mut chunks, mut read, mut silent) = (Vec::new(), 0, true);
        loop {
            let more = upstream.more(&mut response).await;
            let bytes = more.map_err(|failure| broken(failure, &reader))?;
            let ended = bytes.is_none();
            let bytes = bytes.unwrap_or_default();
            read += bytes.len();
            if read > MAX_ANSWER_BYTES {
                Err(broken(garbled("its answer is larger than 64 MiB"), &reader))?;
            }
            decoder.feed(&bytes);
            loop {
                let next = decoder.next().map_err(|error| garbled(&error.to_string()));
                let Some(event) = next.map_err(|failure| broken(failure, &reader))? else { break };
                let read = reader.read(event, &mut chunks);
                read.map_err(|failure| broken(upstream.discreet(failure), &reader))?;
            }
            if ended {
                reader.end(&mut chunks);
            }
            for chunk in chunks.drain(..) {
                let finished = matches!(chunk, Chunk::Finished { .. });
                // Whoever refuses without a word has refused the request, and may want to be paid.
                if let Chunk::Finished { finish_reason: FinishReason::Refused, usage } = chunk
                    && silent
                {
                    Err(Broken { failure: Failure::Refused, usage })?;
                }
                silent = false;
                yield chunk;
                if finished {
                    return;
                }
            }
            if ended {
                Err(broken(Failure::Cut, &reader))?;
            }
        }
    }
}

fn broken(failure: Failure, reader: &impl Reader) -> Broken {
    Broken { failure, usage: reader.counted() }
}

impl Upstream {
    /// Sends the request and returns an answer that is a stream of events.
    async fn ask(&self, call: Call) -> Result<reqwest::Response, Failure> {
        let url = format!("{}{}", self.base_url, call.path);
        let sent = self.client.post(url).body(call.body).send();
        let response = match timeout(self.idle_timeout, sent).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(unreachable(&error)),
            Err(_) => return Err(self.idle()),
        };
        let status = response.status();
        if status != StatusCode::OK {
            let headers = response.headers().clone();
            // Before it is shortened: half a credential would not be found.
            let body = timeout(self.idle_timeout, self.body(response)).await.unwrap_or_default();
            let body = self.without_credential(&String::from_utf8_lossy(&body));
            let complaint = Complaint::read(body.as_bytes());
            let problem = &complaint.message;
            warn!(provider = self.provider, %status, problem, "{} refuses a request", self.provider);
            return Err(complaint.answer(status, &headers));
        }
        let kind = response.headers().get(header::CONTENT_TYPE);
        let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if !kind.starts_with("text/event-stream") {
            let kind: String = kind.chars().take(100).collect();
            return Err(garbled(&format!(
                "it answered with {kind:?} where a stream of events was due"
            )));
        }
        Ok(response)
    }

    /// The next bytes; `None` at the end.
    async fn more(
        &self,
        response: &mut reqwest::Response,
    ) -> Result<Option<bytes::Bytes>, Failure> {
        match timeout(self.idle_timeout, response.chunk()).await {
            Ok(Ok(bytes)) => Ok(bytes),
            Ok(Err(_)) => Err(Failure::Cut),
            Err(_) => Err(self.idle()),
        }
    }

    /// As much of an error as anybody reads.
    async fn body(&self, mut response: reqwest::Response) -> Vec<u8> {
        let mut body = Vec::new();
        while let Ok(Some(bytes)) = self.more(&mut response).await {
            let room = MAX_ERROR_BYTES - body.len();
            body.extend_from_slice(&bytes[..bytes.len().min(room)]);
            if body.len() == MAX_ERROR_BYTES {
                break;
            }
        }
        body
    }

    fn idle(&self) -> Failure {
        Failure::Transient(format!("it said nothing for {:?}", self.idle_timeout))
    }

    /// The same failure without our credential in it, which some providers quote.
    fn discreet(&self, failure: Failure) -> Failure {
        match failure {
            Failure::Transient(problem) => Failure::Transient(self.without_credential(&problem)),
            Failure::Invalid(problem) => Failure::Invalid(self.without_credential(&problem)),
            other => other,
        }
    }

    fn without_credential(&self, text: &str) -> String {
        match &self.credential {
            Some(credential) => text.replace(credential.expose_secret(), "[credential]"),
            None => text.to_owned(),
        }
    }
}

/// The answer is not what the format promises. Another attempt may be.
pub fn garbled(problem: &str) -> Failure {
    Failure::Transient(problem.to_owned())
}

/// Why a request was not even answered. Without the URL, which operators know.
fn unreachable(error: &reqwest::Error) -> Failure {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    match (error.is_connect(), error.is_timeout()) {
        (true, true) => Failure::Transient("nobody answers at its address".to_owned()),
        (true, false) => Failure::Transient(format!("cannot connect to it: {cause}")),
        (false, _) => Failure::Transient(format!("the request broke off: {cause}")),
    }
}

/// Reads the JSON of an event.
pub fn parse<'a, T: serde::Deserialize<'a>>(data: &'a str) -> Result<T, Failure> {
    serde_json::from_str(data).map_err(|error| {
        // What is in the event may be anybody's words; what is wrong with it is not.
        let category = match error.classify() {
            serde_json::error::Category::Data => "of another shape than expected",
            _ => "not JSON",
        };
        garbled(&format!("an event of its answer is {category}"))
    })
}
