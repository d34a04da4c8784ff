//! How the world reaches sessions. All the gRPC.

mod actions;
mod admin;
mod agents;
mod benchmarks;
mod check;
mod compaction;
mod convert;
mod evidence;
mod export;
mod files;
mod import;
mod jobs;
mod keys;
mod memories;
mod outgoing;
mod queue;
mod sessions;
mod snapshot;
mod streams;
mod tasks;
mod subagents;
mod turns;
mod verify;

use std::sync::Arc;

use chassis::Places;
use proto::{
    event::v1::RareIds,
    session::v1::{
        agent_service_server::AgentServiceServer, benchmark_service_server::BenchmarkServiceServer,
        evidence_service_server::EvidenceServiceServer, job_service_server::JobServiceServer,
        key_service_server::KeyServiceServer, memory_service_server::MemoryServiceServer,
        session_service_server::SessionServiceServer, stream_service_server::StreamServiceServer,
        subagent_service_server::SubagentServiceServer, task_service_server::TaskServiceServer,
        turn_service_server::TurnServiceServer,
    },
};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use crate::{
    host::Host,
    hub::Hub,
    ids::ReplicaId,
    lifecycle::Lifecycle,
    store::turns::{Stamp, Trace},
};

/// What takes a connection for long, or memory of which a caller chooses how much.
struct Rooms {
    exports: Places,
    imports: Places,
    checks: Places,
}

/// Every call reads the same way: decode, check, load or store, encode.
#[derive(Clone)]
struct Api {
    host: Arc<Host>,
    hub: Hub,
    lifecycle: Lifecycle,
    rooms: Arc<Rooms>,
    stop: CancellationToken,
}

pub fn routes(host: Arc<Host>, hub: Hub, lifecycle: Lifecycle, stop: CancellationToken) -> Routes {
    let args = host.config.chassis.clone();
    let rooms = Arc::new(Rooms {
        exports: Places::new(4, 2),
        imports: Places::new(8, 2),
        checks: Places::new(4, 2),
    });
    let api = Api { host, hub, lifecycle, rooms, stop };
    Routes::new(chassis::service!(SessionServiceServer::new(api.clone()), args))
        .add_service(chassis::service!(TurnServiceServer::new(api.clone()), args))
        .add_service(chassis::service!(StreamServiceServer::new(api.clone()), args))
        .add_service(chassis::service!(AgentServiceServer::new(api.clone()), args))
        .add_service(chassis::service!(SubagentServiceServer::new(api.clone()), args))
        .add_service(chassis::service!(MemoryServiceServer::new(api.clone()), args))
        .add_service(chassis::service!(TaskServiceServer::new(api.clone()), args))
        .add_service(chassis::service!(JobServiceServer::new(api.clone()), args))
        .add_service(chassis::service!(BenchmarkServiceServer::new(api.clone()), args))
        .add_service(chassis::service!(EvidenceServiceServer::new(api.clone()), args))
        .add_service(chassis::service!(KeyServiceServer::new(api), args))
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
