//! How the world reaches sessions. All the gRPC.

mod actions;
mod admin;
mod agents;
mod check;
mod compaction;
mod convert;
mod export;
mod files;
mod import;
mod keys;
mod later;
mod memories;
mod queue;
mod sessions;
mod snapshot;
mod streams;
mod turns;
mod verify;

use std::sync::Arc;

use proto::{
    event::v1::RareIds,
    session::v1::{
        agent_service_server::AgentServiceServer, key_service_server::KeyServiceServer,
        memory_service_server::MemoryServiceServer, session_service_server::SessionServiceServer,
        stream_service_server::StreamServiceServer, turn_service_server::TurnServiceServer,
    },
};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use crate::{
    host::Host,
    hub::Hub,
    ids::ReplicaId,
    lifecycle::Lifecycle,
    store::turns::{Stamp, Trace},
};

/// Every call reads the same way: decode, check, load or store, encode.
#[derive(Clone)]
struct Api {
    host: Arc<Host>,
    hub: Hub,
    lifecycle: Lifecycle,
    exports: Arc<Semaphore>,
    stop: CancellationToken,
}

pub fn routes(host: Arc<Host>, hub: Hub, lifecycle: Lifecycle, stop: CancellationToken) -> Routes {
    let args = host.config.chassis.clone();
    let api = Api { host, hub, lifecycle, exports: export::places(), stop };
    let routes = Routes::new(chassis::service!(SessionServiceServer::new(api.clone()), args))
        .add_service(chassis::service!(TurnServiceServer::new(api.clone()), args))
        .add_service(chassis::service!(StreamServiceServer::new(api.clone()), args))
        .add_service(chassis::service!(AgentServiceServer::new(api.clone()), args))
        .add_service(chassis::service!(MemoryServiceServer::new(api.clone()), args))
        .add_service(chassis::service!(KeyServiceServer::new(api), args));
    later::add(routes, &args)
}

/// Who writes the events of the current call.
fn stamp(replica: ReplicaId) -> Stamp {
    Stamp {
        runtime_id: replica,
        trace: Trace::current(),
        ids: RareIds {
            request_id: chassis::request_id().map(|id| id.as_str().to_owned()).unwrap_or_default(),
            ..RareIds::default()
        },
    }
}
