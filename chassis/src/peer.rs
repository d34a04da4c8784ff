mod resolve;

use std::{
    future::ready,
    str::FromStr as _,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use anyhow::Context as _;
use futures::{Stream, StreamExt as _};
use http::HeaderName;
use hyper_util::client::legacy::connect::HttpConnector;
use tokio::time::timeout;
use tonic::{
    Code, Request, Status,
    metadata::MetadataValue,
    transport::{Channel, Endpoint},
};
use tonic_types::StatusExt as _;
use tower::ServiceExt as _;

use crate::{Auth, Caller, request_id, telemetry, tls, together::Together};

const CONNECT: Duration = Duration::from_secs(2);

/// Notices within 30 seconds that the other side is gone without having said so.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the end of a stream may take that has nothing more to say.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// How many connections calls are spread over. Each goes to the next replica.
const CONNECTIONS: usize = 4;

/// Says which replica passed a call on, in the name of whoever made it. From anybody else it means
/// nothing.
pub const FORWARDED: HeaderName = HeaderName::from_static("x-windlass-forwarded");

/// Enough for large messages to flow without waiting for permission.
const STREAM_WINDOW_BYTES: u32 = 1024 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;

/// Another of our services, and the way to call it in somebody's name.
#[derive(Clone)]
pub struct Peer {
    service: &'static str,
    channels: Arc<[Channel; CONNECTIONS]>,
    next: Arc<AtomicUsize>,
    auth: Auth,
}

impl Peer {
    /// Connects on first use and again whenever the connection is lost. Must be
    /// called inside a tokio runtime.
    pub fn new(
        service: &'static str,
        url: &str,
        tls: &tls::Args,
        auth: &Auth,
    ) -> anyhow::Result<Peer> {
        let mut endpoint = Endpoint::from_shared(url.to_owned())
            .with_context(|| format!("{url} is not the URL of {service}"))?
            .connect_timeout(CONNECT)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .keep_alive_while_idle(true);
        if endpoint.uri().scheme_str() == Some("https") {
            endpoint = endpoint.tls_config(tls.client()?)?;
        }
        let mut connector = HttpConnector::new_with_resolver(resolve::InTurn::new());
        connector.enforce_http(false);
        connector.set_nodelay(true);
        let connector = connector.map_response(Together::new);
        let channel = |_| endpoint.connect_with_connector_lazy(connector.clone());
        let channels = Arc::new(std::array::from_fn(channel));
        Ok(Peer { service, channels, next: Arc::default(), auth: auth.clone() })
    }

    /// What generated clients are made from. Take one for each call, and the calls are
    /// spread over the replicas of the other service.
    pub fn channel(&self) -> Channel {
        self.channels[self.next.fetch_add(1, Relaxed) % CONNECTIONS].clone()
    }

    /// A call in `caller`'s name: vouched for, and part of the current trace and request.
    /// `Request::set_timeout` gives it a deadline, which the other side honours.
    pub fn request<T>(&self, caller: &Caller, message: T) -> Request<T> {
        let mut request = Request::new(message);
        let metadata = request.metadata_mut();
        let token = format!("Bearer {}", self.auth.vouch(self.service, caller));
        metadata.insert("authorization", ascii(&token));
        if let Some(id) = request_id() {
            metadata.insert("x-request-id", ascii(id.as_str()));
        }
        if let Some(parent) = telemetry::traceparent() {
            metadata.insert(telemetry::TRACEPARENT, ascii(&parent));
        }
        request
    }

    /// A [`Peer::request`] that must end within `timeout`.
    pub fn request_within<T>(&self, timeout: Duration, caller: &Caller, message: T) -> Request<T> {
        let mut request = self.request(caller, message);
        request.set_timeout(timeout);
        request
    }

    /// What to tell our own caller when the peer failed: its reason, if it gave one, and
    /// else that it does not answer. Its headers stay with us.
    pub fn failed(&self, status: &Status) -> Status {
        if status.get_details_error_info().is_some() {
            let details = status.details().to_vec().into();
            return Status::with_details(status.code(), status.message(), details);
        }
        tracing::warn!(peer = self.service, %status, "{} does not answer", self.service);
        match status.code() {
            // The second is how our own end of the connection says it.
            Code::DeadlineExceeded | Code::Cancelled => crate::serve::deadline_exceeded(),
            _ => crate::unavailable(self.service, crate::status::RETRY),
        }
    }
}

/// Hears out a stream that has said everything.
///
/// Who drops one before its end resets it, and a connection with many resets is hung up on,
/// together with every other call that is on it.
pub fn hear_out<T>(stream: impl Stream<Item = T> + Send + 'static) {
    tokio::spawn(timeout(LAST_WORDS, stream.for_each(|_| ready(()))));
}

fn ascii(text: &str) -> MetadataValue<tonic::metadata::Ascii> {
    MetadataValue::from_str(text).expect("tokens and ids are plain ASCII")
}
