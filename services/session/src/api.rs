//! How the world reaches sessions. All the gRPC.

mod agents;
mod check;
mod convert;
mod keys;
mod later;
mod sessions;
mod snapshot;
mod streams;
mod turns;

use std::sync::Arc;

use proto::{
    event::v1::RareIds,
    session::v1::{
        agent_service_server::AgentServiceServer, key_service_server::KeyServiceServer,
        session_service_server::SessionServiceServer, stream_service_server::StreamServiceServer,
        turn_service_server::TurnServiceServer,
    },
};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use crate::{
    host::Host,
    hub::Hub,
    ids::ReplicaId,
    store::turns::{Stamp, Trace},
};

/// Every call reads the same way: decode, check, load or store, encode.
#[derive(Clone)]
struct Api {
    host: Arc<Host>,
    hub: Hub,
    stop: CancellationToken,
}

pub fn routes(host: Arc<Host>, hub: Hub, stop: CancellationToken) -> Routes {
    let args = host.config.chassis.clone();
    let api = Api { host, hub, stop };
    let routes = Routes::new(chassis::service!(SessionServiceServer::new(api.clone()), args))
        .add_service(chassis::service!(TurnServiceServer::new(api.clone()), args))
        .add_service(chassis::service!(StreamServiceServer::new(api.clone()), args))
        .add_service(chassis::service!(AgentServiceServer::new(api.clone()), args))
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
