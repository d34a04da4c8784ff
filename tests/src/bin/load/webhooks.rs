//! Webhooks, which come over HTTP and which ghz cannot send.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use futures::future::join_all;
use serde::Deserialize;
use tests::{Push, Sender};
use tokio::time::{MissedTickBehavior, interval};

use crate::{outcome::Outcome, stage::Stage};

/// The configuration, in the words of ghz.
#[derive(Debug, Deserialize)]
pub struct Config {
    /// Posts go out under this name.
    pub name: String,
    /// How many senders there are. Each has a trigger and a session of its own, because one may only
    /// fire so often.
    pub concurrency: usize,
    /// How many are posted in a second by all of them; as many as possible, where it is not said.
    pub rps: Option<u32>,
}

/// Every sender posts one after the other, as fast as they are answered or at a rate that is
/// that of all together.
pub async fn post(config: &Config, stage: &Stage, length: Duration, rate: Option<u32>) -> Outcome {
    let begun = Instant::now();
    let name = if rate.is_some() { "mixed" } else { &config.name };
    let rate = rate.or(config.rps);
    let senders = u32::try_from(stage.pushes.len()).unwrap_or(u32::MAX);
    let pause = rate.map(|rate| Duration::from_secs(1) * senders / rate.max(1));
    let sending = stage.pushes.iter().enumerate().map(|(number, push)| async move {
        send(push, &format!("{name}-{number}"), length, pause).await
    });
    let mut latencies = Vec::new();
    let mut errors = BTreeMap::<String, u64>::new();
    for (sender, failed) in join_all(sending).await {
        latencies.extend(sender);
        for error in failed {
            *errors.entry(error).or_default() += 1;
        }
    }
    latencies.sort_unstable();
    let quantile = |part: usize| latencies.get(latencies.len() * part / 100).copied();
    Outcome {
        count: latencies.len() as u64,
        rate: latencies.len() as f64 / begun.elapsed().as_secs_f64(),
        quantiles: [50, 95, 99].map(|part| quantile(part).unwrap_or_default()),
        errors,
    }
}

/// How long each took, and what was answered to those that were not taken.
async fn send(
    push: &Push,
    name: &str,
    length: Duration,
    pause: Option<Duration>,
) -> (Vec<Duration>, Vec<String>) {
    let mut sender = Sender::to(&push.url).await;
    let mut ticks = pause.map(|pause| {
        let mut ticks = interval(pause);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks
    });
    let (mut latencies, mut errors) = (Vec::new(), Vec::new());
    let end = Instant::now() + length;
    while Instant::now() < end {
        if let Some(ticks) = &mut ticks {
            ticks.tick().await;
        }
        let begun = Instant::now();
        let answer = push.post(&mut sender, &format!("{name}-{}", latencies.len())).await;
        latencies.push(begun.elapsed());
        if answer.status != 202 {
            errors.push(format!("{} {}", answer.status, answer.body));
        }
    }
    (latencies, errors)
}
