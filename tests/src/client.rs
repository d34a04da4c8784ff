use local::{Fleet, Service};
use proto::{
    models::v1::{
        limit_service_client::LimitServiceClient, model_service_client::ModelServiceClient,
        usage_service_client::UsageServiceClient,
    },
    session::v1::{
        CreateSessionRequest, GetAgentRequest, Manifest, PutAgentRequest,
        agent_service_client::AgentServiceClient, evidence_service_client::EvidenceServiceClient,
        key_service_client::KeyServiceClient, memory_service_client::MemoryServiceClient,
        session_service_client::SessionServiceClient, stream_service_client::StreamServiceClient,
        subagent_service_client::SubagentServiceClient, turn_service_client::TurnServiceClient,
    },
    tools::v1::{
        Hook, Permissions, PutHookRequest, Rule, policy_service_client::PolicyServiceClient,
        rule::Action, tool_service_client::ToolServiceClient,
    },
    triggers::v1::trigger_service_client::TriggerServiceClient,
};
use tonic::{
    Request, Status,
    metadata::AsciiMetadataValue,
    service::{Interceptor, interceptor::InterceptedService},
    transport::{Channel, Endpoint},
};

use crate::{Session, request_id};

/// The agent of all sessions here.
const AGENT: &str = "scripted";

/// A caller of the public API. Cheap to clone; it connects when it calls, and again
/// when a service was away.
#[derive(Clone)]
pub struct Client {
    services: [Calls; 4],
    bearers: [Bearer; 4],
}

pub type Calls = InterceptedService<Channel, Bearer>;

/// Puts the key, if there is one, on every call.
#[derive(Clone)]
pub struct Bearer(Option<AsciiMetadataValue>);

impl Client {
    pub(crate) fn new(fleet: &mut Fleet, key: Option<&str>) -> Client {
        Client::with_keys(fleet, |_| key.map(str::to_owned))
    }

    /// One with another key for each service.
    pub(crate) fn with_keys(fleet: &mut Fleet, key: impl Fn(Service) -> Option<String>) -> Client {
        let bearers = Service::ALL.map(|service| {
            Bearer(key(service).map(|key| format!("Bearer {key}").parse().unwrap()))
        });
        let services = Service::ALL
            .map(|service| connect(fleet.endpoint(service), bearers[place(service)].clone()));
        Client { services, bearers }
    }

    /// The same caller, whose calls go to another replica of the session service.
    pub fn at(&self, fleet: &mut Fleet, index: usize) -> Client {
        let mut client = self.clone();
        let endpoint = fleet.replica(Service::Session, index).endpoint();
        client.move_to(Service::Session, endpoint);
        client
    }

    /// The same caller, whose calls go to another replica of the tools service.
    pub fn at_tools(&self, fleet: &mut Fleet, index: usize) -> Client {
        let mut client = self.clone();
        let endpoint = fleet.replica(Service::Tools, index).endpoint();
        client.move_to(Service::Tools, endpoint);
        client
    }

    fn move_to(&mut self, service: Service, endpoint: String) {
        let index = place(service);
        self.services[index] = connect(endpoint, self.bearers[index].clone());
    }

    /// The way to one service, for generated clients that have no verb here.
    pub fn to(&self, service: Service) -> Calls {
        self.services[place(service)].clone()
    }

    pub fn agents(&self) -> AgentServiceClient<Calls> {
        AgentServiceClient::new(self.to(Service::Session))
    }

    pub fn evidence(&self) -> EvidenceServiceClient<Calls> {
        EvidenceServiceClient::new(self.to(Service::Session))
    }

    pub fn keys(&self) -> KeyServiceClient<Calls> {
        KeyServiceClient::new(self.to(Service::Session))
    }

    pub fn memories(&self) -> MemoryServiceClient<Calls> {
        MemoryServiceClient::new(self.to(Service::Session))
    }

    pub fn sessions(&self) -> SessionServiceClient<Calls> {
        SessionServiceClient::new(self.to(Service::Session))
    }

    pub fn streams(&self) -> StreamServiceClient<Calls> {
        StreamServiceClient::new(self.to(Service::Session))
    }

    pub fn subagents(&self) -> SubagentServiceClient<Calls> {
        SubagentServiceClient::new(self.to(Service::Session))
    }

    pub fn turns(&self) -> TurnServiceClient<Calls> {
        TurnServiceClient::new(self.to(Service::Session))
    }

    pub fn models(&self) -> ModelServiceClient<Calls> {
        ModelServiceClient::new(self.to(Service::Models))
    }

    pub fn limits(&self) -> LimitServiceClient<Calls> {
        LimitServiceClient::new(self.to(Service::Models))
    }

    pub fn usage(&self) -> UsageServiceClient<Calls> {
        UsageServiceClient::new(self.to(Service::Models))
    }

    pub fn tools(&self) -> ToolServiceClient<Calls> {
        ToolServiceClient::new(self.to(Service::Tools))
    }

    pub fn policies(&self) -> PolicyServiceClient<Calls> {
        PolicyServiceClient::new(self.to(Service::Tools))
    }

    pub fn triggers(&self) -> TriggerServiceClient<Calls> {
        TriggerServiceClient::new(self.to(Service::Triggers))
    }

    /// Stores a hook for all projects.
    pub async fn put_hook(&self, hook: Hook) {
        let request = PutHookRequest { project: String::new(), hook: Some(hook) };
        self.policies().put_hook(request).await.unwrap();
    }

    /// Stores the agent of all sessions: it does what scripts say, and may use `bash`.
    pub async fn put_agent(&self) {
        self.put_agent_that(AGENT, Action::Allow).await;
    }

    /// Stores an agent that does what scripts say, and `action` says whether it may use `bash`.
    pub async fn put_agent_that(&self, agent: &str, action: Action) {
        let rule = Rule {
            permission: "bash".into(),
            pattern: "*".into(),
            action: action.into(),
            ..Rule::default()
        };
        let manifest = Manifest {
            description: "Does what scripts say.".into(),
            prompt: "You do what scripts say.".into(),
            model: "scripted/demo".into(),
            permissions: Some(Permissions { rules: vec![rule], ..Permissions::default() }),
            ..Manifest::default()
        };
        self.put_manifest(agent, manifest).await;
    }

    pub async fn put_manifest(&self, agent: &str, manifest: Manifest) {
        let request = PutAgentRequest { agent: agent.into(), manifest: Some(manifest) };
        self.agents().put_agent(request).await.unwrap();
    }

    /// An agent's manifest as it is now.
    pub async fn agent(&self, agent: &str) -> Manifest {
        let request = GetAgentRequest { agent: agent.into(), version: 0 };
        let response = self.agents().get_agent(request).await.unwrap().into_inner();
        response.agent.unwrap().manifest.unwrap()
    }

    /// A session whose agent runs on `model` and has `bash` and no other tool, so that its
    /// prompt leaves room in the smallest context.
    pub async fn create_session_on(&self, model: &str) -> Session {
        let allow = Rule {
            permission: "bash".into(),
            pattern: "*".into(),
            action: Action::Allow.into(),
            ..Rule::default()
        };
        let permissions = Permissions {
            tools: vec!["bash".into()],
            rules: vec![allow],
            ..Permissions::default()
        };
        let manifest = Manifest {
            prompt: "You do what scripts say.".into(),
            model: model.into(),
            permissions: Some(permissions),
            ..Manifest::default()
        };
        let agent = model.replace('/', "-");
        self.put_manifest(&agent, manifest).await;
        self.create_session_with(&agent).await
    }

    pub async fn create_session(&self) -> Session {
        self.create_session_with(AGENT).await
    }

    /// A session whose agent asks before it uses `bash`.
    pub async fn create_careful_session(&self) -> Session {
        self.put_agent_that("careful", Action::Ask).await;
        self.create_session_with("careful").await
    }

    pub async fn create_session_with(&self, agent: &str) -> Session {
        let request = CreateSessionRequest {
            request_id: request_id(),
            title: "A scenario".into(),
            agent: agent.into(),
            ..CreateSessionRequest::default()
        };
        let response = self.sessions().create_session(request).await.unwrap().into_inner();
        Session { client: self.clone(), id: response.session.unwrap().session_id }
    }
}

fn connect(endpoint: String, bearer: Bearer) -> Calls {
    InterceptedService::new(Endpoint::from_shared(endpoint).unwrap().connect_lazy(), bearer)
}

fn place(service: Service) -> usize {
    Service::ALL.iter().position(|other| *other == service).unwrap()
}

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(bearer) = &self.0 {
            request.metadata_mut().insert("authorization", bearer.clone());
        }
        Ok(request)
    }
}
