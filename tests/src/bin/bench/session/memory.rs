//! What the session service must remember of those who only wait.

use std::time::Duration;

use anyhow::Result;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use proto::{
    session::v1::{CreateSessionRequest, Manifest, session::Status},
    tools::v1::{Permissions, Rule, rule::Action},
};
use tests::{Client, Session, request_id};
use tokio::time::sleep;

use super::{kib, turns};
use crate::{scale::Scale, stage::Stage, table::Table};

/// How many are parked at once; nobody measures that.
const AT_ONCE: usize = 8;

/// How often so many are parked and the memory is looked at.
const ROUNDS: usize = 6;

/// An agent that must ask before it does anything.
const AGENT: &str = "cautious";
const SCRIPT: &str = "call bash {\"command\": \"true\"}";

pub async fn measure(scale: Scale, table: &mut Table) -> Result<()> {
    let stage = &mut Stage::tidy(scale).await?;
    // Each begins with an empty memory and some of the same, so that what is only needed once
    // is there before anything is counted.
    let many = stage.scale.waiting;
    eprintln!("{many} readers wait …");
    stage.restart_session().await?;
    let _before = turns::readers(stage, many / 2).await?;
    let before = settled(stage).await?;
    let _readers = turns::readers(stage, many).await?;
    let per_reader = (settled(stage).await? - before) / many as f64;
    table.at_most("memory per live subscriber", per_reader, 64.0 * 1024.0, kib);

    eprintln!("{many} turns wait …");
    stage.put_agent(AGENT, cautious()).await?;
    stage.restart_session().await?;
    // Twice as many as are counted: what turns need while they run grows for a while.
    park(stage, 2 * many).await?;
    let mut points = vec![(0.0, settled(stage).await?)];
    for round in 1..=ROUNDS {
        park(stage, 2 * many).await?;
        points.push(((2 * round * many) as f64, settled(stage).await?));
    }
    // Memory is counted in pages and goes up and down by some of them, so nothing may be less than that.
    table.at_most("memory per parked session", slope(&points).max(0.0), 1024.0, kib);
    Ok(())
}

/// How steeply a line through these points rises (least squares).
fn slope(points: &[(f64, f64)]) -> f64 {
    let count = points.len() as f64;
    let (xs, ys) = points.iter().fold((0.0, 0.0), |(xs, ys), (x, y)| (xs + x, ys + y));
    let (x_mean, y_mean) = (xs / count, ys / count);
    let covariance: f64 = points.iter().map(|(x, y)| (x - x_mean) * (y - y_mean)).sum();
    let variance: f64 = points.iter().map(|(x, _)| (x - x_mean).powi(2)).sum();
    covariance / variance
}

/// The memory when nothing moves any more, and what is kept for two seconds is forgotten.
async fn settled(stage: &mut Stage) -> Result<f64> {
    sleep(Duration::from_secs(5)).await;
    stage.session_memory()
}

/// Turns that wait for a person who never comes.
async fn park(stage: &mut Stage, count: usize) -> Result<()> {
    let client = stage.client();
    let parked = (0..count).map(|_| tokio::spawn(ask(client.clone())));
    stream::iter(parked).buffer_unordered(AT_ONCE).try_for_each(async |()| Ok(())).await?;
    Ok(())
}

/// Returns when the turn waits, and nobody has to hold it any more.
async fn ask(client: Client) {
    let request = CreateSessionRequest {
        request_id: request_id(),
        // So that nobody looks for a title beside what is measured.
        title: "Measured".to_owned(),
        agent: AGENT.to_owned(),
        ..CreateSessionRequest::default()
    };
    let response = client.sessions().create_session(request).await.expect("a session");
    let id = response.into_inner().session.expect("a session").session_id;
    let session = Session { client, id };
    session.submit(SCRIPT).await;
    while session.get().await.status() != Status::WaitingOnApproval {
        sleep(Duration::from_millis(20)).await;
    }
}

fn cautious() -> Manifest {
    let ask = Rule {
        permission: "bash".to_owned(),
        pattern: "*".to_owned(),
        action: Action::Ask.into(),
        ..Rule::default()
    };
    Manifest {
        model: "scripted/demo".to_owned(),
        permissions: Some(Permissions { rules: vec![ask], ..Permissions::default() }),
        ..Manifest::default()
    }
}
