use std::{str::FromStr as _, time::Duration};

use anyhow::Context as _;
use tonic::{
    Request,
    metadata::MetadataValue,
    transport::{Channel, Endpoint},
};

use crate::{Auth, Caller, request_id, telemetry, tls};

const CONNECT: Duration = Duration::from_secs(2);

/// Notices within 30 seconds that the other side is gone without having said so.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(20);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Another of our services, and the way to call it in somebody's name.
#[derive(Clone)]
pub struct Peer {
    service: &'static str,
    channel: Channel,
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
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .keep_alive_while_idle(true);
        if endpoint.uri().scheme_str() == Some("https") {
            endpoint = endpoint.tls_config(tls.client()?)?;
        }
        Ok(Peer { service, channel: endpoint.connect_lazy(), auth: auth.clone() })
    }

    /// What generated clients are made from.
    pub fn channel(&self) -> Channel {
        self.channel.clone()
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
}

fn ascii(text: &str) -> MetadataValue<tonic::metadata::Ascii> {
    MetadataValue::from_str(text).expect("tokens and ids are plain ASCII")
}
