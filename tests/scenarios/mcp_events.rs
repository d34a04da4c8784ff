use std::{
    borrow::Cow,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use local::{Fleet, Service};
use proto::{
    session::v1::message::Role,
    tools::v1::{McpServer, PutMcpServerRequest, mcp_server::Transport},
    triggers::v1::{
        CreateTriggerRequest, Firing, ListFiringsRequest, McpEvent, Target, Trigger,
        UpdateTriggerRequest, target::Session as TargetSession, trigger::Kind,
    },
};
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        ProtocolVersion, ResourceUpdatedNotificationParam, ServerCapabilities, ServerConfig,
        SubscribeRequestParams, SubscriptionFilter,
    },
    service::{RequestContext, SubscriptionContext},
    transport::streamable_http_server::{
        StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
    },
};
use tests::{Client, Session, World, explain, request_id};
use tokio::{
    net::TcpListener,
    runtime::{Builder, Runtime},
    sync::broadcast,
    time::sleep,
};

use crate::webhooks::until;

const URI: &str = "board://news";

/// A server that tells whoever subscribed to it when there is news, in the newest version of the
/// protocol or in an older one.
#[derive(Clone)]
struct Board {
    old: bool,
    news: broadcast::Sender<()>,
    subscribers: Arc<AtomicUsize>,
}

impl ServerHandler for Board {
    fn get_info(&self) -> ServerConfig {
        let capabilities =
            ServerCapabilities::builder().enable_resources().enable_resources_subscribe().build();
        ServerConfig::new(capabilities)
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        let newest = match self.old {
            true => &ProtocolVersion::V_2025_11_25,
            false => &ProtocolVersion::LATEST,
        };
        Cow::Borrowed(ProtocolVersion::known_up_to(newest))
    }

    fn accepted_subscription_filter(
        &self,
        requested: &SubscriptionFilter,
    ) -> Option<SubscriptionFilter> {
        Some(requested.clone())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let mut news = self.news.subscribe();
        self.subscribers.fetch_add(1, Ordering::SeqCst);
        loop {
            tokio::select! {
                () = context.cancelled() => return Ok(()),
                Ok(()) = news.recv() => {
                    let _ = context.sink().notify_resource_updated(URI).await;
                }
            }
        }
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let mut news = self.news.subscribe();
        self.subscribers.fetch_add(1, Ordering::SeqCst);
        let (peer, uri) = (context.peer, request.uri);
        tokio::spawn(async move {
            while news.recv().await.is_ok() {
                let told = ResourceUpdatedNotificationParam::new(uri.clone());
                if peer.notify_resource_updated(told).await.is_err() {
                    return;
                }
            }
        });
        Ok(())
    }
}

impl Board {
    fn new(old: bool) -> Board {
        Board { old, news: broadcast::channel(16).0, subscribers: Arc::default() }
    }

    /// Serves at an address, or at one that is free.
    async fn serve(&self, address: Option<SocketAddr>) -> Running {
        let address = address.unwrap_or_else(|| "127.0.0.1:0".parse().unwrap());
        // The port of a server that has just gone is free in a moment.
        let listener = loop {
            match std::net::TcpListener::bind(address) {
                Ok(listener) => break listener,
                Err(_) => sleep(Duration::from_millis(50)).await,
            }
        };
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let board = self.clone();
        let service = StreamableHttpService::new(
            move || Ok(board.clone()),
            Arc::<LocalSessionManager>::default(),
            StreamableHttpServerConfig::default(),
        );
        let router = axum::Router::new().fallback_service(service);
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.spawn(async move {
            axum::serve(TcpListener::from_std(listener).unwrap(), router).await.unwrap();
        });
        Running { address, runtime: Some(runtime) }
    }

    fn subscribers(&self) -> usize {
        self.subscribers.load(Ordering::SeqCst)
    }
}

/// A server, with all of its connections, until it is dropped.
struct Running {
    address: SocketAddr,
    runtime: Option<Runtime>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn put_server(client: &Client, id: &str, transport: Transport) {
    let server =
        McpServer { mcp_server_id: id.into(), transport: Some(transport), ..McpServer::default() };
    let request = PutMcpServerRequest { project: String::new(), mcp_server: Some(server) };
    client.policies().put_mcp_server(request).await.unwrap();
}

fn trigger(session: &Session, server: &str) -> CreateTriggerRequest {
    let event =
        McpEvent { mcp_server_id: server.into(), subscription: URI.into(), ..McpEvent::default() };
    let target =
        Target { session: Some(TargetSession::SessionId(session.id.clone())), ..Target::default() };
    let trigger = Trigger {
        name: "news".into(),
        kind: Some(Kind::McpEvent(event)),
        target: Some(target),
        template: "{{ payload.params.uri }} has changed\n#!script\nsay ok".into(),
        ..Trigger::default()
    };
    CreateTriggerRequest { request_id: request_id(), trigger: Some(trigger), secret: String::new() }
}

async fn firings(client: &Client, id: &str) -> Vec<Firing> {
    let request = ListFiringsRequest { trigger_id: id.into(), ..ListFiringsRequest::default() };
    client.triggers().list_firings(request).await.unwrap().into_inner().firings
}

async fn submitted(client: &Client, id: &str) -> Vec<Firing> {
    let firings = firings(client, id).await;
    firings.into_iter().filter(|firing| firing.status == "submitted").collect()
}

/// Tells until there are more firings than `before`, and returns the latest: what is told while
/// nobody listens yet is told to nobody.
async fn heard(client: &Client, board: &Board, trigger_id: &str, before: usize) -> Firing {
    until(async || {
        let _ = board.news.send(());
        submitted(client, trigger_id).await.len() > before
    })
    .await;
    submitted(client, trigger_id).await.remove(0)
}

#[tokio::test]
async fn mcp_events() {
    let plan = Fleet::plan().replicas(Service::Triggers, 2).env_of(
        Service::Tools,
        "EGRESS_ALLOW_PRIVATE",
        "127.0.0.1",
    );
    let mut world = World::planned(plan).await;
    let client = world.client("acme").await;
    for old in [false, true] {
        let session = client.create_session().await;
        let board = Board::new(old);
        let server = board.serve(None).await;
        let address = server.address;
        let id = if old { "old" } else { "new" };
        put_server(&client, id, Transport::Url(format!("http://{address}/mcp"))).await;
        let created = client.triggers().create_trigger(trigger(&session, id)).await.unwrap();
        let trigger_id = created.into_inner().trigger.unwrap().trigger_id;

        // One replica listens, and what the server tells becomes a turn.
        until(async || board.subscribers() == 1).await;
        let firing = heard(&client, &board, &trigger_id, 0).await;
        assert_eq!(firing.session_id, session.id);
        let messages = session.messages().await;
        let told = messages
            .iter()
            .find(|message| message.turn_id == firing.turn_id && message.role() == Role::User)
            .unwrap();
        assert!(format!("{:?}", told.parts).contains("board://news has changed"), "{told:?}");
        assert!(told.metadata_json.contains("mcp_event"), "{}", told.metadata_json);

        // A server that was away is subscribed to again.
        drop(server);
        let _server = board.serve(Some(address)).await;
        let before = submitted(&client, &trigger_id).await.len();
        until(async || board.subscribers() >= 2).await;
        heard(&client, &board, &trigger_id, before).await;

        // A trigger that is changed is heard by the same replica in the same lease, and goes on.
        let before = submitted(&client, &trigger_id).await.len();
        let mut changed = trigger(&session, id).trigger.unwrap();
        (changed.trigger_id, changed.name) = (trigger_id.clone(), "other news".into());
        let request = UpdateTriggerRequest { trigger: Some(changed) };
        client.triggers().update_trigger(request).await.unwrap();
        until(async || board.subscribers() >= 3).await;
        heard(&client, &board, &trigger_id, before).await;
        let all = firings(&client, &trigger_id).await;
        assert!(all.iter().all(|firing| firing.drop_reason != "duplicate"), "{all:?}");
        if !old {
            continue;
        }

        // Whoever listens can go: somebody else does from then on.
        for index in [0, 1] {
            world.fleet.replica(Service::Triggers, index).restart().await.unwrap();
        }
        until(async || board.subscribers() > 3).await;
        let before = submitted(&client, &trigger_id).await.len();
        heard(&client, &board, &trigger_id, before).await;
    }
}

#[tokio::test]
async fn only_servers_that_can_be_heard_fire_triggers() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    let session = client.create_session().await;
    put_server(&client, "program", Transport::Command("cat".into())).await;
    for (server, expected) in [
        ("program", "only servers that have a url can fire triggers"),
        ("nobody", "knows no such MCP server"),
        ("No One", "expected 1 to 32 characters"),
    ] {
        let refused = client.triggers().create_trigger(trigger(&session, server)).await;
        let refused = explain(&refused.unwrap_err());
        assert!(refused.contains(expected), "{refused}");
    }
}
