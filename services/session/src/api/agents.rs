use proto::session::v1::{self as pb, agent_service_server::AgentService};
use tonic::{Request, Response, Status};

use super::{Api, check, convert};
use crate::{
    agent::{self, Agent},
    error::{Error, Result},
    store::{self, agents::Stored},
};

#[tonic::async_trait]
impl AgentService for Api {
    async fn put_agent(
        &self,
        request: Request<pb::PutAgentRequest>,
    ) -> Result<Response<pb::PutAgentResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        let id = check::agent_id("agent", &request.agent)?
            .ok_or_else(|| check::invalid("agent", "is missing"))?;
        let manifest = request.manifest.unwrap_or_default();
        agent::check(&manifest)
            .map_err(|agent::Invalid { field, problem }| Error::AgentInvalid { field, problem })?;
        let digest = agent::digest(&manifest);
        let stored =
            store::agents::put(&self.host.db, &caller.tenant, id, &manifest, &digest).await?;
        self.host.forget_agent(&caller.tenant, id).await;
        Ok(Response::new(pb::PutAgentResponse { agent: Some(encode(stored)) }))
    }

    async fn get_agent(
        &self,
        request: Request<pb::GetAgentRequest>,
    ) -> Result<Response<pb::GetAgentResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        let id = check::agent_id("agent", &request.agent)?
            .ok_or_else(|| check::invalid("agent", "is missing"))?;
        let stored = store::agents::get(&self.host.db, &caller.tenant, id, request.version).await?;
        let agent = match (stored, Agent::built_in(id)) {
            (Some(stored), _) => encode(stored),
            (None, Some(built_in)) if request.version == 0 => pb::Agent {
                agent: built_in.id,
                version: built_in.version,
                manifest: Some(built_in.manifest),
                create_time: None,
                built_in: true,
            },
            _ => return Err(Error::AgentNotFound(id.to_owned()).into()),
        };
        Ok(Response::new(pb::GetAgentResponse { agent: Some(agent) }))
    }
}

fn encode(stored: Stored) -> pb::Agent {
    pb::Agent {
        agent: stored.agent.id,
        version: stored.agent.version,
        manifest: Some(stored.agent.manifest),
        create_time: convert::timestamp(stored.created_at),
        built_in: false,
    }
}
