//! How the world outside fires triggers: webhooks and API triggers. All the HTTP.
//!
//! A request is believed before anything else happens, and answered once it is safe in the database.

mod answer;
mod api;
mod body;
mod door;
mod encryption;
mod floods;
mod known;
mod listen;
mod webhook;

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context as _;
use axum::{Router, extract::DefaultBodyLimit, routing::post};
use chassis::{Places, Tenant};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub use known::Known;

use crate::{
    error::Error,
    fire::Fire,
    firing::{Drop, Occasion},
    ids::TriggerId,
};
use answer::{Answer, Refusal};
use door::Door;
use floods::Floods;
use known::Receiver;

/// Where webhooks and API triggers are received.
const WEBHOOKS: &str = "/v1/webhooks";
const TRIGGERS: &str = "/v1/triggers";

#[derive(Debug, Clone, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Address to receive webhooks and API triggers on.
    #[arg(long, env, default_value = "[::]:50055")]
    pub http_listen: SocketAddr,

    /// How HTTP_LISTEN is reached from outside, for the URLs that senders are given. Unset: http
    /// and localhost, which is right for trying things out.
    #[arg(long, env)]
    pub public_url: Option<String>,

    /// Certificate chain (PEM) to serve HTTP_LISTEN with. Unset: no TLS, for an ingress in front.
    #[arg(long, env, requires = "http_tls_key")]
    pub http_tls_cert: Option<PathBuf>,

    /// Private key (PEM) of HTTP_TLS_CERT.
    #[arg(long, env, requires = "http_tls_cert")]
    pub http_tls_key: Option<PathBuf>,

    /// Largest request to accept over HTTP, in bytes.
    #[arg(long, env, default_value_t = 1024 * 1024, value_parser = clap::value_parser!(u64).range(1..=8 * 1024 * 1024))]
    pub http_max_bytes: u64,

    /// How many requests may be under way over HTTP before further ones are refused; a third of them for
    /// one tenant.
    #[arg(long, env, default_value_t = 1024)]
    pub http_max_requests: usize,

    /// File with the keys that secrets of webhooks are sealed with in the database: 32 bytes as
    /// base64 on each line, the newest first. Unset: there are no webhooks.
    #[arg(long, env)]
    pub secrets_key_file: Option<PathBuf>,
}

impl Args {
    /// Where a webhook is posted to.
    pub fn webhook_url(&self, id: TriggerId) -> String {
        format!("{}{WEBHOOKS}/{id}", self.base())
    }

    /// Where an API trigger is fired.
    pub fn api_url(&self, id: TriggerId) -> String {
        format!("{}{TRIGGERS}/{id}", self.base())
    }

    fn base(&self) -> String {
        match &self.public_url {
            Some(url) => url.trim_end_matches('/').to_owned(),
            None => format!("http://localhost:{}", self.http_listen.port()),
        }
    }
}

/// What requests are answered with.
pub struct Http {
    door: Door,
    fire: Fire,
    floods: Floods,
    max_bytes: usize,
    bodies: Rooms,
}

/// For requests, and for their bodies. Shared by tenants, and by requests for triggers that nobody has:
/// anybody can send those, and any sender can be slow.
type Rooms = Places<Option<Tenant>>;

impl Http {
    pub fn new(args: &Args, known: Known, fire: Fire) -> Http {
        Http {
            door: Door { known, room: a_third(args.http_max_requests) },
            fire,
            floods: Floods::default(),
            max_bytes: usize::try_from(args.http_max_bytes).unwrap_or(usize::MAX),
            bodies: a_third(body::ROOM),
        }
    }
}

/// For each owner, so that two of them leave room for others.
fn a_third(most: usize) -> Rooms {
    Places::new(most, most.div_ceil(3))
}

/// Takes the port and answers until `stop`, and then what is under way for up to `drain`.
pub async fn start(
    args: &Args,
    http: Http,
    drain: Duration,
    stop: CancellationToken,
) -> anyhow::Result<tokio::task::JoinHandle<()>> {
    let address = args.http_listen;
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("cannot listen on HTTP_LISTEN {address}"))?;
    let tls = match (&args.http_tls_cert, &args.http_tls_key) {
        (Some(cert), Some(key)) => Some(encryption::acceptor(cert, key)?),
        _ => None,
    };
    info!(address = %listener.local_addr()?, tls = tls.is_some(), "receiving webhooks");
    let router = Router::new()
        .route(&format!("{WEBHOOKS}/{{trigger_id}}"), post(webhook::receive))
        .route(&format!("{TRIGGERS}/{{trigger_id}}"), post(api::receive))
        .fallback(answer::nothing_here)
        .layer(DefaultBodyLimit::disable())
        .with_state(Arc::new(http));
    Ok(tokio::spawn(listen::run(listener, tls, router, drain, stop)))
}

impl Http {
    /// Fires what was received and believed, and answers when it is safe.
    async fn accept(&self, receiver: &Receiver, occasion: Occasion) -> Answer {
        let (id, now) = (receiver.trigger.id, occasion.fired_at);
        if self.floods.is_on(id, now) {
            return Refusal::flooded(now).into();
        }
        match self.fire.accept(&receiver.trigger, occasion).await {
            Ok(receipt) => {
                if receipt.drop == Some(Drop::Throttled) {
                    self.floods.count(id, now);
                }
                Answer::of(receipt, now)
            }
            Err(Error::Stopping) => Refusal::Busy.into(),
            Err(error) => {
                warn!(%error, trigger.id = %id, "a delivery for trigger {id} cannot be stored");
                Refusal::Busy.into()
            }
        }
    }
}
