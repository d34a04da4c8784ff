//! What running turns share: the database, the bus, the other services, the agents.

use std::{sync::Arc, time::Duration};

use chassis::{Auth, Caller, Peer, Tenant};
use moka::future::Cache;
use proto::{
    models::v1::model_service_client::ModelServiceClient,
    tools::v1::{ListToolsRequest, Tool, tool_service_client::ToolServiceClient},
};
use sqlx::PgPool;
use tonic::{Status, transport::Channel};

use crate::{
    agent::Agent,
    bus::Bus,
    config::Serve,
    driven::Driven,
    error::{Error, Result},
    flusher::Flusher,
    ids::ReplicaId,
    store,
};

pub struct Host {
    pub replica: ReplicaId,
    pub db: PgPool,
    pub bus: Bus,
    pub flusher: Flusher,
    pub config: Serve,
    models: Peer,
    tools: Peer,
    /// The sessions this process owns and knows that it owns.
    pub driven: Driven,
    agents: Cache<(Tenant, String), Option<Arc<Agent>>>,
    catalogue: Cache<Tenant, Arc<Vec<Tool>>>,
}

/// How long an agent or a tool that changed may still be seen as it was.
const STALE: Duration = Duration::from_secs(2);

/// How long an answer may take that is not a stream.
pub const ANSWER: Duration = Duration::from_secs(10);

impl Host {
    pub fn new(
        replica: ReplicaId,
        db: PgPool,
        bus: Bus,
        flusher: Flusher,
        config: &Serve,
        auth: &Auth,
    ) -> anyhow::Result<Host> {
        let tls = &config.chassis.tls;
        Ok(Host {
            replica,
            db,
            bus,
            flusher,
            models: Peer::new("models", &config.models_url, tls, auth)?,
            tools: Peer::new("tools", &config.tools_url, tls, auth)?,
            driven: Driven::default(),
            agents: Cache::builder().max_capacity(10_000).time_to_live(STALE).build(),
            catalogue: Cache::builder().max_capacity(1_000).time_to_live(STALE).build(),
            config: config.clone(),
        })
    }

    pub fn models(&self) -> (ModelServiceClient<Channel>, &Peer) {
        let client = ModelServiceClient::new(self.models.channel());
        (chassis::client!(client, self.config.chassis), &self.models)
    }

    pub fn tools(&self) -> (ToolServiceClient<Channel>, &Peer) {
        let client = ToolServiceClient::new(self.tools.channel());
        (chassis::client!(client, self.config.chassis), &self.tools)
    }

    /// The tenant's agent of this name, or the one that ships with the server.
    pub async fn agent(&self, tenant: &Tenant, id: &str) -> Result<Arc<Agent>> {
        let key = (tenant.clone(), id.to_owned());
        let load = async {
            let stored = store::agents::get(&self.db, tenant, id, 0).await?;
            Ok(stored.map(|stored| stored.agent).or_else(|| Agent::built_in(id)).map(Arc::new))
        };
        let found = self.agents.try_get_with(key, load).await;
        match found {
            Ok(Some(agent)) => Ok(agent),
            Ok(None) => Err(Error::AgentNotFound(id.to_owned())),
            Err(error) => Err(shared(error)),
        }
    }

    /// Lets the next turn see an agent that was just stored here.
    pub async fn forget_agent(&self, tenant: &Tenant, id: &str) {
        self.agents.invalidate(&(tenant.clone(), id.to_owned())).await;
    }

    /// The tools there are.
    pub async fn catalogue(&self, caller: &Caller) -> Result<Arc<Vec<Tool>>, Status> {
        let load = async {
            let (mut client, peer) = self.tools();
            let request = ListToolsRequest { page_size: 500, ..ListToolsRequest::default() };
            let answer = client.list_tools(peer.request_within(ANSWER, caller, request)).await?;
            Ok::<_, Status>(Arc::new(answer.into_inner().tools))
        };
        let found = self.catalogue.try_get_with(caller.tenant.clone(), load).await;
        found.map_err(|status| (*status).clone())
    }
}

/// Several waited for one query, and each gets to hear why it failed.
fn shared(error: Arc<Error>) -> Error {
    match Arc::try_unwrap(error) {
        Ok(error) => error,
        Err(error) => {
            tracing::warn!(%error, "cannot load an agent");
            Error::Database(sqlx::Error::PoolTimedOut)
        }
    }
}
