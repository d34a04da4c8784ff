//! The service on a port of its own, and the verbs tests are written in.

use std::{fmt::Write as _, path::Path};

use chassis::{Auth, Caller, Peer, auth::keys};
use clap::Parser as _;
use models::Config;
use proto::{
    event::v1::Event,
    models::v1::{self as pb, generate_response::Item, model_service_client::ModelServiceClient},
};
use secrecy::ExposeSecret as _;
use sqlx::{ConnectOptions as _, PgPool};
use tempfile::TempDir;
use tokio::{net::TcpListener, task::JoinHandle};
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

impl World {
    pub async fn start(db: PgPool) -> World {
        World::begin_with(db, None).await
    }

    /// With a catalogue in a directory of its own, in which it may refer to files.
    pub async fn with_catalogue(db: PgPool, write: impl FnOnce(&Path) -> String) -> World {
        let directory = tempfile::tempdir().unwrap();
        let catalogue = write(directory.path());
        std::fs::write(directory.path().join("catalogue.json"), catalogue).unwrap();
        World::begin_with(db, Some(directory)).await
    }

    async fn begin_with(db: PgPool, directory: Option<TempDir>) -> World {
        chassis::database::MIGRATIONS.run(&db).await.unwrap();
        let database = db.connect_options().to_url_lossy().to_string();
        let mut config = Config::parse_from([
            "models",
            "--database-url",
            &database,
            "--redis-url",
            "redis://127.0.0.1:1",
            "--auth-internal-secret",
            "a secret that only tests know about",
        ]);
        config.catalogue = directory.as_ref().map(|one| one.path().join("catalogue.json"));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let auth = Auth::new("tests", &config.chassis.auth, db.clone()).await.unwrap();
        let peer = Peer::new("models", &url, &config.chassis.tls, &auth).unwrap();
        let caller = Caller::service("acme".parse().unwrap(), "ada");

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
        let mut lines = String::new();
        loop {
            match answer.message().await {
                Ok(Some(response)) => lines += &line(response.item.unwrap()),
                Ok(None) => return lines,
                Err(error) => {
                    writeln!(lines, "error {}", explain(&error)).unwrap();
                    return lines;
                }
            }
        }
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
