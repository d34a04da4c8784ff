//! The two ways to a provider.

use std::{fs, time::Duration};

use anyhow::{Context as _, Result, ensure};
use chassis::{Auth, Caller, Peer};
use clap::Parser as _;
use futures::StreamExt as _;
use proto::models::v1::{
    self as pb, generate_response::Item, limit_service_client::LimitServiceClient,
    model_service_client::ModelServiceClient,
};
use reqwest::{Client, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use sqlx::PgPool;
use tokio::time::Instant;
use tonic::Streaming;

use super::upstream::{QUICK, SLOW, Upstream};
use crate::stage::{Stage, TENANT};

const QUESTION: &str = "How many words are there?";

/// How much the provider says when it is quick.
const WORDS: usize = 64 * "word ".len();

/// As much of an event as anybody needs who wants to know what is said.
#[derive(Deserialize)]
struct Piece {
    choices: Vec<Choice>,
}

#[derive(Deserialize)]
struct Choice {
    delta: Spoken,
}

#[derive(Deserialize)]
struct Spoken {
    content: Option<String>,
}

/// Straight to the provider.
pub struct Direct {
    client: Client,
    url: String,
}

impl Direct {
    pub fn new(upstream: &Upstream) -> Result<Direct> {
        // Whoever was first to choose one has chosen for everybody.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder().tcp_nodelay(true).build()?;
        Ok(Direct { client, url: format!("{}/chat/completions", upstream.url()) })
    }

    /// How long it takes until everything is said and its words are at hand, as they are for whoever
    /// calls the other way.
    pub async fn call(&self) -> Result<Duration> {
        let begun = Instant::now();
        let mut bytes = self.ask(QUICK).await?.bytes_stream();
        let (mut answer, mut said) = (Vec::new(), String::new());
        while let Some(piece) = bytes.next().await {
            answer.extend_from_slice(&piece?);
        }
        let events =
            str::from_utf8(&answer)?.lines().filter_map(|line| line.strip_prefix("data: "));
        for event in events.filter(|event| *event != "[DONE]") {
            let piece: Piece = serde_json::from_str(event)?;
            let words = piece.choices.into_iter().filter_map(|choice| choice.delta.content);
            said.extend(words);
        }
        ensure!(said.len() == WORDS, "the provider said {} bytes", said.len());
        Ok(begun.elapsed())
    }

    /// A stream that goes on until it is dropped.
    pub async fn listen(&self) -> Result<Listening> {
        let mut bytes = self.ask(SLOW).await?.bytes_stream();
        bytes.next().await.context("the stream is over")??;
        Ok(Listening::to(async move { while bytes.next().await.is_some() {} }))
    }

    async fn ask(&self, model: &str) -> Result<Response> {
        let body: Value = json!({
            "model": model, "stream": true, "max_tokens": 256,
            "messages": [{ "role": "user", "content": QUESTION }],
        });
        let request = self.client.post(&self.url).header("content-type", "application/json");
        Ok(request.body(body.to_string()).send().await?.error_for_status()?)
    }
}

/// Over the models service, as the session service calls it.
#[derive(Clone)]
pub struct Through {
    peer: Peer,
    caller: Caller,
}

/// What the chassis reads from the command line to know who vouches for whom.
#[derive(Debug, clap::Parser)]
struct Args {
    #[command(flatten)]
    auth: chassis::auth::Args,
    #[command(flatten)]
    tls: chassis::tls::Args,
}

impl Through {
    pub async fn new(stage: &mut Stage) -> Result<Through> {
        let secret = fs::read_to_string(stage.internal_secret())?;
        let args = Args::parse_from(["bench", "--auth-internal-secret", secret.trim()]);
        let db = PgPool::connect_lazy(stage.server_url())?;
        let auth = Auth::new("bench", &args.auth, db).await?;
        let peer = Peer::new("models", &stage.endpoint(local::Service::Models), &args.tls, &auth)?;
        let caller = Caller::service(TENANT.parse()?, "bench");
        Ok(Through { peer, caller })
    }

    /// Everything that can govern a call, so high that it never does.
    pub async fn put_limits(&self) -> Result<()> {
        let mut limits = LimitServiceClient::new(self.peer.channel());
        for limit in [
            "requests_per_minute",
            "tokens_per_minute",
            "concurrent_streams",
            "tokens_per_day",
            "cost_micros_per_month",
        ] {
            let limit = pb::Limit {
                limit: limit.to_owned(),
                scope: "tenant".to_owned(),
                value: 1_000_000_000_000,
                ..Default::default()
            };
            let request = pb::PutLimitRequest { limit: Some(limit) };
            limits.put_limit(self.peer.request(&self.caller, request)).await?;
        }
        let request = pb::PutBudgetRequest {
            request_id: "bench".to_owned(),
            name: "default".to_owned(),
            amount_micros: 1_000_000_000_000_000,
            ..Default::default()
        };
        limits.put_budget(self.peer.request(&self.caller, request)).await?;
        Ok(())
    }

    pub async fn call(&self) -> Result<Duration> {
        let begun = Instant::now();
        let mut answer = self.ask(QUICK).await?;
        let mut said = 0;
        loop {
            match answer.message().await?.and_then(|message| message.item) {
                Some(Item::Text(text)) => said += text.text.len(),
                Some(Item::Finished(_)) => break,
                Some(_) => (),
                None => anyhow::bail!("the answer has no end"),
            }
        }
        chassis::hear_out(answer);
        ensure!(said == WORDS, "the provider said {said} bytes");
        Ok(begun.elapsed())
    }

    pub async fn listen(&self) -> Result<Listening> {
        let mut answer = self.ask(SLOW).await?;
        while !matches!(answer.message().await?.and_then(|one| one.item), Some(Item::Text(_))) {}
        Ok(Listening::to(async move { while let Ok(Some(_)) = answer.message().await {} }))
    }

    async fn ask(&self, model: &str) -> Result<Streaming<pb::GenerateResponse>> {
        let content = pb::Content { kind: Some(pb::content::Kind::Text(QUESTION.to_owned())) };
        let message = pb::Message { role: pb::message::Role::User.into(), content: vec![content] };
        let prompt = pb::Prompt { messages: vec![message], ..Default::default() };
        let model = format!("local/{model}");
        let request = pb::GenerateRequest {
            session_id: "ses_bench".to_owned(),
            turn_id: "turn_bench".to_owned(),
            step_id: "step_bench".to_owned(),
            prompt: Some(prompt),
            target: Some(pb::Target { model, ..Default::default() }),
            options: Some(pb::Options { max_output_tokens: 256, ..Default::default() }),
            attempt: 1,
            ..Default::default()
        };
        let mut models = ModelServiceClient::new(self.peer.channel());
        Ok(models.generate(self.peer.request(&self.caller, request)).await?.into_inner())
    }
}

/// Somebody who takes in what comes, until this is dropped.
pub struct Listening(tokio::task::JoinHandle<()>);

impl Listening {
    fn to(stream: impl Future<Output = ()> + Send + 'static) -> Listening {
        Listening(tokio::spawn(stream))
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.abort();
    }
}
