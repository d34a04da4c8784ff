//! From the configuration of a server to a conversation with it.

use std::{path::PathBuf, sync::Arc, time::Duration};

use chassis::Tenant;
use rmcp::{
    ErrorData, RoleClient, Service,
    model::{
        ClientCapabilities, ClientConfig, ClientResult, ErrorCode, Implementation,
        PaginatedRequestParams, ProtocolVersion, ServerNotification, ServerRequest, Tool,
    },
    service::{
        ClientLifecycleMode, ClientServiceExt as _, NotificationContext, Peer, RequestContext,
        RunningService,
    },
    transport::Transport,
};
use sandbox::{Profile, Report, Sandbox, Tier};
use secrecy::ExposeSecret as _;
use tokio::{sync::Notify, time::timeout};

use super::{
    Address, LONGEST_DETAIL, PrivateHosts, Server,
    describe::{MOST_TOOLS, clean},
    guard::{Fault, Guarded},
    http,
    stdio::{self, Errors},
};
use crate::{call::WorkspaceId, redact::Redactor, secrets::Secrets, text::shorten, workspace};

/// How long a server may take to answer for the first time, which may have to start first.
const HANDSHAKE: Duration = Duration::from_secs(30);

/// How long it may take to list its tools.
const LISTING: Duration = Duration::from_secs(10);

/// What it takes to reach servers.
pub struct Connector {
    pub sandbox: Sandbox,
    pub minimum_tier: Tier,

    /// Directories of the host that sandboxes may read.
    pub read_only: Vec<PathBuf>,
    pub workspaces: PathBuf,
    pub secrets: Secrets,
    pub redactor: Redactor,
    pub private_hosts: PrivateHosts,
}

/// A server that answers.
pub struct Connection {
    pub running: RunningService<RoleClient, Client>,
    /// Rings when the server says that its tools have changed.
    pub changed: Arc<Notify>,
    pub common: Arc<Common>,
}

/// What calls of a server's tools need to know about it.
pub struct Common {
    pub id: String,
    pub fault: Fault,
    /// Hides the server's own secrets, beside the host's.
    pub redactor: Redactor,
    /// The end of what it printed as errors.
    pub errors: Errors,
    /// The sandbox it is in, if it is in one.
    pub confined: Option<(Report, Profile)>,
}

impl Connector {
    /// Reaches a server, or says why not.
    pub async fn connect(
        &self,
        tenant: &Tenant,
        workspace_id: WorkspaceId,
        server: &Server,
    ) -> Result<Connection, String> {
        let secrets = self.secrets.resolve(tenant, &server.secret_refs).await?;
        let hidden: Vec<&str> = secrets.values().map(|secret| secret.expose_secret()).collect();
        let mut common = Common {
            id: server.id.clone(),
            fault: Fault::default(),
            redactor: self.redactor.with(&hidden),
            errors: Errors::default(),
            confined: None,
        };
        match &server.address {
            Address::Command(command) => {
                let folder = workspace::open(&self.workspaces, tenant, workspace_id).await;
                let folder = folder.map_err(|error| {
                    tracing::error!(%error, workspace.id = %workspace_id, "workspace cannot be opened");
                    "the workspace cannot be opened".to_owned()
                })?;
                let mut profile = Profile::at_least(self.minimum_tier);
                profile.read_only = self.read_only.clone();
                profile.env = secrets
                    .iter()
                    .map(|(key, value)| (key.clone(), value.expose_secret().to_owned()))
                    .collect();
                let child = stdio::start(&self.sandbox, &profile, &folder, command).await?;
                // What is told of it later must not have the secrets in it.
                profile.env.clear();
                common.confined = Some((child.report.clone(), profile));
                let transport = stdio::transport(child, common.fault.clone(), &common.errors)?;
                shake_hands(transport, common).await
            }
            Address::Url(url) => {
                let transport = http::transport(url, &secrets, &self.private_hosts)?;
                shake_hands(transport, common).await
            }
        }
    }
}

async fn shake_hands(
    transport: impl Transport<RoleClient> + 'static,
    common: Common,
) -> Result<Connection, String> {
    let transport = Guarded::new(transport, common.fault.clone());
    let changed = Arc::<Notify>::default();
    let client = Client { changed: changed.clone() };
    let lifecycle = ClientLifecycleMode::Auto {
        preferred_versions: vec![ProtocolVersion::LATEST],
        legacy_version: Some(ProtocolVersion::LATEST_WITH_INITIALIZE),
    };
    let begun = timeout(HANDSHAKE, client.serve_with_lifecycle(transport, lifecycle)).await;
    match begun {
        Ok(Ok(running)) => Ok(Connection { running, changed, common: Arc::new(common) }),
        Ok(Err(error)) => Err(common.explain(&error)),
        Err(_) => {
            let seconds = HANDSHAKE.as_secs();
            Err(common.detail(&format!("it did not answer within {seconds} s")))
        }
    }
}

impl Connection {
    /// What the server says its tools are, as far as anybody wants to know.
    pub async fn list(&self) -> Result<Vec<Tool>, String> {
        let listed = timeout(LISTING, list(self.running.peer())).await;
        listed
            .unwrap_or_else(|_| {
                let seconds = LISTING.as_secs();
                Err(format!("it did not list its tools within {seconds} s"))
            })
            .map_err(|problem| self.common.detail(&problem))
    }
}

async fn list(peer: &Peer<RoleClient>) -> Result<Vec<Tool>, String> {
    let mut tools = Vec::new();
    let mut params = None;
    // Those beyond are left out, and one more is enough to notice.
    while tools.len() <= MOST_TOOLS {
        let page = peer.list_tools(params).await;
        let page = page.map_err(|error| format!("it cannot list its tools: {error}"))?;
        let empty = page.tools.is_empty();
        tools.extend(page.tools);
        match page.next_cursor {
            // A server that has nothing more to say may say so for ever.
            Some(cursor) if !empty => {
                params = Some(PaginatedRequestParams::default().with_cursor(Some(cursor)));
            }
            _ => break,
        }
    }
    Ok(tools)
}

impl Common {
    /// What went wrong, for people: the reason, and the end of what the server printed.
    pub fn detail(&self, problem: &str) -> String {
        let printed = self.errors.end();
        let text = match (self.fault.get(), printed.trim()) {
            (Some(fault), _) => fault.to_owned(),
            (None, "") => problem.to_owned(),
            (None, printed) => format!("{problem}; it printed: {printed}"),
        };
        shorten(&clean(&self.redactor.text(&text)), LONGEST_DETAIL - 1)
    }

    /// The same for an error and its causes.
    pub fn explain(&self, error: &dyn std::error::Error) -> String {
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            let cause_text = cause.to_string();
            if !text.contains(&cause_text) {
                text.push_str(&format!(": {cause_text}"));
            }
            source = cause.source();
        }
        self.detail(&text)
    }
}

/// Our side of the conversation. It refuses whatever a server asks for.
pub struct Client {
    changed: Arc<Notify>,
}

impl Service<RoleClient> for Client {
    fn get_info(&self) -> ClientConfig {
        let us = Implementation::new("windlass", env!("CARGO_PKG_VERSION"));
        ClientConfig::new(ClientCapabilities::default(), us)
    }

    async fn handle_request(
        &self,
        request: ServerRequest,
        _: RequestContext<RoleClient>,
    ) -> Result<ClientResult, ErrorData> {
        match request {
            ServerRequest::PingRequest(_) => Ok(ClientResult::empty(())),
            _ => {
                let text = "this client does nothing but call tools";
                Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, text, None))
            }
        }
    }

    async fn handle_notification(
        &self,
        notification: ServerNotification,
        _: NotificationContext<RoleClient>,
    ) -> Result<(), ErrorData> {
        if let ServerNotification::ToolListChangedNotification(_) = notification {
            self.changed.notify_one();
        }
        Ok(())
    }
}
