//! How the world reaches triggers. All the gRPC.

mod check;
mod convert;
mod history;
mod triggers;
mod wakeups;

use std::sync::Arc;

use proto::triggers::v1::{
    trigger_service_server::TriggerServiceServer, wakeup_service_server::WakeupServiceServer,
};
use sqlx::PgPool;
use tokio::sync::Notify;
use tonic::service::Routes;

use crate::{
    config::Config, credential::Credentials, fire::Fire, http, mcp::Tools, sessions::Sessions,
};

/// Every call reads the same way: decode, check, load or store, encode.
#[derive(Clone)]
struct Api {
    db: PgPool,
    fire: Fire,
    sessions: Sessions,
    tools: Tools,
    credentials: Credentials,

    /// Where webhooks and API triggers are received.
    http: http::Args,

    /// Wakes the scheduler: something may be due earlier than it thinks.
    poke: Arc<Notify>,
}

pub fn routes(
    config: &Config,
    db: PgPool,
    fire: Fire,
    sessions: Sessions,
    tools: Tools,
    credentials: Credentials,
    poke: Arc<Notify>,
) -> Routes {
    let api = Api { db, fire, sessions, tools, credentials, http: config.http.clone(), poke };
    let args = &config.chassis;
    Routes::new(chassis::service!(TriggerServiceServer::new(api.clone()), args))
        .add_service(chassis::service!(WakeupServiceServer::new(api), args))
}
