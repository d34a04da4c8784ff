use local::{Fleet, Service};
use proto::{
    models::v1::model_service_client::ModelServiceClient,
    session::v1::{
        CreateSessionRequest, Manifest, PutAgentRequest, agent_service_client::AgentServiceClient,
        key_service_client::KeyServiceClient, session_service_client::SessionServiceClient,
        stream_service_client::StreamServiceClient, turn_service_client::TurnServiceClient,
    },
    tools::v1::{Permissions, Rule, rule::Action, tool_service_client::ToolServiceClient},
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
}

pub type Calls = InterceptedService<Channel, Bearer>;

/// Puts the key, if there is one, on every call.
#[derive(Clone)]
pub struct Bearer(Option<AsciiMetadataValue>);

impl Client {
    pub(crate) fn new(fleet: &mut Fleet, key: Option<&str>) -> Client {
        let bearer = Bearer(key.map(|key| format!("Bearer {key}").parse().unwrap()));
        Client {
            services: Service::ALL.map(|service| {
                let endpoint = Endpoint::from_shared(fleet.endpoint(service)).unwrap();
                InterceptedService::new(endpoint.connect_lazy(), bearer.clone())
            }),
        }
    }

    /// The way to one service, for generated clients that have no verb here.
    pub fn to(&self, service: Service) -> Calls {
        let index = Service::ALL.iter().position(|other| *other == service);
        self.services[index.unwrap()].clone()
    }

    pub fn agents(&self) -> AgentServiceClient<Calls> {
        AgentServiceClient::new(self.to(Service::Session))
    }

    pub fn keys(&self) -> KeyServiceClient<Calls> {
        KeyServiceClient::new(self.to(Service::Session))
    }

    pub fn sessions(&self) -> SessionServiceClient<Calls> {
        SessionServiceClient::new(self.to(Service::Session))
    }

    pub fn streams(&self) -> StreamServiceClient<Calls> {
        StreamServiceClient::new(self.to(Service::Session))
    }

    pub fn turns(&self) -> TurnServiceClient<Calls> {
        TurnServiceClient::new(self.to(Service::Session))
    }

    pub fn models(&self) -> ModelServiceClient<Calls> {
        ModelServiceClient::new(self.to(Service::Models))
    }

    pub fn tools(&self) -> ToolServiceClient<Calls> {
        ToolServiceClient::new(self.to(Service::Tools))
    }

    pub fn triggers(&self) -> TriggerServiceClient<Calls> {
        TriggerServiceClient::new(self.to(Service::Triggers))
    }

    /// Stores the agent of all sessions: it does what scripts say, and may use `bash`.
    pub async fn put_agent(&self) {
        let allow = Rule {
            permission: "bash".into(),
            pattern: "*".into(),
            action: Action::Allow.into(),
            ..Rule::default()
        };
        let manifest = Manifest {
            description: "Does what scripts say.".into(),
            prompt: "You do what scripts say.".into(),
            model: "scripted/demo".into(),
            permissions: Some(Permissions { rules: vec![allow], ..Permissions::default() }),
            ..Manifest::default()
        };
        let request = PutAgentRequest { agent: AGENT.into(), manifest: Some(manifest) };
        self.agents().put_agent(request).await.unwrap();
    }

    pub async fn create_session(&self) -> Session {
        let request = CreateSessionRequest {
            request_id: request_id(),
            title: "A scenario".into(),
            agent: AGENT.into(),
            ..CreateSessionRequest::default()
        };
        let response = self.sessions().create_session(request).await.unwrap().into_inner();
        Session { client: self.clone(), id: response.session.unwrap().session_id }
    }
}

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(bearer) = &self.0 {
            request.metadata_mut().insert("authorization", bearer.clone());
        }
        Ok(request)
    }
}
