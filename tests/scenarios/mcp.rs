use local::Service;
use proto::{
    event::v1::{Event, Payload},
    session::v1::{Manifest, part::Content},
    tools::v1::{
        McpServer, Permissions, PutMcpServerRequest, Rule, mcp_server::Transport,
        permissions::Mode, policy_service_client::PolicyServiceClient, rule::Action,
    },
};
use tests::{Client, Session, World, text_of};

/// A server in a few lines, with the tools that it is given.
fn server(tools: &str) -> String {
    let loop_over_lines = r#"
answer() { printf '{"jsonrpc":"2.0","id":%s,%s}\n' "$1" "$2"; }
while IFS= read -r line; do
    id=; [[ $line =~ \"id\":([0-9]+) ]] && id=${BASH_REMATCH[1]}
    case $line in
    *'"method":"initialize"'*) answer "$id" '"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"t","version":"1"}}' ;;
    *'"method":"tools/list"'*) answer "$id" "\"result\":{\"tools\":[$tools]}" ;;
    *'"method":"tools/call"'*) answer "$id" "\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"hello from $PWD\"}]}" ;;
    *'"id"'*) answer "$id" '"error":{"code":-32601,"message":"no such method"}' ;;
    esac
done"#;
    format!("{tools}\n{loop_over_lines}")
}

async fn put_server(client: &Client, id: &str, command: String) {
    let server = McpServer {
        mcp_server_id: id.into(),
        transport: Some(Transport::Command(command)),
        ..McpServer::default()
    };
    let request = PutMcpServerRequest { project: String::new(), mcp_server: Some(server) };
    let mut policies = PolicyServiceClient::new(client.to(Service::Tools));
    policies.put_mcp_server(request).await.unwrap();
}

async fn create_session(client: &Client, rules: Vec<Rule>) -> Session {
    let permissions = Permissions { rules, mode: Mode::Default.into(), ..Permissions::default() };
    let manifest = Manifest {
        prompt: "You do what scripts say.".into(),
        model: "scripted/demo".into(),
        permissions: Some(permissions),
        ..Manifest::default()
    };
    client.put_manifest("user-of-tools", manifest).await;
    client.create_session_with("user-of-tools").await
}

fn allow(permission: &str) -> Rule {
    Rule {
        permission: permission.into(),
        pattern: "*".into(),
        action: Action::Allow.into(),
        ..Rule::default()
    }
}

/// The tools that the model was offered, whenever that changed.
fn offers(events: &[Event]) -> Vec<Vec<String>> {
    let offers = events.iter().filter_map(|event| match &event.payload {
        Some(Payload::ToolCatalogResolved(resolved)) => Some(resolved.tools.clone()),
        _ => None,
    });
    offers.collect()
}

/// What became of the calls of a session, in order: `tool: output or error`.
async fn calls(session: &Session) -> Vec<String> {
    let parts = session.messages().await.into_iter().flat_map(|message| message.parts);
    let calls = parts.filter_map(|part| match part.content {
        Some(Content::Tool(tool)) => {
            Some(format!("{}: {}{}", tool.tool, tool.output_json, tool.error_text))
        }
        _ => None,
    });
    calls.collect()
}

#[tokio::test]
async fn an_agent_uses_the_tools_of_an_mcp_server() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    let tools = r#"tools='{"name":"greet","description":"Greets.","inputSchema":{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}}'"#;
    put_server(&client, "t", server(tools)).await;
    put_server(&client, "down", "echo out of order >&2; exit 1".into()).await;

    // One that is down takes nothing away but itself.
    let session = create_session(&client, vec![allow("t_*")]).await;
    let seen = session.run("call t_greet {\"name\": \"ann\"}\n---\nsay {{tool_result}}").await;
    assert_eq!(seen.last().unwrap().r#type, "turn.completed");
    let offered = offers(&seen).remove(0);
    assert!(offered.contains(&"t_greet".to_owned()) && offered.contains(&"bash".to_owned()));
    let place = |name: &str| seen.iter().position(|event| event.r#type == name).unwrap();
    assert!(place("permission.evaluated") < place("sandbox.applied"));
    assert!(place("sandbox.applied") < place("tool.result"));
    assert_eq!(calls(&session).await, [r#"t_greet: {"content":"hello from /workspace"}"#]);
    assert!(text_of(&seen).contains("hello from /workspace"));

    // Nobody trusts it, so without a rule a person decides.
    let cautious = create_session(&client, vec![]).await;
    let action = cautious.asks("call t_greet {\"name\": \"ann\"}\n---\nsay Done.").await;
    assert_eq!(action.request.unwrap().tool, "t_greet");
}

#[tokio::test]
async fn of_many_tools_an_agent_finds_what_it_needs() {
    let mut world = World::start().await;
    let client = world.client("acme").await;
    let tools = r#"tools=; for n in {1..40}; do tools+="{\"name\":\"t$n\",\"description\":\"Does $n.\",\"inputSchema\":{\"type\":\"object\"}},"; done
tools+='{"name":"paint","description":"Paints a picture.","inputSchema":{"type":"object"}}'"#;
    put_server(&client, "t", server(tools)).await;
    let session = create_session(&client, vec![allow("t_*")]).await;
    let script = "call t_paint {}\n---\ncall tool_search {\"query\": \"paint pictures\"}\n---\n\
                  call t_paint {}\n---\nsay Done.";
    let seen = session.run(script).await;
    assert_eq!(seen.last().unwrap().r#type, "turn.completed");
    let offered = offers(&seen);
    let has = |offer: &[String], name: &str| offer.iter().any(|tool| tool == name);
    assert_eq!(offered.len(), 2, "before and after the search: {offered:?}");
    assert!(has(&offered[0], "tool_search") && has(&offered[0], "bash"));
    assert!(!offered[0].iter().any(|tool| tool.starts_with("t_")));
    assert!(has(&offered[1], "t_paint") && offered[1].len() == offered[0].len() + 1);
    let done = calls(&session).await;
    assert_eq!(done[0], "t_paint: t_paint was not offered: find it with tool_search first");
    assert!(
        done[1].starts_with(
            r#"tool_search: {"searched":41,"tools":[{"description":"Paints a picture."#
        ),
        "{}",
        done[1]
    );
    assert_eq!(done[2], r#"t_paint: {"content":"hello from /workspace"}"#);

    // It stays found, also for a server that knows nothing but what is stored.
    world.fleet.get(Service::Session).terminate().await.unwrap();
    world.fleet.get(Service::Session).restart().await.unwrap();
    let seen = session.run("call t_paint {}\n---\ncall t_t1 {}\n---\nsay Done.").await;
    assert_eq!(offers(&seen), [[""; 0]; 0], "what is offered is the same");
    let done = calls(&session).await;
    assert_eq!(done[3], r#"t_paint: {"content":"hello from /workspace"}"#);
    assert_eq!(done[4], "t_t1: t_t1 was not offered: find it with tool_search first");
}
