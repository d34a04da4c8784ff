use std::sync::Arc;

use proto::tools::v1::{self as pb, policy_service_server::PolicyService};
use sqlx::PgPool;
use tonic::{Request, Response, Status};

use super::mcp_servers;
use crate::{error::Result, mcp::Servers};

pub struct Api {
    pub db: PgPool,
    pub servers: Arc<Servers>,
}

#[tonic::async_trait]
impl PolicyService for Api {
    async fn put_mcp_server(
        &self,
        request: Request<pb::PutMcpServerRequest>,
    ) -> Result<Response<pb::PutMcpServerResponse>, Status> {
        let tenant = chassis::caller(&request)?.tenant;
        let answer = mcp_servers::put(&self.db, &self.servers, &tenant, request.into_inner());
        Ok(Response::new(answer.await?))
    }

    async fn list_mcp_servers(
        &self,
        request: Request<pb::ListMcpServersRequest>,
    ) -> Result<Response<pb::ListMcpServersResponse>, Status> {
        let tenant = chassis::caller(&request)?.tenant;
        let answer = mcp_servers::list(&self.db, &self.servers, &tenant, request.into_inner());
        Ok(Response::new(answer.await?))
    }

    async fn delete_mcp_server(
        &self,
        request: Request<pb::DeleteMcpServerRequest>,
    ) -> Result<Response<pb::DeleteMcpServerResponse>, Status> {
        let tenant = chassis::caller(&request)?.tenant;
        let answer = mcp_servers::delete(&self.db, &self.servers, &tenant, request.into_inner());
        Ok(Response::new(answer.await?))
    }
}
