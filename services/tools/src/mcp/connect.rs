//! From the configuration of a server to a conversation with it.

use std::{collections::BTreeMap, error, path::PathBuf, sync::Arc, time::Duration};

use chassis::Tenant;
use rmcp::{
    RoleClient, ServiceError,
    model::{
        PaginatedRequestParams, ProtocolVersion, ServerNotification, SubscriptionFilter, Tool,
    },
    service::{
        ClientInitializeError, ClientLifecycleMode, ClientServiceExt as _, Peer, RunningService,
        Subscription,
    },
    transport::{Transport, streamable_http_client::StreamableHttpError},
};
use sandbox::{Profile, Report, Sandbox, Tier};
use secrecy::{ExposeSecret as _, SecretString};
use tokio::{
    sync::{Notify, mpsc},
    time::timeout,
};

use super::{
    Address, LONGEST_DETAIL, Server,
    client::Client,
    describe::{MOST_TOOLS, clean},
    guard::{Fault, Guarded},
    http,
    stdio::{self, Errors},
};
use crate::{
    call::WorkspaceId,
    egress::Outward,
    error::Error,
    files::Used,
    redact::Redactor,
    secrets::Secrets,
    text::shorten,
    workspaces::{Entered, Workspaces},
};

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
    pub workspaces: Arc<Workspaces>,
    pub secrets: Secrets,
    pub redactor: Redactor,
    pub outward: Outward,
}

/// How a conversation is begun.
#[derive(Debug, Clone, Copy)]
pub enum Protocol {
    /// In the newest version, and in an older one if the server does not know that.
    Any,
    /// In an older version: some of its servers hang up on whatever they do not know.
    Old,
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
        protocol: Protocol,
    ) -> Result<Connection, String> {
        let secrets = self.secrets.resolve(tenant, &server.secret_refs).await?;
        let mut common = self.common(server, &secrets);
        match &server.address {
            Address::Command(command) => {
                let entered = self.workspaces.enter(tenant, workspace_id).await;
                let entered = entered.map_err(|error| {
                    tracing::error!(%error, workspace.id = %workspace_id, "workspace cannot be opened");
                    "the workspace cannot be opened".to_owned()
                })?;
                let before = entered.admit().await.map_err(|error| error.to_string())?;
                let mut profile = Profile::at_least(self.minimum_tier);
                profile.read_only = self.read_only.clone();
                profile.env = secrets
                    .iter()
                    .map(|(key, value)| (key.clone(), value.expose_secret().to_owned()))
                    .collect();
                let child = stdio::start(&self.sandbox, &profile, &entered.path, command).await?;
                // What is told of it later must not have the secrets in it.
                profile.env.clear();
                common.confined = Some((child.report.clone(), profile));
                let (transport, errors) = stdio::transport(child, common.fault.clone())?;
                common.errors = errors;
                tokio::spawn(stay(entered.guest(), before, common.fault.clone()));
                drop(entered);
                shake_hands(transport, common, protocol, Client::default()).await
            }
            Address::Url(url) => {
                let transport = http::transport(url, &secrets, &self.outward)?;
                shake_hands(transport, common, protocol, Client::default()).await
            }
        }
    }

    /// Reaches a server at a URL for somebody who wants to hear what it tells of.
    pub async fn connect_to(
        &self,
        tenant: &Tenant,
        server: &Server,
        url: &str,
        protocol: Protocol,
        heard: mpsc::Sender<ServerNotification>,
    ) -> Result<Connection, String> {
        let secrets = self.secrets.resolve(tenant, &server.secret_refs).await?;
        let common = self.common(server, &secrets);
        let transport = http::transport(url, &secrets, &self.outward)?;
        let client = Client { heard: Some(heard), ..Client::default() };
        shake_hands(transport, common, protocol, client).await
    }

    fn common(&self, server: &Server, secrets: &BTreeMap<String, SecretString>) -> Common {
        let hidden: Vec<&str> = secrets.values().map(|secret| secret.expose_secret()).collect();
        Common {
            id: server.id.clone(),
            fault: Fault::default(),
            redactor: self.redactor.with(&hidden),
            errors: Errors::default(),
            confined: None,
        }
    }
}

/// Hangs up on a server that fills its workspace, or whose workspace is another one by now. It is in
/// nobody's way for as long as it is connected.
async fn stay(guest: Entered, before: Used, fault: Fault) {
    tokio::select! {
        why = guest.overflow(before) => match why {
            Error::WorkspaceBusy(_) => fault.part(&why.to_string()),
            why => fault.set(&why.to_string()),
        },
        () = fault.ended() => (),
    }
    guest.forget_used();
}

async fn shake_hands(
    transport: impl Transport<RoleClient> + 'static,
    common: Common,
    protocol: Protocol,
    client: Client,
) -> Result<Connection, String> {
    let transport = Guarded::new(transport, common.fault.clone());
    let changed = client.changed.clone();
    let lifecycle = match protocol {
        Protocol::Any => ClientLifecycleMode::Auto {
            preferred_versions: vec![ProtocolVersion::LATEST],
            legacy_version: Some(ProtocolVersion::LATEST_WITH_INITIALIZE),
        },
        Protocol::Old => ClientLifecycleMode::Initialize,
    };
    let begun = tokio::select! {
        // Who hung up says more by the error.
        biased;
        begun = timeout(HANDSHAKE, client.serve_with_lifecycle(transport, lifecycle)) => begun,
        () = common.fault.ended() => return Err(common.detail("it hung up").await),
    };
    match begun {
        Ok(Ok(running)) => Ok(Connection { running, changed, common: Arc::new(common) }),
        Ok(Err(error)) => Err(common.explain(&error).await),
        Err(_) => {
            let seconds = HANDSHAKE.as_secs();
            Err(common.detail(&format!("it did not answer within {seconds} s")).await)
        }
    }
}

impl Connection {
    /// What the server says its tools are, as far as anybody wants to know.
    pub async fn list(&self) -> Result<Vec<Tool>, String> {
        let listed = timeout(LISTING, list(self.running.peer())).await;
        let listed = listed.unwrap_or_else(|_| {
            let seconds = LISTING.as_secs();
            Err(format!("it did not list its tools within {seconds} s"))
        });
        match listed {
            Ok(tools) => Ok(tools),
            Err(problem) => Err(self.common.detail(&problem).await),
        }
    }

    /// Hears of changes from servers that tell of them when they are asked to; older ones tell
    /// of them anyway.
    pub async fn subscribe(&self) -> Option<Subscription> {
        let peer = self.running.peer();
        if peer.peer_info()?.protocol_version.has_initialize() {
            return None;
        }
        let filter = SubscriptionFilter::builder().tools_list_changed().build();
        timeout(LISTING, peer.listen(filter)).await.ok()?.ok()
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
    pub async fn detail(&self, problem: &str) -> String {
        let printed = self.errors.end().await;
        let text = match (self.fault.get(), printed.trim()) {
            (Some(fault), _) => fault.to_owned(),
            (None, "") => problem.to_owned(),
            (None, printed) => format!("{problem}; it printed: {printed}"),
        };
        shorten(&clean(&self.redactor.text(&text)), LONGEST_DETAIL - 1)
    }

    /// The same for an error and its causes.
    pub async fn explain(&self, error: &(dyn error::Error + Send + Sync + 'static)) -> String {
        let text = causes(error);
        self.detail(&text).await
    }
}

/// An error and its causes in one sentence, from where it begins to say something. The library
/// names its own types first, and knows of some causes without telling.
fn causes(error: &(dyn error::Error + 'static)) -> String {
    match error.downcast_ref() {
        Some(ClientInitializeError::TransportError { error, .. }) => return causes(&*error.error),
        Some(ClientInitializeError::LegacyFallbackFailed { fallback, .. }) => {
            return causes(&**fallback);
        }
        _ => (),
    }
    if let Some(ServiceError::TransportSend(error)) = error.downcast_ref() {
        return causes(&*error.error);
    }
    if let Some(StreamableHttpError::<reqwest::Error>::Client(error)) = error.downcast_ref() {
        return causes(error);
    }
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use rmcp::{
        ErrorData, RoleServer, ServerHandler, ServiceExt as _,
        model::{ListToolsResult, ServerCapabilities, ServerConfig},
        service::RequestContext,
    };
    use serde_json::json;
    use tokio::io::{AsyncWriteExt as _, split};

    use super::{super::lines::Lines, *};

    struct Small;

    impl ServerHandler for Small {
        fn get_info(&self) -> ServerConfig {
            ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
        }

        async fn list_tools(
            &self,
            params: Option<PaginatedRequestParams>,
            _: RequestContext<RoleServer>,
        ) -> Result<ListToolsResult, ErrorData> {
            let cursor = params.and_then(|params| params.cursor).unwrap_or_default();
            let page = cursor.parse().unwrap_or(0);
            let tool = json!({ "name": format!("t{page}"), "inputSchema": { "type": "object" } });
            let next = (page + 1).to_string();
            Ok(serde_json::from_value(json!({ "tools": [tool], "nextCursor": next })).unwrap())
        }
    }

    fn common() -> Common {
        Common {
            id: "t".into(),
            fault: Fault::default(),
            redactor: Redactor::default(),
            errors: Errors::default(),
            confined: None,
        }
    }

    /// Over pipes, in the newest version of the protocol and in an older one, and with noise.
    #[tokio::test]
    async fn hands_are_shaken_with_real_servers() {
        for protocol in [Protocol::Any, Protocol::Old] {
            let (ours, theirs) = tokio::io::duplex(1024);
            let (output, input) = split(ours);
            tokio::spawn(async move {
                let (read, mut write) = split(theirs);
                write.write_all(b"listening\nto you\n\xff\n").await.unwrap();
                Small.serve((read, write)).await.unwrap().waiting().await.unwrap();
            });
            let common = common();
            let transport = Lines::new(output, input, common.fault.clone());
            let connection =
                shake_hands(transport, common, protocol, Client::default()).await.unwrap();
            // Its pages have no end, and we have.
            assert_eq!(connection.list().await.unwrap().len(), MOST_TOOLS + 1, "{protocol:?}");
        }
    }

    #[tokio::test]
    async fn a_server_that_hangs_up_says_so() {
        let (ours, theirs) = tokio::io::duplex(1024);
        let (output, input) = split(ours);
        drop(theirs);
        let common = common();
        let fault = common.fault.clone();
        let transport = Lines::new(output, input, fault.clone());
        assert!(shake_hands(transport, common, Protocol::Any, Client::default()).await.is_err());
    }
}
