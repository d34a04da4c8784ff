//! A server to try things on, and the verbs to try them with.

use std::time::Duration;

use chassis::{
    Args, Auth, Redis, Server, Tenant,
    auth::{Scopes, keys},
};
use clap::Parser as _;
use proto::models::v1::{
    ListModelsRequest, ListModelsResponse, model_service_client::ModelServiceClient,
};
use secrecy::ExposeSecret as _;
use sqlx::PgPool;
use tokio::{net::TcpListener, task::JoinHandle, time::sleep};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, transport::Channel};
use tonic_types::StatusExt as _;

use crate::probe::{self, Held};

pub const SECRET: &str = "0123456789abcdef0123456789abcdef";

#[derive(clap::Parser)]
#[command(args_override_self = true)]
struct Config {
    #[command(flatten)]
    chassis: Args,
}

/// The configuration of a service with these flags.
pub fn args(flags: &[&str]) -> Args {
    let needed = ["rig", "--database-url=unused", "--redis-url=redis://127.0.0.1:1"];
    let secret = format!("--auth-internal-secret={SECRET}");
    let all = needed.into_iter().chain([secret.as_str()]).chain(flags.iter().copied());
    Config::try_parse_from(all).unwrap().chassis
}

pub struct Rig {
    pub url: String,
    pub db: PgPool,
    pub auth: Auth,
    pub args: Args,
    pub held: Held,
    pub stop: CancellationToken,
    pub server: JoinHandle<anyhow::Result<()>>,
}

impl Rig {
    pub async fn start(db: PgPool) -> Rig {
        Rig::with(db, args(&[])).await
    }

    pub async fn with(db: PgPool, args: Args) -> Rig {
        Rig::with_redis(db, args, None).await
    }

    pub async fn with_redis(db: PgPool, args: Args, redis: Option<Redis>) -> Rig {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let auth = Auth::new("models", &args.auth, db.clone()).await.unwrap();
        let stop = CancellationToken::new();
        let mut server = Server::new("models", &args, &db, auth.clone())
            .detail("colour", || serde_json::json!("blue"));
        if let Some(redis) = &redis {
            server = server.redis(redis);
        }
        let held = Held::default();
        let routes = probe::routes(&args, held.clone(), stop.clone());
        let server = tokio::spawn(server.serve(listener, routes, stop.clone()));
        Rig { url, db, auth, args, held, stop, server }
    }

    pub fn channel(&self) -> Channel {
        Channel::from_shared(self.url.clone()).unwrap().connect_lazy()
    }

    pub fn models(&self) -> ModelServiceClient<Channel> {
        ModelServiceClient::new(self.channel())
    }

    /// Makes an API key of the tenant `acme`.
    pub async fn key(&self, scopes: &[&str]) -> (keys::KeyId, String) {
        self.key_of(acme(), scopes).await
    }

    pub async fn key_of(&self, tenant: Tenant, scopes: &[&str]) -> (keys::KeyId, String) {
        let new = keys::NewKey {
            tenant,
            subject: "ada".to_owned(),
            name: "laptop".to_owned(),
            scopes: Scopes::from_names(scopes.iter().copied()),
            expires_at: None,
        };
        let (key, text) = keys::create(&self.db, new).await.unwrap();
        (key.id, text.expose_secret().to_owned())
    }

    /// Calls an RPC that needs the scope `read`.
    pub async fn list(&self, credential: &str) -> Result<Response<ListModelsResponse>, Status> {
        self.models().list_models(bearer(credential, ListModelsRequest::default())).await
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

pub fn acme() -> Tenant {
    "acme".parse().unwrap()
}

pub fn bearer<T>(credential: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", format!("Bearer {credential}").parse().unwrap());
    request
}

/// A failure on one line, for snapshots.
pub fn explain(status: &Status) -> String {
    let details = status.get_error_details();
    let (reason, metadata) = match details.error_info() {
        Some(info) => (info.reason.as_str(), format!("{:?}", info.metadata)),
        None => ("no reason", String::new()),
    };
    assert!(details.request_info().is_some(), "no request id: {status:?}");
    format!("{:?} {reason} {metadata}: {}", status.code(), status.message())
}

/// A port for a server that does not say which one it took.
pub async fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port()
}

/// Waits until `condition` holds, for at most ten seconds.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    for _ in 0..200 {
        if condition().await {
            return;
        }
        sleep(Duration::from_millis(50)).await;
    }
    panic!("never: {what}");
}
