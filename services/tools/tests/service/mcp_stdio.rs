//! MCP servers that are programs in the sandbox: well-behaved, hostile and real.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use proto::tools::v1::{McpServer, mcp_server::Transport};
use serde_json::json;
use sqlx::PgPool;
use tokio::{
    process::Command,
    time::{Instant, sleep},
};

use crate::{
    changes::write,
    mcp::at,
    quota::small,
    snapshots::{restore, take},
    world::{WorkspaceId, World},
};

/// A server in as few lines as the protocol takes. `tools` is a file, so that it can change.
const SERVER: &str = r#"
answer() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$1" "$2"; }
say() { answer "$1" "{\"content\":[{\"type\":\"text\",\"text\":\"$2\"}]}"; }
echo "starting" >&2
while IFS= read -r line; do
    id=; [[ $line =~ \"id\":([0-9]+) ]] && id=${BASH_REMATCH[1]}
    case $line in
    *'"method":"initialize"'*)
        answer "$id" '{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"t","version":"1"}}' ;;
    *'"method":"tools/list"'*) answer "$id" "{\"tools\":[$(<tools)]}" ;;
    *'"method":"notifications/cancelled"'*) echo cancelled >> log ;;
    *'"method":"tools/call"'*)
        echo call >> log
        case $line in
        *'"name":"pwd"'*) say "$id" "$PWD $SECRET" ;;
        *'"name":"grow"'*)
            printf '{"name":"grown","inputSchema":{"type":"object"}},%s' "$(<tools)" > more && mv more tools
            echo '{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'
            say "$id" ok ;;
        *'"name":"sample"'*)
            echo '{"jsonrpc":"2.0","id":"s","method":"sampling/createMessage","params":{"messages":[],"maxTokens":1}}'
            IFS= read -r reply
            [[ $reply == *'"error"'* ]] && say "$id" refused || say "$id" given ;;
        *'"name":"die"'*) echo "the secret is $SECRET" >&2; exit 1 ;;
        *'"name":"flood"'*) while :; do echo '{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'; done ;;
        *'"name":"burst"'*) head -c 5000000 /dev/zero | tr '\0' x; sleep 60 ;;
        *'"name":"hang"'*) ;;
        esac ;;
    *'"id"'*) printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no such method"}}\n' "$id" ;;
    esac
done
"#;

fn program(id: &str, command: &str) -> McpServer {
    let transport = Some(Transport::Command(command.into()));
    McpServer { mcp_server_id: id.into(), transport, ..McpServer::default() }
}

/// A workspace with the server in it.
async fn workspace(world: &World) -> String {
    let id = world.workspace("touch log").await;
    let tools = ["pwd", "grow", "sample", "die", "flood", "burst", "hang"]
        .map(|name| json!({ "name": name, "inputSchema": { "type": "object" } }).to_string());
    fs::write(world.folder(&id).join("server.sh"), SERVER).unwrap();
    // The server changes it, as the user that commands run as.
    let tools = tools.join(",");
    world.prints(&id, &format!("echo '{tools}' > tools")).await;
    id
}

/// Waits until something is so.
async fn until(what: &str, mut so: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !so().await {
        assert!(Instant::now() < deadline, "never: {what}");
        sleep(Duration::from_millis(50)).await;
    }
}

async fn detail(world: &World) -> (String, String) {
    let server = world.servers("").await.remove(0);
    (server.state, server.state_detail)
}

#[sqlx::test(migrations = false)]
async fn a_program_serves_tools_from_inside_of_the_sandbox(db: PgPool) {
    let secrets = tempfile::tempdir().unwrap();
    fs::create_dir(secrets.path().join("acme")).unwrap();
    fs::write(secrets.path().join("acme/key"), "abcdefgh12345678").unwrap();
    let flags = ["--secrets-dir", secrets.path().to_str().unwrap()];
    let world = World::with(db, &flags).await;
    let id = workspace(&world).await;
    let secret_refs = [("SECRET".to_owned(), "key".to_owned())].into();
    let server = McpServer { secret_refs, ..program("t", "bash server.sh") };
    assert_eq!(world.put_server("", server).await.unwrap().state, "idle");

    let pwd = world.execute(world.free(&id, "t_pwd", json!({}))).await.unwrap();
    assert_eq!(pwd.data(), json!({ "content": "/workspace [redacted]" }));
    assert_eq!(pwd.names(), ["sandbox.applied", "tool.progress"]);
    assert!(!format!("{:?}", pwd.facts).contains("abcdefgh"));

    // It cannot ask anything of us.
    let sample = world.execute(world.free(&id, "t_sample", json!({}))).await.unwrap();
    assert_eq!(sample.data()["content"], "refused");

    // What it has more from now on is there for the next turn.
    assert!(!world.names_of(&id, "t").await.contains(&"t_grown".to_owned()));
    world.execute(world.free(&id, "t_grow", json!({}))).await.unwrap();
    until("the new tool is listed", async || {
        world.names_of(&id, "t").await.contains(&"t_grown".to_owned())
    })
    .await;

    // Whoever stops waiting is no reason to go on.
    let call = world.begin(world.free(&id, "t_hang", json!({}))).await.unwrap();
    let log = world.folder(&id).join("log");
    let calls = || fs::read_to_string(&log).unwrap().lines().filter(|line| *line == "call").count();
    until("the call arrives", async || calls() == 4).await;
    drop(call);
    until("the server hears of it", async || {
        fs::read_to_string(&log).unwrap().contains("cancelled")
    })
    .await;

    // When it dies, the call says so and is not made again; what it printed is there for
    // people, without the secret; and then it is started anew.
    let died = world.execute(world.free(&id, "t_die", json!({}))).await.unwrap();
    let (kind, text) = died.error();
    assert_eq!(kind, "failed");
    assert!(text.contains("it may have had effects"), "{text}");
    until("it failed", async || detail(&world).await.0 == "failed").await;
    let (_, why) = detail(&world).await;
    assert!(why.contains("the secret is [redacted]"), "{why}");
    assert_eq!(calls(), 5);
    until("it is there again", async || !world.names_of(&id, "t").await.is_empty()).await;
}

#[sqlx::test(migrations = false)]
async fn a_server_that_says_too_much_is_hung_up_on(db: PgPool) {
    let world = World::start(db).await;
    for (tool, why) in [
        ("t_flood", "it sends too many messages"),
        ("t_burst", "it sent a message of more than 4 MiB"),
    ] {
        let id = workspace(&world).await;
        world.put_server("", program("t", &format!("bash server.sh # {tool}"))).await.unwrap();
        let flooded = world.execute(world.free(&id, tool, json!({}))).await.unwrap();
        let (kind, text) = flooded.error();
        assert_eq!(kind, "failed");
        assert!(text.contains(why) && text.contains("it may have had effects"), "{text}");
        until("it failed", async || detail(&world).await == ("failed".into(), why.into())).await;
    }
}

#[sqlx::test(migrations = false)]
async fn a_server_is_held_to_its_workspace(db: PgPool) {
    let world = World::start(db).await;
    let failed = async |with: &str| {
        let (state, why) = detail(&world).await;
        state == "failed" && why.contains(with)
    };
    let small = async |mib: i64| {
        let id = small(&world, mib * 1024 * 1024).await;
        write(&world, &id, "server.sh", SERVER.as_bytes()).await.unwrap();
        write(&world, &id, "tools", br#"{"name":"hang","inputSchema":{"type":"object"}}"#)
            .await
            .unwrap();
        id
    };
    // It writes when nobody calls it.
    let id = small(4).await;
    let command = "(sleep 1; head -c 20000000 /dev/zero > large; sleep 60) & bash server.sh";
    world.put_server("", program("t", command)).await.unwrap();
    assert_eq!(world.names_of(&id, "t").await, ["t_hang"]);
    until("it has to go", async || failed("is full").await).await;

    // It writes before it has said a word, or what its tools are.
    for (mib, command) in [
        (5, "head -c 20000000 /dev/zero > large; sleep 60"),
        (
            6,
            "rm tools; mkfifo tools; (sleep 1; head -c 20000000 /dev/zero > large) & bash server.sh",
        ),
    ] {
        let id = small(mib).await;
        world.put_server("", program("t", command)).await.unwrap();
        let begun = Instant::now();
        assert_eq!(world.names_of(&id, "t").await, [""; 0], "{command}");
        until("it has to go", async || failed("is full").await).await;
        // Not when somebody has waited for its words in vain.
        assert!(begun.elapsed() < Duration::from_secs(25), "{command}");
    }

    // It keeps nobody from putting the workspace back, and does not go on in what was there before.
    let id = workspace(&world).await;
    world.put_server("", program("t", "bash server.sh")).await.unwrap();
    assert!(!world.names_of(&id, "t").await.is_empty());
    let snapshot = take(&world, &id, "one").await.unwrap();
    restore(&world, &id, &snapshot).await.unwrap();
    until("it has to go", async || detail(&world).await.0 == "idle").await;
    until("it is there again", async || !world.names_of(&id, "t").await.is_empty()).await;
}

#[sqlx::test(migrations = false)]
async fn what_is_no_server_is_missing_and_keeps_nobody_waiting(db: PgPool) {
    let world = World::start(db).await;
    for (command, why) in [
        ("echo broken >&2; exit 3", "it printed: broken"),
        ("yes", "it prints too much that is no message"),
        ("head -c 5000000 /dev/zero; sleep 60", "it sent a message of more than 4 MiB"),
        ("head -c 100000 /dev/urandom; exit 0", ""),
        ("nothing-there", "it printed: bash"),
    ] {
        let id = WorkspaceId::new().to_string();
        world.put_server("", program("t", command)).await.unwrap();
        let begun = Instant::now();
        assert_eq!(world.names_of(&id, "t").await, [""; 0], "{command}");
        assert!(begun.elapsed() < Duration::from_secs(9), "{command}");
        until("it failed", async || detail(&world).await.0 == "failed").await;
        let (_, detail) = detail(&world).await;
        assert!(detail.contains(why), "{command}: {detail}");
        assert!(detail.chars().count() <= 1_000);
    }
    // One that says nothing at all is not waited for.
    let id = WorkspaceId::new().to_string();
    world.put_server("", program("t", "sleep 100")).await.unwrap();
    let begun = Instant::now();
    assert!(world.tools_of(&id).await.iter().any(|tool| tool.name == "bash"));
    assert!(begun.elapsed() < Duration::from_secs(9));
}

#[sqlx::test(migrations = false)]
async fn a_server_that_nobody_uses_is_ended(db: PgPool) {
    let world = World::with(db, &["--mcp-idle", "1"]).await;
    let id = workspace(&world).await;
    world.put_server("", program("t", "bash server.sh")).await.unwrap();
    assert_eq!(world.names_of(&id, "t").await.len(), 7);
    assert_eq!(detail(&world).await.0, "connected");
    until("it rests", async || detail(&world).await.0 == "idle").await;
    assert_eq!(world.names_of(&id, "t").await.len(), 7);
}

/// The reference server of the protocol, which `deploy/local/install.sh mcp` installs.
fn everything() -> PathBuf {
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || PathBuf::from(env::var_os("HOME").unwrap()).join(".cache");
    let folder = cache.unwrap_or_else(home).join("windlass/mcp-everything");
    assert!(folder.exists(), "not installed: run `deploy/local/install.sh mcp` first");
    folder
}

fn main_file(folder: &Path) -> String {
    let path = "node_modules/@modelcontextprotocol/server-everything/dist/index.js";
    folder.join(path).to_str().unwrap().to_owned()
}

/// What any way to the server must give.
async fn uses_everything(world: &World) {
    let id = WorkspaceId::new().to_string();
    until("it is connected", async || !world.names_of(&id, "every").await.is_empty()).await;
    let names = world.names_of(&id, "every").await;
    for name in ["every_echo", "every_get_sum", "every_get_tiny_image"] {
        assert!(names.contains(&name.to_owned()), "{names:?}");
    }
    let call = |tool: &str, input| world.execute(world.free(&id, tool, input));
    let echo = call("every_echo", json!({ "message": "hello" })).await.unwrap();
    assert_eq!(echo.data()["content"], "Echo: hello");
    let sum = call("every_get_sum", json!({ "a": 2, "b": 3 })).await.unwrap();
    assert_eq!(sum.data()["content"], "The sum of 2 and 3 is 5.");
    let wrong = call("every_get_sum", json!({ "a": "two", "b": 3 })).await.unwrap();
    assert_eq!(wrong.error().0, "schema");
    let image = call("every_get_tiny_image", json!({})).await.unwrap();
    let text = image.data()["content"].as_str().unwrap().to_owned();
    assert!(text.contains("[image, image/png, ") && text.contains(" bytes, not shown]"), "{text}");
    let structured =
        call("every_get_structured_content", json!({ "location": "New York" })).await.unwrap();
    assert!(structured.data()["structured_content"]["temperature"].is_number());
}

#[sqlx::test(migrations = false)]
async fn the_reference_server_is_used_in_the_sandbox(db: PgPool) {
    // Commands are somebody else, who may not look into our home.
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copied = Command::new("cp").arg("-r").arg(everything()).arg(folder.path()).status().await;
    assert!(copied.unwrap().success());
    let folder = folder.path().join("mcp-everything");
    let world = World::with(db, &["--sandbox-read-only", folder.to_str().unwrap()]).await;
    let command = format!("exec node {} stdio", main_file(&folder));
    world.put_server("", program("every", &command)).await.unwrap();
    uses_everything(&world).await;
    let id = WorkspaceId::new().to_string();
    let echo = world.execute(world.free(&id, "every_echo", json!({ "message": "hello" }))).await;
    assert_eq!(echo.unwrap().names(), ["sandbox.applied", "tool.progress"]);
}

#[sqlx::test(migrations = false)]
async fn the_reference_server_is_used_over_http(db: PgPool) {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let _server = Command::new("node")
        .args([&main_file(&everything()), "streamableHttp"])
        .env("PORT", port.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let host = format!("127.0.0.1:{port}");
    let world = World::with(db, &["--egress-allow-private", "127.0.0.1"]).await;
    world.put_server("", at("every", &format!("http://{host}/mcp"))).await.unwrap();
    uses_everything(&world).await;
}
