//! Nothing that is secret is in what operators collect.

use std::{collections::BTreeMap, fs, time::Duration};

use data_encoding::{BASE64, BASE64URL, HEXLOWER, HEXUPPER};
use local::{Fleet, Servers, Service};
use proto::{
    session::v1::{EvidenceScope, ExportEvidenceRequest, evidence_scope},
    tools::v1::{
        Hook, ListToolsRequest, McpServer, PutHookRequest, PutMcpServerRequest,
        hook::Target as HookTarget, mcp_server::Transport,
    },
    triggers::v1::{
        Api, CreateTriggerRequest, CreateTriggerResponse, RotateTriggerSecretRequest, Target,
        Trigger, Webhook, target::Session as TargetSession, trigger::Kind,
    },
};
use serde_json::json;
use tests::{
    Act, Client, Collector, Sender, Session, Upstream, World, new_key, request_id, signed,
};
use tokio::time::sleep;

use crate::local_server::answer;

/// Secrets that are chosen here; others are made by the system.
const PROVIDER: &str = "sk-provider-0123456789abcdefghij";
const HOOK: &str = "hook-secret-0123456789abcdefghij";
const MCP: &str = "mcp-secret-0123456789abcdefghij";
const WEBHOOK: &str = "webhook-secret-0123456789abcdefghij";
const ROTATED: &str = "rotated-secret-0123456789abcdefghij";

/// Where internal tokens begin, whatever they say.
const TOKENS: [&str; 2] = ["eyJ0eXAiOiJKV1Qi", "eyJhbGciOi"];

#[tokio::test]
async fn logs_and_traces_have_no_secrets() {
    let dir = tempfile::tempdir().unwrap();
    let collector = Collector::start().await;
    let upstream = Upstream::start().await;
    let (private, _) = new_key(dir.path()).await;
    let catalogue = json!({
        "providers": [
            {
                "name": "remote", "kind": "openai_chat", "base_url": format!("{}/v1", upstream.url),
                "credential": { "env": "PROVIDER_KEY" },
            },
            { "name": "scripted", "kind": "scripted" },
        ],
        "models": [model("remote", "large"), model("scripted", "demo")],
    });
    let path = dir.path().join("catalogue.json");
    fs::write(&path, catalogue.to_string()).unwrap();
    fs::create_dir_all(dir.path().join("secrets/acme")).unwrap();
    fs::write(dir.path().join("secrets/acme/token"), MCP).unwrap();
    let text = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    let plan = Fleet::plan()
        .env("LOG", "debug")
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url.as_str())
        .env_of(Service::Models, "CATALOGUE", text(&path))
        .env_of(Service::Models, "PROVIDER_KEY", PROVIDER)
        .env_of(Service::Tools, "HOOK_SECRET", HOOK)
        .env_of(Service::Tools, "SECRETS_DIR", text(&dir.path().join("secrets")))
        .env_of(Service::Tools, "EGRESS_ALLOW_PRIVATE", "127.0.0.1")
        .env_of(Service::Session, "EVIDENCE_KEY_FILE", text(&private));
    let servers = Servers::private().await.unwrap();
    let mut world = World::on(servers, plan).await;

    let key = world.fleet.mint_key("acme", "ann", "read,run,configure,admin").await.unwrap();
    let client = world.client_with(Some(&key));
    client.put_agent().await;
    let session = client.create_session().await;
    let mut secrets = BTreeMap::from([
        ("API key", key.clone()),
        ("provider credential", PROVIDER.to_owned()),
        ("hook secret", HOOK.to_owned()),
        ("MCP secret", MCP.to_owned()),
        ("webhook secret", WEBHOOK.to_owned()),
        ("rotated webhook secret", ROTATED.to_owned()),
        ("database password", password(world.servers.database_url())),
        ("redis password", password(world.servers.redis_url())),
        ("internal secret", kept(&world, "internal.secret")),
        ("key of the webhook secrets", kept(&world, "secrets.key")),
        ("evidence key", fs::read_to_string(&private).unwrap().lines().nth(1).unwrap().to_owned()),
    ]);

    secrets.insert("hook signing key", hooks(&client, &session, &upstream).await);
    providers(&client, &upstream).await;
    mcp(&client, &session, &upstream).await;
    webhooks(&client, &session).await;
    secrets.insert("API trigger's credential", api_trigger(&client, &session).await);
    let scope = evidence_scope::Scope::SessionId(session.id.clone());
    let request = ExportEvidenceRequest { scope: Some(EvidenceScope { scope: Some(scope) }) };
    client.evidence().export_evidence(request).await.unwrap().into_inner().message().await.unwrap();

    // A key that is almost right, and a service that lost what it stands on.
    let mut almost = key.clone();
    almost.replace_range(key.len() - 1.., if key.ends_with('a') { "b" } else { "a" });
    let stranger = world.client_with(Some(&almost));
    stranger.turns().submit_turn(session.turn("say no")).await.unwrap_err();
    world.servers.redis().unwrap().stop().await.unwrap();
    world.servers.postgres().unwrap().stop().await.unwrap();
    sleep(Duration::from_secs(2)).await;
    client.turns().submit_turn(session.turn("say no")).await.unwrap_err();
    world.servers.postgres().unwrap().restart().await.unwrap();
    world.servers.redis().unwrap().restart().await.unwrap();
    sleep(Duration::from_secs(1)).await;
    world.fleet.stop().await.unwrap();

    let mut places = vec![("traces".to_owned(), collector.text())];
    for service in Service::ALL {
        let log = world.fleet.dir().join(service.name()).with_extension("log");
        places.push((service.name().to_owned(), fs::read_to_string(log).unwrap()));
    }
    let mut found = Vec::new();
    for (place, text) in &places {
        assert!(text.len() > 1_000, "there is nothing to look at: {place}");
        for (name, secret) in &secrets {
            let encoded = encodings(secret).into_iter().find(|encoded| text.contains(encoded));
            found.extend(
                encoded.map(|encoded| format!("{place}: {name}: {}", line(text, &encoded))),
            );
        }
        let token = TOKENS.iter().find(|token| text.contains(**token));
        found.extend(token.map(|token| format!("{place}: a token: {}", line(text, token))));
    }
    assert_eq!(found, [""; 0]);
    // Whoever looks for nothing finds nothing: what is no secret is there.
    assert!(places.iter().all(|(place, text)| place == "triggers" || text.contains("acme")));
}

/// A provider that answers, and one that repeats in its refusal what it was sent.
async fn providers(client: &Client, upstream: &Upstream) {
    let session = client.create_session_on("remote/large").await;
    upstream.answer(answer(r#"{"role":"assistant","content":"Hello."}"#, "stop"));
    session.run("hello").await;
    let body = json!({ "error": { "message": format!("Incorrect API key provided: {PROVIDER}") } });
    upstream.answer(Act::refusal("401 Unauthorized", "", &body.to_string()));
    session.run("hello").await;
    let said = upstream.heard().iter().any(|heard| heard.head.contains(PROVIDER));
    assert!(said, "the credential was never used");
}

/// A hook that is called and fails; what its calls are signed with.
async fn hooks(client: &Client, session: &Session, upstream: &Upstream) -> String {
    let hook = Hook {
        hook_id: "watch".into(),
        event: "stop".into(),
        target: Some(HookTarget::Url(format!("{}/hook", upstream.url))),
        fail_open: true,
        ..Hook::default()
    };
    let request = PutHookRequest { project: String::new(), hook: Some(hook) };
    let put = client.policies().put_hook(request).await.unwrap().into_inner();
    session.run("say It is watched.").await;
    let signed = upstream.heard().iter().any(|heard| heard.head.contains("webhook-signature"));
    assert!(signed, "nobody signed anything");
    put.hook.unwrap().signing_secret
}

/// A server that refuses whoever it was told the secret by.
async fn mcp(client: &Client, session: &Session, upstream: &Upstream) {
    let server = McpServer {
        mcp_server_id: "remote".into(),
        transport: Some(Transport::Url(format!("{}/mcp", upstream.url))),
        secret_refs: [("x-token".to_owned(), "token".to_owned())].into(),
        ..McpServer::default()
    };
    let request = PutMcpServerRequest { project: String::new(), mcp_server: Some(server) };
    client.policies().put_mcp_server(request).await.unwrap();
    upstream.answer(Act::refusal("401 Unauthorized", "", &format!("who is {MCP}?")));
    let workspace_id = session.get().await.workspace_id;
    let request = ListToolsRequest { workspace_id, ..ListToolsRequest::default() };
    client.tools().list_tools(request).await.unwrap();
    let told = upstream.heard().iter().any(|heard| heard.head.contains(MCP));
    assert!(told, "the secret was never used");
}

async fn webhooks(client: &Client, session: &Session) {
    let webhook = Webhook { provider: "github".into(), ..Webhook::default() };
    let created = create(client, session, Kind::Webhook(webhook), WEBHOOK).await;
    let trigger = created.trigger.unwrap();
    let Some(Kind::Webhook(webhook)) = trigger.kind else { panic!("it is no webhook") };
    for secret in [WEBHOOK, "wrong"] {
        let body = json!({ "action": "opened" }).to_string();
        let signature = format!("sha256={}", signed(secret.as_bytes(), &[&body]));
        let headers = [
            ("content-type", "application/json"),
            ("x-github-event", "ping"),
            ("x-github-delivery", "one"),
            ("x-hub-signature-256", &signature),
        ];
        let answer = Sender::post_once(&webhook.url, &headers, &body).await;
        assert_eq!(answer.status == 202, secret == WEBHOOK, "{answer:?}");
    }
    let request = RotateTriggerSecretRequest {
        trigger_id: trigger.trigger_id,
        grace_seconds: 60,
        secret: ROTATED.into(),
    };
    client.triggers().rotate_trigger_secret(request).await.unwrap();
}

/// A trigger that is fired with its credential and without; what that is.
async fn api_trigger(client: &Client, session: &Session) -> String {
    let created = create(client, session, Kind::Api(Api::default()), "").await;
    let Some(Kind::Api(api)) = created.trigger.unwrap().kind else {
        panic!("it is no API trigger")
    };
    let almost = format!("{}x", created.secret);
    for credential in [&created.secret, &almost] {
        let bearer = format!("Bearer {credential}");
        let headers = [("content-type", "application/json"), ("authorization", bearer.as_str())];
        let answer = Sender::post_once(&api.url, &headers, "{}").await;
        assert_eq!(answer.status == 202, *credential == created.secret, "{answer:?}");
    }
    created.secret
}

async fn create(
    client: &Client,
    session: &Session,
    kind: Kind,
    secret: &str,
) -> CreateTriggerResponse {
    let target = TargetSession::SessionId(session.id.clone());
    let trigger = Trigger {
        name: "secret".into(),
        kind: Some(kind),
        target: Some(Target { session: Some(target), ..Target::default() }),
        template: "hello\n#!script\nsay ok".into(),
        ..Trigger::default()
    };
    let request = CreateTriggerRequest {
        request_id: request_id(),
        trigger: Some(trigger),
        secret: secret.into(),
    };
    client.triggers().create_trigger(request).await.unwrap().into_inner()
}

fn model(provider: &str, model: &str) -> serde_json::Value {
    json!({
        "provider": provider, "model": model, "tier": "balanced",
        "context_tokens": 32768, "output_tokens": 8192, "capabilities": ["tools"],
        "price": {
            "currency": "USD", "input_micros": 0, "output_micros": 0,
            "cache_read_micros": 0, "cache_write_micros": 0,
        },
    })
}

fn password(url: &str) -> String {
    let (_, rest) = url.split_once("://").unwrap();
    let (who, _) = rest.rsplit_once('@').unwrap();
    who.split_once(':').unwrap().1.to_owned()
}

fn kept(world: &World, file: &str) -> String {
    fs::read_to_string(world.fleet.dir().join(file)).unwrap().trim().to_owned()
}

/// The secret as it is, and as it may look by accident.
fn encodings(secret: &str) -> Vec<String> {
    let bytes = secret.as_bytes();
    let mut encodings = vec![
        secret.to_owned(),
        HEXLOWER.encode(bytes),
        HEXUPPER.encode(bytes),
        format!("{bytes:?}"),
        secret.chars().rev().collect(),
    ];
    // Within something else that is base64, it begins at any of three places.
    for before in 0..3 {
        let shifted = [&vec![0; before], bytes].concat();
        for encoded in [BASE64.encode(&shifted), BASE64URL.encode(&shifted)] {
            encodings.push(encoded[4..encoded.len() - 4].to_owned());
        }
    }
    encodings
}

/// What stands around it.
fn line(text: &str, what: &str) -> String {
    let at = text.find(what).unwrap_or(0);
    let from = text.floor_char_boundary(at.saturating_sub(300));
    text[from..text.ceil_char_boundary((at + 200).min(text.len()))].to_owned()
}
