use std::collections::BTreeMap;

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
        let agent = match (stored, self.host.shipped.get(id)) {
            (Some(stored), _) => encode(stored),
            (None, Some(shipped)) if [0, shipped.version].contains(&request.version) => {
                built_in(shipped)
            }
            _ => return Err(Error::AgentNotFound(id.to_owned()).into()),
        };
        Ok(Response::new(pb::GetAgentResponse { agent: Some(agent) }))
    }

    async fn list_agents(
        &self,
        request: Request<pb::ListAgentsRequest>,
    ) -> Result<Response<pb::ListAgentsResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        let limit = check::count("page_size", request.page_size, 50, 200)?;
        let after = match request.page_token.as_str() {
            "" => "",
            id if agent::is_id(id) => id,
            _ => return Err(Error::InvalidCursor("page_token").into()),
        };
        let stored = store::agents::list(&self.host.db, &caller.tenant, after, limit + 1).await?;
        let shipped = self.host.shipped.iter().filter(|agent| agent.id.as_str() > after);
        let mut agents: BTreeMap<_, _> =
            shipped.map(|agent| (agent.id.clone(), built_in(agent))).collect();
        // What a tenant has stored stands in the place of what ships.
        agents.extend(stored.into_iter().map(|stored| (stored.agent.id.clone(), encode(stored))));
        let more = agents.len() as i64 > limit;
        let agents: Vec<_> = agents.into_values().take(limit as usize).collect();
        let next_page_token = match agents.last() {
            Some(last) if more => last.agent.clone(),
            _ => String::new(),
        };
        Ok(Response::new(pb::ListAgentsResponse { agents, next_page_token }))
    }

    async fn delete_agent(
        &self,
        request: Request<pb::DeleteAgentRequest>,
    ) -> Result<Response<pb::DeleteAgentResponse>, Status> {
        let caller = chassis::caller(&request)?;
        let request = request.into_inner();
        let id = check::agent_id("agent", &request.agent)?
            .ok_or_else(|| check::invalid("agent", "is missing"))?;
        let existed = store::agents::delete(&self.host.db, &caller.tenant, id).await?;
        self.host.forget_agent(&caller.tenant, id).await;
        match (existed, self.host.shipped.get(id)) {
            (true, _) => Ok(Response::new(pb::DeleteAgentResponse {})),
            (false, Some(_)) => Err(Error::AgentBuiltIn(id.to_owned()).into()),
            (false, None) => Err(Error::AgentNotFound(id.to_owned()).into()),
        }
    }
}

fn built_in(agent: &Agent) -> pb::Agent {
    pb::Agent {
        agent: agent.id.clone(),
        version: agent.version,
        manifest: Some(agent.manifest.clone()),
        create_time: None,
        built_in: true,
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
