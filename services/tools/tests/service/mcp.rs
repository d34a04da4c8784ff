//! MCP servers over HTTP: real ones, written with the protocol's own library.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use proto::tools::v1::{
    Call, DeleteMcpServerRequest, ListMcpServersRequest, ListToolsRequest, McpServer, Permissions,
    PutMcpServerRequest, Tool, mcp_server::Transport, permissions::Mode, rule::Action,
};
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ListToolsResult,
        PaginatedRequestParams, ServerCapabilities, ServerConfig,
    },
    service::RequestContext,
    transport::streamable_http_server::{
        StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
    },
};
use serde_json::{Value, json};
use sqlx::PgPool;
use tokio::{net::TcpListener, time::sleep};
use tonic::{Code, Status};

use crate::world::{WorkspaceId, World, assert_code, explain, rule};

/// A server with tools for everything that can happen to one.
#[derive(Clone, Default)]
struct Server {
    calls: Arc<AtomicUsize>,
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let text = json!({
            "type": "object",
            "properties": { "text": { "type": "string", "maxLength": 10 } },
            "required": ["text"],
        });
        let tools = json!([
            { "name": "say-it", "description": "Says\u{1b} it.", "inputSchema": text },
            { "name": "look", "inputSchema": { "type": "object" },
              "annotations": { "readOnlyHint": true } },
            { "name": "much", "inputSchema": { "type": "object" } },
            { "name": "fail", "inputSchema": { "type": "object" } },
            { "name": "who", "inputSchema": { "type": "object" } },
            { "name": "hang", "inputSchema": { "type": "object" } },
            { "name": "bad", "inputSchema": { "$ref": "http://169.254.169.254/" } },
        ]);
        Ok(serde_json::from_value(json!({ "tools": tools })).unwrap())
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let text = |text: String| CallToolResult::success(vec![ContentBlock::text(text)]);
        let result = match &*request.name {
            "say-it" => text(request.arguments.unwrap_or_default()["text"].to_string()),
            "look" => CallToolResult::structured(json!({ "seen": [1, 2] })),
            "much" => text("0123456789".repeat(20_000)),
            "fail" => CallToolResult::error(vec![ContentBlock::text("it is broken")]),
            "who" => {
                let parts = context.extensions.get::<http::request::Parts>();
                let header = parts.and_then(|parts| parts.headers.get("authorization").cloned());
                text(format!(
                    "{header:?} {}",
                    header.as_ref().map_or("", |header| header.to_str().unwrap())
                ))
            }
            _ => std::future::pending().await,
        };
        Ok(CallToolResponse::Complete(result))
    }
}

/// Where it listens.
async fn serve(server: Server) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let service = StreamableHttpService::new(
        move || Ok(server.clone()),
        Arc::<LocalSessionManager>::default(),
        StreamableHttpServerConfig::default(),
    );
    let router = axum::Router::new().fallback_service(service);
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    format!("http://{host}/mcp")
}

pub fn at(id: &str, url: &str) -> McpServer {
    let transport = Some(Transport::Url(url.into()));
    McpServer { mcp_server_id: id.into(), transport, ..McpServer::default() }
}

impl World {
    pub async fn put_server(&self, project: &str, server: McpServer) -> Result<McpServer, Status> {
        let request = PutMcpServerRequest { project: project.into(), mcp_server: Some(server) };
        let answer =
            self.policies().put_mcp_server(self.peer.request(&self.caller, request)).await?;
        Ok(answer.into_inner().mcp_server.unwrap())
    }

    pub async fn servers(&self, project: &str) -> Vec<McpServer> {
        let request = ListMcpServersRequest { project: project.into(), ..Default::default() };
        let answer =
            self.policies().list_mcp_servers(self.peer.request(&self.caller, request)).await;
        answer.unwrap().into_inner().mcp_servers
    }

    pub async fn tools_of(&self, workspace_id: &str) -> Vec<Tool> {
        let request = ListToolsRequest { workspace_id: workspace_id.into(), ..Default::default() };
        let answer = self.client.clone().list_tools(self.peer.request(&self.caller, request)).await;
        answer.unwrap().into_inner().tools
    }

    /// The names of a server's tools in a workspace.
    pub async fn names_of(&self, workspace_id: &str, server: &str) -> Vec<String> {
        let tools = self.tools_of(workspace_id).await.into_iter();
        tools.filter(|tool| tool.mcp_server_id == server).map(|tool| tool.name).collect()
    }

    /// A call by an agent that may do anything.
    pub fn free(&self, workspace_id: &str, tool: &str, input: Value) -> Call {
        let rules = vec![rule("*", "*", Action::Allow)];
        Call {
            workspace_id: workspace_id.into(),
            permissions: Some(Permissions { rules, ..Permissions::default() }),
            ..self.call(tool, input)
        }
    }
}

#[sqlx::test(migrations = false)]
async fn a_server_s_tools_are_called_like_any_other(db: PgPool) {
    let server = Server::default();
    let url = serve(server.clone()).await;
    let world = World::with(db, &["--egress-allow-private", "127.0.0.1"]).await;
    world.put_server("", at("srv", &url)).await.unwrap();
    let id = WorkspaceId::new().to_string();
    assert_eq!(
        world.names_of(&id, "srv").await,
        ["srv_fail", "srv_hang", "srv_look", "srv_much", "srv_say_it", "srv_who"]
    );
    let tools = world.tools_of(&id).await;
    let said = tools.iter().find(|tool| tool.name == "srv_say_it").unwrap();
    assert_eq!(said.description, "Says it.\n(A tool of the MCP server srv.)");
    assert!(said.destructive && !said.read_only && said.host == "tools");
    let shown = world.servers("").await.remove(0);
    assert_eq!(shown.state, "connected");
    assert_eq!(
        shown.state_detail,
        "left out: srv_bad: its schema refers to something outside of it"
    );

    // Nobody trusts it, so a person is asked, whatever it says about itself.
    let call = Call { workspace_id: id.clone(), ..world.call("srv_look", json!({})) };
    let evaluation = world.evaluate(call.clone()).await.unwrap().evaluation.unwrap();
    assert_eq!((evaluation.decision.as_str(), evaluation.compared.as_str()), ("ask", "srv_look"));
    assert_eq!(evaluation.destructive_reason, "srv_look may destroy something");
    let ended = world.execute_approved(call).await.unwrap();
    assert_eq!(ended.data()["structured_content"], json!({ "seen": [1, 2] }));
    assert_eq!(ended.names(), ["tool.progress"]);

    let said = world.execute(world.free(&id, "srv_say_it", json!({ "text": "hi" }))).await.unwrap();
    assert_eq!(said.data(), json!({ "content": "\"hi\"" }));
    let failed = world.execute(world.free(&id, "srv_fail", json!({}))).await.unwrap();
    assert_eq!(failed.error(), ("failed", "it is broken"));

    // What does not fit the schema is never sent.
    let before = server.calls.load(Ordering::SeqCst);
    let long = world.free(&id, "srv_say_it", json!({ "text": "more than ten" }));
    let refused = world.execute(long).await.unwrap();
    assert_eq!(refused.error().0, "schema");
    assert_eq!(server.calls.load(Ordering::SeqCst), before);

    // What is too much for the log is kept beside it.
    let call = world.free(&id, "srv_much", json!({}));
    let much = world.execute(call.clone()).await.unwrap();
    let metadata = much.outcome.metadata.as_ref().unwrap();
    assert!(metadata.truncated && metadata.output_bytes == 200_000);
    let path = metadata.output_path.clone();
    let session_id = call.session_id;
    let read = Call { session_id, ..world.free(&id, "read", json!({ "path": path })) };
    assert_eq!(world.execute(read).await.unwrap().data()["size_bytes"], 200_000);

    let unknown = world.execute(world.free(&id, "srv_nothing", json!({}))).await.unwrap();
    assert_eq!(unknown.error(), ("unknown_tool", "there is no tool named \"srv_nothing\""));
}

#[sqlx::test(migrations = false)]
async fn a_trusted_server_is_believed(db: PgPool) {
    let url = serve(Server::default()).await;
    let world = World::with(db, &["--egress-allow-private", "127.0.0.1"]).await;
    world.put_server("", McpServer { trusted: true, ..at("srv", &url) }).await.unwrap();
    let id = WorkspaceId::new().to_string();
    let tools = world.tools_of(&id).await;
    let look = tools.iter().find(|tool| tool.name == "srv_look").unwrap();
    assert!(look.read_only && !look.destructive);
    // So it may be used where only reading is allowed.
    let permissions = Permissions { mode: Mode::Plan.into(), ..Permissions::default() };
    for (tool, decision) in [("srv_look", "allow"), ("srv_who", "deny")] {
        let permissions = Some(permissions.clone());
        let call = Call { workspace_id: id.clone(), permissions, ..world.call(tool, json!({})) };
        let evaluation = world.evaluate(call).await.unwrap().evaluation.unwrap();
        assert_eq!(evaluation.decision, decision, "{tool}");
    }
}

#[sqlx::test(migrations = false)]
async fn a_secret_reaches_the_server_and_nobody_else(db: PgPool) {
    let secret = "Bearer abcdefgh12345678";
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("acme")).unwrap();
    fs::write(folder.path().join("acme/token"), format!("{secret}\n")).unwrap();
    let url = serve(Server::default()).await;
    let flags =
        ["--egress-allow-private", "127.0.0.1", "--secrets-dir", folder.path().to_str().unwrap()];
    let world = World::with(db.clone(), &flags).await;
    let refs = |name: &str| [("Authorization".to_owned(), name.to_owned())].into();
    world
        .put_server("", McpServer { secret_refs: refs("token"), ..at("srv", &url) })
        .await
        .unwrap();
    world
        .put_server("", McpServer { secret_refs: refs("other"), ..at("none", &url) })
        .await
        .unwrap();
    let id = WorkspaceId::new().to_string();

    let who = world.execute(world.free(&id, "srv_who", json!({}))).await.unwrap();
    assert_eq!(who.data()["content"], "Some(\"[redacted]\") [redacted]");
    assert!(!format!("{:?}", who.facts).contains("abcdefgh12345678"));

    let none = world.execute(world.free(&id, "none_who", json!({}))).await.unwrap();
    let expected = "the tools of the MCP server none are missing: there is no secret \"other\"";
    assert_eq!(none.error(), ("unknown_tool", expected));
    let stored: String =
        sqlx::query_scalar("select string_agg(s::text, ' ') from tools.mcp_server s")
            .fetch_one(&db)
            .await
            .unwrap();
    assert!(stored.contains("token") && !stored.contains("abcdefgh12345678"));
}

#[sqlx::test(migrations = false)]
async fn a_server_that_is_down_is_missing_and_says_why(db: PgPool) {
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
    let url = serve(Server::default()).await;
    let world = World::with(db, &["--egress-allow-private", "127.0.0.1"]).await;
    world.put_server("", at("gone", &format!("http://{gone}/mcp"))).await.unwrap();
    world.put_server("", at("near", "http://10.0.0.1/mcp")).await.unwrap();
    world.put_server("", at("srv", &url)).await.unwrap();
    let id = WorkspaceId::new().to_string();
    let tools = world.tools_of(&id).await;
    assert!(tools.iter().any(|tool| tool.name == "bash"));
    assert!(tools.iter().any(|tool| tool.name == "srv_look"));
    assert!(!tools.iter().any(|tool| tool.name.starts_with("gone_")));
    let states: Vec<_> = world.servers("").await.into_iter().map(|server| server.state).collect();
    assert_eq!(states, ["failed", "failed", "connected"]);
    let details: Vec<_> =
        world.servers("").await.into_iter().map(|server| server.state_detail).collect();
    assert!(details[0].contains("Connection refused"), "{details:?}");
    // Whatever a tenant says, its own machine is not somewhere to look around.
    assert_eq!(details[1], "10.0.0.1 may not be reached: 10.0.0.1 is private");
    let call = world.execute(world.free(&id, "gone_look", json!({}))).await.unwrap();
    let (kind, text) = call.error();
    assert_eq!(kind, "unknown_tool");
    assert!(text.starts_with("the tools of the MCP server gone are missing: "), "{text}");
}

#[sqlx::test(migrations = false)]
async fn a_call_that_takes_too_long_is_given_up_and_not_repeated(db: PgPool) {
    let server = Server::default();
    let url = serve(server.clone()).await;
    let world = World::with(db, &["--egress-allow-private", "127.0.0.1"]).await;
    world.put_server("", at("srv", &url)).await.unwrap();
    let id = WorkspaceId::new().to_string();
    let request = proto::tools::v1::ExecuteRequest {
        call: Some(world.free(&id, "srv_hang", json!({}))),
        timeout_ms: 300,
        approved: false,
    };
    let answers = world.client.clone().execute(world.peer.request(&world.caller, request)).await;
    let ended = world.finish(answers.unwrap().into_inner()).await.unwrap();
    assert_eq!(ended.error(), ("timeout", "no answer after 300 ms; it may have had effects"));
    sleep(Duration::from_millis(200)).await;
    assert_eq!(server.calls.load(Ordering::SeqCst), 1);
}

#[sqlx::test(migrations = false)]
async fn a_project_has_its_own_servers_and_a_tenant_its_own(db: PgPool) {
    let url = serve(Server::default()).await;
    let world = World::with(db.clone(), &["--egress-allow-private", "127.0.0.1"]).await;
    let [one, other] = [(); 2].map(|()| WorkspaceId::new().to_string());
    // A workspace without a row is a project of its own.
    world.put_server(&one, at("mine", &url)).await.unwrap();
    world.put_server("shop", at("shop", &url)).await.unwrap();
    assert_eq!(world.names_of(&one, "mine").await.len(), 6);
    assert_eq!(world.names_of(&other, "mine").await, [""; 0]);
    sqlx::query("insert into tools.workspace (tenant_id, workspace_id, project) values ('acme', $1, 'shop')")
        .bind(&other)
        .execute(&db)
        .await
        .unwrap();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while world.names_of(&other, "shop").await.len() != 6 {
        assert!(tokio::time::Instant::now() < deadline, "the project's server is not seen");
        sleep(Duration::from_millis(100)).await;
    }
    // To another tenant there is nothing of this.
    let stranger = chassis::Caller::service("other".parse().unwrap(), "tests");
    let request = ListToolsRequest { workspace_id: one.clone(), ..Default::default() };
    let listed = world.client.clone().list_tools(world.peer.request(&stranger, request)).await;
    let listed = listed.unwrap().into_inner();
    assert!(!listed.per_workspace && listed.tools.iter().all(|tool| tool.mcp_server_id.is_empty()));
    let delete = |project: &str, id: &str| DeleteMcpServerRequest {
        project: project.into(),
        mcp_server_id: id.into(),
    };
    let request = world.peer.request(&stranger, delete(&one, "mine"));
    let refused = world.policies().delete_mcp_server(request).await.unwrap_err();
    assert_eq!(
        explain(&refused),
        "NotFound REASON_POLICY_NOT_FOUND: there is no rule, hook or MCP server \"mine\" here"
    );
    // What is deleted is gone at once, with whatever ran.
    let request = world.peer.request(&world.caller, delete(&one, "mine"));
    world.policies().delete_mcp_server(request).await.unwrap();
    assert_eq!(world.names_of(&one, "mine").await, [""; 0]);
    assert_eq!(world.servers(&one).await, []);
}

#[sqlx::test(migrations = false)]
async fn there_is_an_end_to_how_many_servers_a_project_has(db: PgPool) {
    let world = World::start(db).await;
    let put =
        |number: usize| world.put_server("", at(&format!("s{number}"), "https://example.com"));
    for number in 0..50 {
        put(number).await.unwrap();
    }
    let refused = put(50).await.unwrap_err();
    assert_code(&refused, Code::InvalidArgument);
    assert!(refused.message().contains("there are 50 MCP servers already"), "{refused:?}");
    put(7).await.unwrap();
    assert_eq!(world.servers("").await.len(), 50);
    assert_eq!(world.servers("p").await.len(), 0);
}
