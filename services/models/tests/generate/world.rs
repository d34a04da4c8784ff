//! The service on a port of its own, and the verbs tests are written in.

use std::{
    fmt::Write as _,
    path::Path,
    sync::atomic::{AtomicU32, Ordering},
};

use chassis::{Auth, Caller, Peer, auth::keys};
use clap::Parser as _;
use models::Config;
use proto::{
    event::v1::Event,
    models::v1::{
        self as pb, generate_response::Item, limit_service_client::LimitServiceClient,
        model_service_client::ModelServiceClient, usage_service_client::UsageServiceClient,
    },
};
use secrecy::ExposeSecret as _;
use sqlx::{ConnectOptions as _, PgPool};
use tempfile::TempDir;
use tokio::{
    net::TcpListener,
    task::JoinHandle,
    time::{Duration, Instant, sleep},
};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Status, Streaming, transport::Channel};
use tonic_types::StatusExt as _;

pub struct World {
    pub client: ModelServiceClient<Channel>,
    pub peer: Peer,
    pub caller: Caller,
    pub stop: CancellationToken,
    db: PgPool,
    server: Option<JoinHandle<anyhow::Result<()>>>,
    directory: Option<TempDir>,
}

/// All tests share one Redis, so every world is a tenant of its own.
fn tenant() -> String {
    static WORLDS: AtomicU32 = AtomicU32::new(0);
    let world = WORLDS.fetch_add(1, Ordering::Relaxed);
    format!("acme-{}-{world}", std::process::id())
}

impl World {
    pub async fn start(db: PgPool) -> World {
        World::begin_with(db, tenant(), None).await
    }

    /// With a catalogue in a directory of its own, in which it may refer to files, and to
    /// the tenant that calls.
    pub async fn with_catalogue(db: PgPool, write: impl FnOnce(&Path, &str) -> String) -> World {
        let directory = tempfile::tempdir().unwrap();
        let tenant = tenant();
        let catalogue = write(directory.path(), &tenant);
        std::fs::write(directory.path().join("catalogue.json"), catalogue).unwrap();
        World::begin_with(db, tenant, Some(directory)).await
    }

    /// The same tenant's calls at another process, which finds no Redis, and does then as told.
    pub async fn without_redis(&self, instead: &str) -> World {
        // Nobody listens there, and nobody can.
        let flags = ["--redis-url", "redis://127.0.0.1:1", "--limits-without-redis", instead];
        let tenant = self.caller.tenant.to_string();
        World::begin_like(self.db.clone(), tenant, None, &flags).await
    }

    async fn begin_with(db: PgPool, tenant: String, directory: Option<TempDir>) -> World {
        let redis = std::env::var("REDIS_URL").unwrap();
        World::begin_like(db, tenant, directory, &["--redis-url", &redis]).await
    }

    async fn begin_like(
        db: PgPool,
        tenant: String,
        directory: Option<TempDir>,
        flags: &[&str],
    ) -> World {
        chassis::database::MIGRATIONS.run(&db).await.unwrap();
        let database = db.connect_options().to_url_lossy().to_string();
        let secret = "a secret that only tests know about";
        let common = ["models", "--database-url", &database, "--auth-internal-secret", secret];
        let mut config = Config::parse_from(common.iter().chain(flags));
        config.catalogue = directory.as_ref().map(|one| one.path().join("catalogue.json"));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let auth = Auth::new("tests", &config.chassis.auth, db.clone()).await.unwrap();
        let peer = Peer::new("models", &url, &config.chassis.tls, &auth).unwrap();
        let caller = Caller::service(tenant.parse().unwrap(), "ada");

        let stop = CancellationToken::new();
        let server = Some(tokio::spawn(models::serve(config, listener, stop.clone())));
        let client = ModelServiceClient::new(peer.channel());
        World { client, peer, caller, stop, db, server, directory }
    }

    /// Where the catalogue is.
    pub fn directory(&self) -> &Path {
        self.directory.as_ref().unwrap().path()
    }

    pub async fn models(&mut self) -> Vec<pb::Model> {
        let request = self.peer.request(&self.caller, pb::ListModelsRequest::default());
        self.client.list_models(request).await.unwrap().into_inner().models
    }

    pub fn limits(&self) -> LimitServiceClient<Channel> {
        LimitServiceClient::new(self.peer.channel())
    }

    pub fn usage(&self) -> UsageServiceClient<Channel> {
        UsageServiceClient::new(self.peer.channel())
    }

    pub async fn put_limit(&self, limit: pb::Limit) -> Result<pb::Limit, Status> {
        let request = self.as_caller(pb::PutLimitRequest { limit: Some(limit) });
        Ok(self.limits().put_limit(request).await?.into_inner().limit.unwrap())
    }

    pub async fn put_budget(&self, name: &str, amount_micros: i64) -> Result<pb::Budget, Status> {
        let (name, request_id) = (name.to_owned(), format!("request-{name}"));
        let request =
            pb::PutBudgetRequest { name, request_id, amount_micros, ..Default::default() };
        let response = self.limits().put_budget(self.as_caller(request)).await?;
        Ok(response.into_inner().budget.unwrap())
    }

    pub async fn budget(&self, budget_id: &str) -> Result<pb::Budget, Status> {
        let request = pb::GetBudgetRequest { budget_id: budget_id.to_owned() };
        let response = self.limits().get_budget(self.as_caller(request)).await?;
        Ok(response.into_inner().budget.unwrap())
    }

    pub async fn list_limits(&self) -> Vec<pb::Limit> {
        let request = self.as_caller(pb::ListLimitsRequest::default());
        self.limits().list_limits(request).await.unwrap().into_inner().limits
    }

    /// The request log once it has `count` rows that are over.
    pub async fn log(&self, count: usize) -> Vec<pb::ModelRequest> {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let request = self.as_caller(pb::ListModelRequestsRequest::default());
            let page = self.usage().list_model_requests(request).await.unwrap().into_inner();
            let rows = page.model_requests;
            if rows.len() == count && rows.iter().all(|row| row.status != "running") {
                return rows;
            }
            assert!(Instant::now() < deadline, "{rows:?}");
            sleep(Duration::from_millis(20)).await;
        }
    }

    pub fn as_caller<T>(&self, message: T) -> Request<T> {
        self.peer.request(&self.caller, message)
    }

    /// What the model does with a script, one line per item.
    pub async fn play(&self, text: &str) -> String {
        self.generate(script(text)).await
    }

    pub async fn generate(&self, request: pb::GenerateRequest) -> String {
        let request = self.peer.request(&self.caller, request);
        match self.client.clone().generate(request).await {
            Ok(answer) => World::rest(answer.into_inner()).await,
            Err(error) => format!("error {}\n", explain(&error)),
        }
    }

    pub async fn begin(&mut self, request: pb::GenerateRequest) -> Streaming<pb::GenerateResponse> {
        let request = self.peer.request(&self.caller, request);
        self.client.generate(request).await.unwrap().into_inner()
    }

    pub async fn until_text(&self, answer: &mut Streaming<pb::GenerateResponse>) {
        while !matches!(answer.message().await.unwrap().unwrap().item, Some(Item::Text(_))) {}
    }

    /// Everything up to the end, as lines.
    pub async fn rest(mut answer: Streaming<pb::GenerateResponse>) -> String {
        let mut items: Vec<Item> = Vec::new();
        let end = loop {
            match answer.message().await {
                Ok(Some(response)) => {
                    let item = response.item.unwrap();
                    let rest = match items.last_mut() {
                        Some(said) => joined(said, item),
                        None => Some(item),
                    };
                    items.extend(rest);
                }
                Ok(None) => break String::new(),
                Err(error) => break format!("error {}\n", explain(&error)),
            }
        };
        items.into_iter().map(line).collect::<String>() + &end
    }

    pub async fn key(&self) -> String {
        let new = keys::NewKey {
            tenant: self.caller.tenant.clone(),
            subject: self.caller.subject.clone(),
            name: "a test's".to_owned(),
            scopes: self.caller.scopes,
            expires_at: None,
        };
        let (_, secret) = keys::create(&self.db, new).await.unwrap();
        secret.expose_secret().to_owned()
    }

    pub fn as_key<T>(&self, key: &str, message: T) -> Request<T> {
        let mut request = Request::new(message);
        let credential = format!("Bearer {key}").parse().unwrap();
        request.metadata_mut().insert("authorization", credential);
        request
    }

    pub async fn stop(&mut self) {
        self.stop.cancel();
        self.server.take().unwrap().await.unwrap().unwrap();
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Words come joined as far as they were there at once, which is a matter of time. Returns
/// what is something else.
fn joined(said: &mut Item, item: Item) -> Option<Item> {
    match (said, item) {
        (Item::Text(said), Item::Text(more)) => said.text += &more.text,
        (Item::Reasoning(said), Item::Reasoning(more)) if said.signature.is_empty() => {
            said.text += &more.text;
            said.signature = more.signature;
        }
        (Item::ToolCallDelta(said), Item::ToolCallDelta(more)) if said.index == more.index => {
            said.input_json += &more.input_json;
        }
        (_, item) => return Some(item),
    }
    None
}

/// A request of a session whose only message is a script.
pub fn script(text: &str) -> pb::GenerateRequest {
    let kind = Some(pb::content::Kind::Text(format!("#!script\n{text}")));
    let message =
        pb::Message { role: pb::message::Role::User.into(), content: vec![pb::Content { kind }] };
    pb::GenerateRequest {
        session_id: "ses_1".to_owned(),
        turn_id: "turn_1".to_owned(),
        step_id: "step_1".to_owned(),
        prompt: Some(pb::Prompt { messages: vec![message], ..pb::Prompt::default() }),
        target: Some(pb::Target { model: "scripted/demo".to_owned(), ..pb::Target::default() }),
        attempt: 1,
        ..pb::GenerateRequest::default()
    }
}

/// A failure on one line, for snapshots.
pub fn explain(status: &Status) -> String {
    let info = status.get_details_error_info().unwrap();
    let mut metadata: Vec<_> = info.metadata.into_iter().collect();
    metadata.sort();
    let mut text = format!("{:?} {}: {}", status.code(), info.reason, status.message());
    for (key, value) in metadata {
        write!(text, " [{key}: {value}]").unwrap();
    }
    if let Some(delay) = status.get_details_retry_info().and_then(|info| info.retry_delay) {
        write!(text, " (again in {delay:?})").unwrap();
    }
    text
}

/// A fact on one line, and proof that it says what it belongs to.
pub fn fact(fact: &Event) -> String {
    let payload = fact.payload.as_ref().unwrap();
    assert_eq!(fact.r#type, payload.name());
    format!("{} {}\n", fact.r#type, payload.to_json().unwrap())
}

fn line(item: Item) -> String {
    match item {
        Item::Fact(event) => {
            assert!(event.model_request_id.starts_with("mreq_"));
            assert_eq!((&*event.session_id, &*event.turn_id), ("ses_1", "turn_1"));
            fact(&event)
        }
        Item::Text(delta) => format!("text {:?}\n", delta.text),
        Item::Reasoning(delta) if delta.signature.is_empty() => {
            format!("reasoning {:?}\n", delta.text)
        }
        Item::Reasoning(delta) => {
            format!("reasoning {:?} signed {}\n", delta.text, delta.signature)
        }
        Item::ToolCallStarted(call) => {
            format!("call {} {} ({})\n", call.index, call.tool, call.provider_call_id)
        }
        Item::ToolCallDelta(delta) => format!("call {} + {}\n", delta.index, delta.input_json),
        Item::ToolCallCompleted(call) => format!("call {} = {}\n", call.index, call.input_json),
        Item::Finished(finished) => {
            assert!(finished.model_request_id.starts_with("mreq_"));
            let pb::Finished { finish_reason, usage, cost_micros, provider, model, .. } = finished;
            let usage = serde_json::to_string(&usage).unwrap();
            format!("finished {finish_reason} {provider}/{model} {cost_micros} {usage}\n")
        }
    }
}
