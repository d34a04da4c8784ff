//! What running turns share: the database, the bus, the other services, the agents.

mod files;

use std::{collections::HashMap, fs, path::Path, sync::Arc, time::Duration};

use anyhow::Context as _;
use chassis::{Auth, Caller, Peer, Tenant};
use moka::future::Cache;
use proto::{
    event::v1::Payload,
    models::v1::{
        CountTokensRequest, ExplainRouteRequest, ListModelsRequest, Prompt, Target,
        model_service_client::ModelServiceClient, usage_service_client::UsageServiceClient,
    },
    tools::v1::{
        ListToolsRequest, Tool, fact_service_client::FactServiceClient,
        file_service_client::FileServiceClient, process_service_client::ProcessServiceClient,
        tool_service_client::ToolServiceClient, workspace_service_client::WorkspaceServiceClient,
    },
    triggers::v1::wakeup_service_client::WakeupServiceClient,
};
use sqlx::PgPool;
use tonic::{Status, transport::Channel};

use crate::{
    agent::Agent,
    bus::Bus,
    config::Serve,
    driven::Driven,
    error::{Error, Result},
    evidence::SigningKey,
    flusher::Flusher,
    ids::{ReplicaId, WorkspaceId},
    lanes::Lanes,
    offer::{self, Offer},
    recent::Recent,
    shipped::Shipped,
    store,
    surroundings::Surroundings,
    worker::Places,
};

pub struct Host {
    pub replica: ReplicaId,
    pub db: PgPool,
    /// For what every turn needs.
    pub lanes: Lanes,
    pub bus: Bus,
    pub flusher: Flusher,
    pub config: Serve,
    models: Peer,
    tools: Peer,
    triggers: Peer,
    /// Where turns run.
    pub places: Places,
    /// The sessions this process owns and knows that it owns.
    pub driven: Driven,
    /// What was said in sessions a moment ago.
    pub recent: Recent,
    /// What every tenant has that did not put its own in the place.
    pub shipped: Shipped,
    /// What signs packs of evidence.
    pub evidence_key: Option<SigningKey>,
    /// The digests of system prompts that are stored, where they stay.
    pub prompts: moka::sync::Cache<(Tenant, String), ()>,
    agents: Cache<(Tenant, String), Option<Arc<Agent>>>,
    catalogue: Cache<Tenant, Arc<Catalogue>>,
    /// The tools of workspaces that may have more than the catalogue.
    tools_of: Cache<(Tenant, WorkspaceId), Arc<Vec<Tool>>>,
    offers: moka::sync::Cache<Offered, Made>,
    surroundings: Cache<(Tenant, WorkspaceId), Arc<Surroundings>>,
    /// The models that would answer, best first.
    routes: Cache<Route, Arc<Vec<Room>>>,
}

/// Whose request would go where: tenant, model, profile, capabilities, the model before.
type Route = (Tenant, String, String, Vec<String>, String);

/// The tools that all workspaces of a tenant have.
#[derive(Debug)]
pub struct Catalogue {
    pub tools: Arc<Vec<Tool>>,
    /// Workspaces may have more.
    per_workspace: bool,
    /// The events that somebody has hooks for.
    hook_events: Arc<Vec<String>>,
}

/// Who is offered what: tenant, workspace if it has tools of its own, the names of the agent's
/// tools, and those that were found.
type Offered = (Tenant, Option<WorkspaceId>, Vec<String>, Vec<String>);

/// An offer and the tools that it was made of.
type Made = (Arc<Vec<Tool>>, Arc<Offer>);

/// What a model can take.
#[derive(Debug, Clone, PartialEq)]
pub struct Room {
    /// `provider/model`.
    pub model: String,
    context_tokens: i32,
    output_tokens: i32,
}

impl Room {
    /// The context less what is kept for the answer.
    pub fn usable_tokens(&self, max_output_tokens: i32) -> i32 {
        let answer = match max_output_tokens {
            0 => self.output_tokens,
            most => most.min(self.output_tokens),
        };
        (self.context_tokens - answer).max(0)
    }
}

/// How long an agent or a tool that changed may still be seen as it was.
const STALE: Duration = Duration::from_secs(2);

/// More tools than this nobody takes in.
const MOST_TOOLS: usize = 5_000;

/// How long a catalogue of models is good for; it changes with deployments.
const ROUTES: Duration = Duration::from_secs(10);

/// How long an answer may take that is not a stream.
pub const ANSWER: Duration = Duration::from_secs(10);

/// How long one may take that waits for hooks: twice as long as all hooks of one event together,
/// and a little more.
pub const PATIENT_ANSWER: Duration = Duration::from_secs(250);

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
            lanes: Lanes::new(
                &db,
                config.turn_connections.into(),
                chassis::database::silence(&config.chassis.database),
            )?,
            db,
            bus,
            flusher,
            models: Peer::new("models", &config.models_url, tls, auth)?,
            tools: Peer::new("tools", &config.tools_url, tls, auth)?,
            triggers: Peer::new("triggers", &config.triggers_url, tls, auth)?,
            places: Places::new(config.max_turns),
            driven: Driven::default(),
            recent: Recent::default(),
            shipped: Shipped::load(config.agents.as_deref())?,
            evidence_key: config.evidence_key_file.as_deref().map(evidence_key).transpose()?,
            prompts: moka::sync::Cache::new(10_000),
            agents: Cache::builder().max_capacity(10_000).time_to_live(STALE).build(),
            catalogue: Cache::builder().max_capacity(1_000).time_to_live(STALE).build(),
            tools_of: Cache::builder().max_capacity(10_000).time_to_live(STALE).build(),
            offers: moka::sync::Cache::builder().max_capacity(1_000).time_to_idle(ROUTES).build(),
            surroundings: Cache::builder().max_capacity(10_000).time_to_live(STALE).build(),
            routes: Cache::builder().max_capacity(10_000).time_to_live(ROUTES).build(),
            config: config.clone(),
        })
    }

    pub fn models(&self) -> (ModelServiceClient<Channel>, &Peer) {
        let client = ModelServiceClient::new(self.models.channel());
        (chassis::client!(client, self.config.chassis), &self.models)
    }

    pub fn ledger(&self) -> (UsageServiceClient<Channel>, &Peer) {
        let client = UsageServiceClient::new(self.models.channel());
        (chassis::client!(client, self.config.chassis), &self.models)
    }

    pub fn tools(&self) -> (ToolServiceClient<Channel>, &Peer) {
        let client = ToolServiceClient::new(self.tools.channel());
        (chassis::client!(client, self.config.chassis), &self.tools)
    }

    pub fn files(&self) -> (FileServiceClient<Channel>, &Peer) {
        let client = FileServiceClient::new(self.tools.channel());
        (chassis::client!(client, self.config.chassis), &self.tools)
    }

    pub fn processes(&self) -> (ProcessServiceClient<Channel>, &Peer) {
        let client = ProcessServiceClient::new(self.tools.channel());
        (chassis::client!(client, self.config.chassis), &self.tools)
    }

    pub fn facts(&self) -> (FactServiceClient<Channel>, &Peer) {
        let client = FactServiceClient::new(self.tools.channel());
        (chassis::client!(client, self.config.chassis), &self.tools)
    }

    pub fn workspaces(&self) -> (WorkspaceServiceClient<Channel>, &Peer) {
        let client = WorkspaceServiceClient::new(self.tools.channel());
        (chassis::client!(client, self.config.chassis), &self.tools)
    }

    pub fn wakeups(&self) -> (WakeupServiceClient<Channel>, &Peer) {
        let client = WakeupServiceClient::new(self.triggers.channel());
        (chassis::client!(client, self.config.chassis), &self.triggers)
    }

    /// The tenant's agent of this name, or the one that ships with the server.
    pub async fn agent(&self, tenant: &Tenant, id: &str) -> Result<Arc<Agent>> {
        let key = (tenant.clone(), id.to_owned());
        let load = async {
            let stored = store::agents::get(&self.db, tenant, id, 0).await?;
            Ok(stored
                .map(|stored| stored.agent)
                .or_else(|| self.shipped.get(id).cloned())
                .map(Arc::new))
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

    /// The tools that all workspaces have.
    pub async fn catalogue(&self, caller: &Caller) -> Result<Arc<Catalogue>, Status> {
        let load =
            async { Ok::<_, Status>(Arc::new(self.list_tools(caller, String::new()).await?)) };
        let found = self.catalogue.try_get_with(caller.tenant.clone(), load).await;
        found.map_err(|status| (*status).clone())
    }

    /// The events that somebody of the tenant has hooks for. It costs nothing beside the catalogue.
    pub async fn hook_events(&self, caller: &Caller) -> Result<Arc<Vec<String>>, Status> {
        Ok(self.catalogue(caller).await?.hook_events.clone())
    }

    /// How long to wait for an evaluation: hooks take their time.
    pub async fn patience(&self, caller: &Caller) -> Duration {
        match self.hook_events(caller).await {
            Ok(events) if events.is_empty() => ANSWER,
            _ => PATIENT_ANSWER,
        }
    }

    /// The tools that a workspace has. Of tenants whose workspaces are all alike, nobody asks
    /// for each of them.
    pub async fn tools_of(
        &self,
        caller: &Caller,
        id: WorkspaceId,
    ) -> Result<Arc<Vec<Tool>>, Status> {
        let catalogue = self.catalogue(caller).await?;
        if !catalogue.per_workspace {
            return Ok(catalogue.tools.clone());
        }
        let load = async {
            let listed = self.list_tools(caller, id.to_string()).await?;
            Ok::<_, Status>(listed.tools)
        };
        let found = self.tools_of.try_get_with((caller.tenant.clone(), id), load).await;
        found.map_err(|status| (*status).clone())
    }

    async fn list_tools(&self, caller: &Caller, workspace_id: String) -> Result<Catalogue, Status> {
        let (mut client, peer) = self.tools();
        let mut request = ListToolsRequest { workspace_id, page_size: 500, ..Default::default() };
        let mut tools = Vec::new();
        loop {
            let page = peer.request_within(ANSWER, caller, request.clone());
            let page = client.list_tools(page).await?.into_inner();
            tools.extend(page.tools);
            request.page_token = page.next_page_token;
            if request.page_token.is_empty() || tools.len() >= MOST_TOOLS {
                return Ok(Catalogue {
                    tools: Arc::new(tools),
                    per_workspace: page.per_workspace,
                    hook_events: Arc::new(page.hook_events),
                });
            }
        }
    }

    /// What an agent is offered of these tools. `found` is asked what was found before only
    /// where anything can be hidden.
    pub fn offer(
        &self,
        tenant: &Tenant,
        id: WorkspaceId,
        agent: &Agent,
        tools: Arc<Vec<Tool>>,
        found: impl FnOnce() -> Vec<String>,
    ) -> Arc<Offer> {
        let names = agent.manifest.permissions.as_ref().map(|permissions| &permissions.tools);
        let names = names.cloned().unwrap_or_default();
        let (id, found) = match tools.iter().any(offer::is_foreign) {
            true => (Some(id), found()),
            false => (None, vec![]),
        };
        let key = (tenant.clone(), id, names, found);
        if let Some((of, offer)) = self.offers.get(&key)
            && Arc::ptr_eq(&of, &tools)
        {
            return offer;
        }
        let offer = Arc::new(Offer::new(&tools, &key.2, &key.3));
        self.offers.insert(key, (tools, offer.clone()));
        offer
    }

    /// The text of a skill and the paths of the files beside it.
    pub async fn skill(
        &self,
        caller: &Caller,
        id: WorkspaceId,
        path: &str,
    ) -> Option<(String, Vec<String>)> {
        files::skill(self, caller, id, path).await
    }

    /// What the workspace says about itself.
    pub async fn surroundings(
        &self,
        caller: &Caller,
        id: WorkspaceId,
    ) -> Result<Arc<Surroundings>, Status> {
        let load =
            async { Ok::<_, Status>(Arc::new(files::surroundings(self, caller, id).await?)) };
        let found = self.surroundings.try_get_with((caller.tenant.clone(), id), load).await;
        found.map_err(|status| (*status).clone())
    }

    /// The models that would answer, best first. Nothing, where nobody can say or nobody would.
    pub async fn rooms(&self, caller: &Caller, target: &Target) -> Arc<Vec<Room>> {
        let Target { model, profile, capabilities, previous_model } = target.clone();
        let key = (caller.tenant.clone(), model, profile, capabilities, previous_model);
        let found = self.routes.try_get_with(key, self.find_rooms(caller, target)).await;
        found.unwrap_or_else(|status| {
            tracing::warn!(%status, "cannot ask how large a context may be");
            Arc::default()
        })
    }

    async fn find_rooms(&self, caller: &Caller, target: &Target) -> Result<Arc<Vec<Room>>, Status> {
        let (mut client, peer) = self.models();
        let (mut other, _) = self.models();
        let explain = ExplainRouteRequest { target: Some(target.clone()), tokens: 0 };
        let list = ListModelsRequest { page_size: 500, ..ListModelsRequest::default() };
        let (explained, listed) = tokio::try_join!(
            client.explain_route(peer.request_within(ANSWER, caller, explain)),
            other.list_models(peer.request_within(ANSWER, caller, list)),
        )?;
        let models = listed.into_inner().models.into_iter();
        let models: HashMap<_, _> = models.map(|model| (model.model.clone(), model)).collect();
        let facts = explained.into_inner().facts.into_iter();
        let names = facts.filter_map(|fact| match fact.payload {
            Some(Payload::RoutingDecided(decided)) => {
                let first = format!("{}/{}", decided.provider, decided.model);
                Some([vec![first], decided.fallbacks].concat())
            }
            _ => None,
        });
        let rooms = names.flatten().filter_map(|name| {
            let model = models.get(&name)?;
            let (context_tokens, output_tokens) = (model.context_tokens, model.output_tokens);
            Some(Room { model: name, context_tokens, output_tokens })
        });
        Ok(Arc::new(rooms.collect()))
    }

    /// How many tokens a prompt has for a model, if the models service can say.
    pub async fn count_tokens(&self, caller: &Caller, prompt: Prompt, model: &str) -> Option<i32> {
        let (mut client, peer) = self.models();
        let request = CountTokensRequest { prompt: Some(prompt), model: model.to_owned() };
        let counted = client.count_tokens(peer.request_within(ANSWER, caller, request)).await;
        Some(counted.ok()?.into_inner().tokens)
    }
}

fn evidence_key(path: &Path) -> anyhow::Result<SigningKey> {
    let name = path.display();
    let text = fs::read_to_string(path)
        .with_context(|| format!("cannot read the key for evidence in {name}"))?;
    SigningKey::read(&text).map_err(|problem| anyhow::anyhow!("{name} {problem}"))
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
