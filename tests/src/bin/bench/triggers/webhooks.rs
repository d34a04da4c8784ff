//! How many webhooks are received in a second: signed requests that are answered when they are
//! safe, beside rows that Postgres commits one by one.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::future::try_join_all;
use local::Service;
use proto::triggers::v1::{
    CreateTriggerRequest, Target, Trigger, Webhook, target::Session, trigger::Kind,
};
use tests::{Client, Sender, request_id, signed};

use super::taker;
use crate::{baseline, quantiles::Quantiles, scale::Scale, stage::Stage, table::Table};

/// How many senders there are, each with a trigger of its own, because one may only fire so often.
const SENDERS: usize = 32;

/// As much as GitHub says of a push to a small repository.
const TEXT: usize = 2_000;

pub async fn measure(scale: Scale, table: &mut Table) -> Result<()> {
    eprintln!("{SENDERS} senders post webhooks …");
    // What is received is delivered one at a time: what is measured is that it is safe.
    let plan = taker::plan().await?.env_of(Service::Triggers, "DELIVERIES", "1");
    let mut stage = Stage::with(scale, plan).await?;
    let client = stage.client();
    let session = client.create_session().await;
    let hooks = try_join_all((0..SENDERS).map(|_| create(&client, &session.id))).await?;

    let before = baseline::measure(&mut stage, SENDERS, 3).await?.per_second;
    let begun = Instant::now();
    let senders = hooks.iter().enumerate().map(|(number, hook)| post(number, hook, scale.load));
    let senders = try_join_all(senders).await.with_context(|| stage.last_words())?;
    let elapsed = begun.elapsed().as_secs_f64();
    let after = baseline::measure(&mut stage, SENDERS, 3).await?.per_second;

    let mut latencies = Quantiles::default();
    let mut count = 0;
    for sender in senders {
        count += sender.len();
        latencies.extend(sender);
    }
    let (rate, commits) = (count as f64 / elapsed, (before + after) / 2.0);
    table.note(format!("webhooks per second, {SENDERS} senders"), format!("{rate:.0}"));
    let (p50, p99) = (latencies.p50(), latencies.p99());
    table.note("webhook to answer, p50 and p99", format!("{p50:.2} and {p99:.2} ms"));
    table.at_least(
        "webhooks per second ÷ commits of one inserted row per second",
        rate / commits,
        0.5,
        |times| format!("{times:.2}"),
    );
    Ok(())
}

/// A trigger's URL and the headers and body of what is sent to it.
struct Hook {
    url: String,
    signature: String,
    body: String,
}

async fn create(client: &Client, session_id: &str) -> Result<Hook> {
    let webhook = Webhook { provider: "github".into(), ..Webhook::default() };
    let session = Some(Session::SessionId(session_id.to_owned()));
    let trigger = Trigger {
        name: "pushes".into(),
        kind: Some(Kind::Webhook(webhook)),
        target: Some(Target { session, ..Target::default() }),
        template: "{{ payload.ref }} was pushed\n#!script\nsay ok".into(),
        max_per_minute: 6_000,
        ..Trigger::default()
    };
    let request = CreateTriggerRequest {
        request_id: request_id(),
        trigger: Some(trigger),
        secret: String::new(),
    };
    let answer = client.triggers().create_trigger(request).await?.into_inner();
    let kind = answer.trigger.unwrap_or_default().kind;
    let Some(Kind::Webhook(webhook)) = kind else { anyhow::bail!("it is no webhook") };
    let body = format!(r#"{{"ref":"refs/heads/main","text":"{}"}}"#, "x".repeat(TEXT));
    let signature = format!("sha256={}", signed(answer.secret.as_bytes(), &[&body]));
    Ok(Hook { url: webhook.url, signature, body })
}

/// Posts one after the other until the time is over, and says how long each took.
async fn post(number: usize, hook: &Hook, load: Duration) -> Result<Vec<Duration>> {
    let mut sender = Sender::to(&hook.url).await;
    let mut latencies = Vec::new();
    let end = Instant::now() + load;
    while Instant::now() < end {
        let delivery = format!("{number}-{}", latencies.len());
        let headers = [
            ("content-type", "application/json"),
            ("x-github-event", "push"),
            ("x-github-delivery", delivery.as_str()),
            ("x-hub-signature-256", hook.signature.as_str()),
        ];
        let begun = Instant::now();
        let answer = sender.post(&hook.url, &headers, &hook.body).await;
        latencies.push(begun.elapsed());
        ensure!(answer.status == 202, "{answer:?}");
    }
    Ok(latencies)
}
