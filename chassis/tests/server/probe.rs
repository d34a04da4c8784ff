//! A service that tells what it saw, and misbehaves on request.

use std::{future::pending, sync::Arc};

use chassis::{Args, caller, request_id};
use futures::{StreamExt as _, stream};
use proto::models::v1::{
    CountTokensRequest, CountTokensResponse, GenerateRequest, GenerateResponse, ListModelsRequest,
    ListModelsResponse,
    model_service_server::{ModelService, ModelServiceServer},
};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, codegen::BoxStream, service::Routes};

struct Probe {
    held: Held,
    stop: CancellationToken,
}

/// A call that lasts for as long as a test says, however slow the machine is.
#[derive(Clone, Default)]
pub struct Held {
    pub arrived: Arc<Notify>,
    pub go_on: Arc<Notify>,
}

pub fn routes(args: &Args, held: Held, stop: CancellationToken) -> Routes {
    Routes::new(chassis::service!(ModelServiceServer::new(Probe { held, stop }), args))
}

#[tonic::async_trait]
impl ModelService for Probe {
    /// Says who called.
    async fn list_models(
        &self,
        request: Request<ListModelsRequest>,
    ) -> Result<Response<ListModelsResponse>, Status> {
        let caller = caller(&request)?;
        assert_eq!(request_id().as_ref(), request.extensions().get(), "one id everywhere");
        let seen =
            format!("{} {} {:?} {:?}", caller.tenant, caller.subject, caller.kind, caller.scopes);
        Ok(Response::new(ListModelsResponse { models: vec![], next_page_token: seen }))
    }

    async fn count_tokens(
        &self,
        request: Request<CountTokensRequest>,
    ) -> Result<Response<CountTokensResponse>, Status> {
        match request.into_inner().model.as_str() {
            "never" => pending().await,
            "held" => {
                self.held.arrived.notify_one();
                self.held.go_on.notified().await;
            }
            "panic" => panic!("as asked"),
            "bug" => return Err(Status::internal("select secret from table")),
            "pool" => return Err(chassis::database_error(&sqlx::Error::PoolTimedOut)),
            "row" => return Err(chassis::database_error(&sqlx::Error::RowNotFound)),
            "invalid" => return Err(chassis::invalid("model", "expected provider/model")),
            _ => (),
        }
        Ok(Response::new(CountTokensResponse::default()))
    }

    /// One item, and then nothing until the server stops; `deaf` does not even notice that.
    async fn generate(
        &self,
        request: Request<GenerateRequest>,
    ) -> Result<Response<BoxStream<GenerateResponse>>, Status> {
        let how = request.into_inner().session_id;
        let stop = self.stop.clone();
        let rest = async move {
            // Lets the first item leave before anything goes wrong.
            tokio::task::yield_now().await;
            match how.as_str() {
                "deaf" => pending().await,
                "panic" => panic!("as asked"),
                _ => stop.cancelled().await,
            }
        };
        let first = stream::iter([Ok(GenerateResponse::default())]);
        let rest = stream::once(rest).filter_map(async |()| None);
        Ok(Response::new(first.chain(rest).boxed()))
    }
}
