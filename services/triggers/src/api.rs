//! How the world reaches triggers. All the gRPC.

use proto::triggers::v1::{
    trigger_service_server::{TriggerService, TriggerServiceServer},
    wakeup_service_server::{WakeupService, WakeupServiceServer},
};
use tonic::service::Routes;

pub fn routes(chassis: &chassis::Args) -> Routes {
    Routes::new(chassis::service!(TriggerServiceServer::new(Later), chassis))
        .add_service(chassis::service!(WakeupServiceServer::new(Later), chassis))
}

/// In the contract and not in this version: every call says so.
struct Later;

impl TriggerService for Later {}
impl WakeupService for Later {}
