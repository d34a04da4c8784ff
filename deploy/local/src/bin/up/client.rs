//! A caller with a key, as any product backend would be.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use local::{Fleet, Service};
use proto::session::v1::{
    ListSessionsRequest, agent_service_client::AgentServiceClient,
    session_service_client::SessionServiceClient, stream_service_client::StreamServiceClient,
    turn_service_client::TurnServiceClient,
};
use tonic::{
    Code, Request, Status,
    metadata::AsciiMetadataValue,
    service::{Interceptor, interceptor::InterceptedService},
    transport::{Channel, Endpoint},
};

const TENANT: &str = "dev";
const SUBJECT: &str = "developer";
const SCOPES: &str = "read,run,configure,admin";

pub struct Client {
    key: String,
    channel: Calls,
}

/// Puts the key on every call.
#[derive(Clone)]
pub struct Bearer(AsciiMetadataValue);

type Calls = InterceptedService<Channel, Bearer>;

impl Client {
    /// Connects with the key kept at `path`, or with a new one if it no longer works.
    pub async fn connect(fleet: &mut Fleet, path: &Path) -> Result<Client> {
        let channel = Endpoint::from_shared(fleet.endpoint(Service::Session))?.connect().await?;
        if let Ok(key) = fs::read_to_string(path) {
            let client = Client::new(channel.clone(), key)?;
            if client.is_known().await? {
                return Ok(client);
            }
        }
        let key = fleet.mint_key(TENANT, SUBJECT, SCOPES).await?;
        local::keep_private(path, &key)?;
        Client::new(channel, key)
    }

    fn new(channel: Channel, key: String) -> Result<Client> {
        let bearer = format!("Bearer {key}").parse().context("a key that fits no header")?;
        Ok(Client { key, channel: InterceptedService::new(channel, Bearer(bearer)) })
    }

    async fn is_known(&self) -> Result<bool> {
        let request = ListSessionsRequest { page_size: 1, ..ListSessionsRequest::default() };
        match self.sessions().list_sessions(request).await {
            Ok(_) => Ok(true),
            Err(status) if status.code() == Code::Unauthenticated => Ok(false),
            Err(status) => Err(status.into()),
        }
    }

    pub fn key(&self) -> &str {
        &self.key
    }

    pub fn agents(&self) -> AgentServiceClient<Calls> {
        AgentServiceClient::new(self.channel.clone())
    }

    pub fn sessions(&self) -> SessionServiceClient<Calls> {
        SessionServiceClient::new(self.channel.clone())
    }

    pub fn turns(&self) -> TurnServiceClient<Calls> {
        TurnServiceClient::new(self.channel.clone())
    }

    pub fn streams(&self) -> StreamServiceClient<Calls> {
        StreamServiceClient::new(self.channel.clone())
    }
}

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.metadata_mut().insert("authorization", self.0.clone());
        Ok(request)
    }
}
