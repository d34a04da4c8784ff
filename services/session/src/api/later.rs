use proto::session::v1::{
    benchmark_service_server::{BenchmarkService, BenchmarkServiceServer},
    evidence_service_server::{EvidenceService, EvidenceServiceServer},
    job_service_server::{JobService, JobServiceServer},
    subagent_service_server::{SubagentService, SubagentServiceServer},
    task_service_server::{TaskService, TaskServiceServer},
};
use tonic::service::Routes;

/// In the contract and not in this version: every call says so.
struct Later;

impl BenchmarkService for Later {}
impl EvidenceService for Later {}
impl JobService for Later {}
impl SubagentService for Later {}
impl TaskService for Later {}

pub fn add(routes: Routes, args: &chassis::Args) -> Routes {
    routes
        .add_service(chassis::service!(BenchmarkServiceServer::new(Later), args))
        .add_service(chassis::service!(EvidenceServiceServer::new(Later), args))
        .add_service(chassis::service!(JobServiceServer::new(Later), args))
        .add_service(chassis::service!(SubagentServiceServer::new(Later), args))
        .add_service(chassis::service!(TaskServiceServer::new(Later), args))
}
