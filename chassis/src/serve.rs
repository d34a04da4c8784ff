//! Serving: everything between the socket and a service's own code.

mod calls;
mod call;
mod body;
mod end;
mod finish;
mod limits;
mod weight;
mod metrics;
mod health;
mod ops;
mod names;
mod transport;
mod connection;

use std::{net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use futures::TryStreamExt as _;
use sqlx::PgPool;
use tokio::{net::TcpListener, time::timeout};
use tokio_util::sync::CancellationToken;
use tonic::{service::Routes, transport::server::TcpIncoming};
use tracing::{info, warn};

pub use end::{deadline_exceeded, stopping, time_left};

use crate::{Auth, Redis, args::seconds};
use connection::Connection;
use health::Health;

#[derive(Debug, Clone, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Address of the HTTP endpoint with /metrics (Prometheus) and /health (JSON). Unset: there is none.
    #[arg(long, env)]
    pub metrics_listen: Option<SocketAddr>,

    /// Seconds that calls in flight may take to finish once the process is told to stop;
    /// `terminationGracePeriodSeconds` must be longer.
    #[arg(long, env, default_value = "20", value_parser = seconds)]
    pub drain: Duration,

    /// Largest message to accept or send.
    #[arg(long, env, default_value_t = 4 * 1024 * 1024)]
    pub max_message_bytes: usize,

    /// How many calls may wait for their answer to begin before further ones are refused; one tenant
    /// may have three quarters of them.
    #[arg(long, env, default_value_t = 1024)]
    pub max_requests: usize,

    /// How many bytes of requests may be held at a time, of each what is beyond 64 KiB, before further
    /// ones are refused; one tenant may have three quarters of them. A process needs some three times
    /// as much memory.
    #[arg(long, env, default_value_t = 128 * 1024 * 1024)]
    pub max_request_bytes: usize,

    /// How many calls may be open, streams included, before further ones are refused; one tenant may
    /// have three quarters of them.
    #[arg(long, env, default_value_t = 16384)]
    pub max_streams: usize,

    /// Whether to tell callers which services and messages there are.
    #[arg(long, env, default_value_t = true, action = clap::ArgAction::Set)]
    pub reflection: bool,
}

/// How long calls that were cut off at the end of the drain have to say so.
const FAREWELL: Duration = Duration::from_secs(1);

/// A service on its chassis: authenticated, observed, bounded, and stoppable.
pub struct Server {
    service: &'static str,
    args: crate::Args,
    auth: Auth,
    health: Health,
}

impl Server {
    pub fn new(service: &'static str, args: &crate::Args, db: &PgPool, auth: Auth) -> Server {
        let health = Health::new(service, db);
        Server { service, args: args.clone(), auth, health }
    }

    /// Watches `redis` too. The service is degraded without it, and serves.
    pub fn redis(mut self, redis: &Redis) -> Server {
        self.health.redis = Some(redis.clone());
        self
    }

    /// Shows what `detail` returns under `name` in `/health`.
    pub fn detail(
        mut self,
        name: &'static str,
        detail: impl Fn() -> serde_json::Value + Send + Sync + 'static,
    ) -> Server {
        self.health.details.push((name, Box::new(detail)));
        self
    }

    /// Serves `routes` on `listener` until `stop`, then lets calls in flight finish.
    ///
    /// `main` passes a configured port and [`crate::stop_signal`]; tests pass port 0 and
    /// a token of their own. Streams that never end by themselves watch `stop` too, or
    /// they are cut off at the end of the drain.
    pub async fn serve(
        self,
        listener: TcpListener,
        routes: Routes,
        stop: CancellationToken,
    ) -> anyhow::Result<()> {
        let args = &self.args.server;
        let health = Arc::new(self.health);
        let draining = CancellationToken::new();
        let cut = CancellationToken::new();
        let done = CancellationToken::new();
        let _done = done.clone().drop_guard();

        let (reporter, health_service) = tonic_health::server::health_reporter();
        health.observe();
        self.args.tls.observe()?;
        health.check().await;
        health.report(&reporter).await;
        let watch = health.clone().watch(reporter, stop.clone(), draining.clone());
        tokio::spawn(done.clone().run_until_cancelled_owned(watch));
        if let Some(address) = args.metrics_listen {
            ops::serve(address, health, done).await?;
        }

        let calls = calls::Calls::new(self.auth, args, cut.clone(), draining);
        let mut router = transport::new(&self.args.tls)?
            .layer(calls)
            .add_routes(routes)
            .add_service(health_service);
        if args.reflection {
            router = router
                .add_service(names::reflection(self.service).build_v1()?)
                .add_service(names::reflection(self.service).build_v1alpha()?);
        }

        info!(service = self.service, address = %listener.local_addr()?, "serving");
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let incoming = incoming.map_ok(Connection::new);
        let mut server =
            pin!(router.serve_with_incoming_shutdown(incoming, stop.clone().cancelled_owned()));
        tokio::select! {
            result = &mut server => return Ok(result?),
            () = stop.cancelled() => info!(service = self.service, "draining"),
        }
        if let Ok(result) = timeout(args.drain, &mut server).await {
            return Ok(result?);
        }
        warn!(service = self.service, drain = ?args.drain, "calls still in flight, cutting them off");
        cut.cancel();
        match timeout(FAREWELL, server).await {
            Ok(result) => Ok(result?),
            Err(_) => Ok(()),
        }
    }
}

/// Gives a generated server the message limits and the compression of all others:
/// `chassis::service!(SessionServiceServer::new(api), &config.chassis)`.
#[macro_export]
macro_rules! service {
    ($server:expr, $args:expr) => {
        $server
            .max_decoding_message_size($args.server.max_message_bytes)
            .max_encoding_message_size($args.server.max_message_bytes)
            .accept_compressed($crate::reexport::Gzip)
            .send_compressed($crate::reexport::Gzip)
    };
}

/// Gives a generated client the message limits of the servers it calls:
/// `chassis::client!(ModelsServiceClient::new(peer.channel()), &config.chassis)`.
#[macro_export]
macro_rules! client {
    ($client:expr, $args:expr) => {
        $client
            .max_decoding_message_size($args.server.max_message_bytes)
            .max_encoding_message_size($args.server.max_message_bytes)
            .accept_compressed($crate::reexport::Gzip)
    };
}
