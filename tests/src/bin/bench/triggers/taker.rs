//! Somebody who only says of turns that they are there, so that what is measured is the triggers
//! service and its Postgres: turns are measured elsewhere.

use anyhow::Result;
use local::{Fleet, Plan, Service};
use proto::session::v1::{
    SubmitTurnRequest, SubmitTurnResponse, Turn,
    turn_service_server::{TurnService, TurnServiceServer},
};
use tokio::net::TcpListener;
use tonic::{Request, Response, Status, transport::server::TcpIncoming};

struct Taker;

#[tonic::async_trait]
impl TurnService for Taker {
    async fn submit_turn(
        &self,
        request: Request<SubmitTurnRequest>,
    ) -> Result<Response<SubmitTurnResponse>, Status> {
        let turn_id = request.into_inner().request_id;
        let turn = Some(Turn { turn_id, ..Turn::default() });
        Ok(Response::new(SubmitTurnResponse { turn, sequence: 1 }))
    }
}

/// A system whose triggers submit their turns to one, as many as there are.
pub async fn plan() -> Result<Plan> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = tonic::transport::Server::builder()
        .add_service(TurnServiceServer::new(Taker))
        .serve_with_incoming(TcpIncoming::from(listener));
    tokio::spawn(server);
    let plan = Fleet::plan().detour(Service::Triggers, 0, "SESSION_URL", address);
    Ok(plan.env_of(Service::Triggers, "DAILY_QUOTA", "1000000000"))
}
