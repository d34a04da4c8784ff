//! How many webhooks are received in a second: signed requests that are answered when they are
//! safe, beside rows that Postgres commits one by one.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::future::{join_all, try_join_all};
use local::{Fleet, Service};
use tests::{Push, Sender};

use crate::{baseline::Baseline, quantiles::Quantiles, scale::Scale, stage::Stage, table::Table};

/// How many senders there are, each with a trigger of its own, because one may only fire so often.
const SENDERS: usize = 32;

/// How often they take turns with clients of Postgres, each of whom then commits so many rows.
const ROUNDS: u32 = 5;
const COMMITS: usize = 500;

pub async fn measure(scale: Scale, table: &mut Table) -> Result<()> {
    eprintln!("{SENDERS} senders post webhooks …");
    let plan = Fleet::plan().env_of(Service::Triggers, "DAILY_QUOTA", "1000000000").env_of(
        Service::Triggers,
        "DELIVERIES",
        "1",
    );
    let mut stage = Stage::with(scale, plan).await?;
    let client = stage.client();
    let session = client.create_session().await;
    let hooks = join_all((0..SENDERS).map(|_| Push::create(&client, &session.id))).await;

    // Who is asked for turns sleeps, and one firing waits for it: turns are measured elsewhere, and
    // a sender is answered when its delivery is safe, whatever becomes of it later.
    stage.pause_session()?;
    let mut baseline = Baseline::new(&mut stage, SENDERS).await?;
    let (mut answered, mut elapsed) = (Vec::new(), 0.0);
    for round in 0..ROUNDS {
        baseline.commit(COMMITS).await?;
        let begun = Instant::now();
        let time = scale.load / ROUNDS;
        let senders = hooks.iter().enumerate().map(|(number, hook)| {
            let name = format!("{round}-{number}");
            async move { post(&name, hook, time).await }
        });
        answered.extend(try_join_all(senders).await.with_context(|| stage.last_words())?);
        elapsed += begun.elapsed().as_secs_f64();
    }
    stage.resume_session()?;

    let mut latencies = Quantiles::default();
    let mut count = 0;
    for sender in answered {
        count += sender.len();
        latencies.extend(sender);
    }
    let (rate, commits) = (count as f64 / elapsed, baseline.rate());
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

/// Posts one after the other until the time is over, and says how long each took.
async fn post(name: &str, hook: &Push, load: Duration) -> Result<Vec<Duration>> {
    let mut sender = Sender::to(&hook.url).await;
    let mut latencies = Vec::new();
    let end = Instant::now() + load;
    while Instant::now() < end {
        let delivery = format!("{name}-{}", latencies.len());
        let begun = Instant::now();
        let answer = hook.post(&mut sender, &delivery).await;
        latencies.push(begun.elapsed());
        ensure!(answer.status == 202, "{answer:?}");
    }
    Ok(latencies)
}
