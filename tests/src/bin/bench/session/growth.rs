//! What a turn costs as there are more sessions, and as its own session grows longer.

use std::time::Duration;

use anyhow::Result;
use futures::future::try_join_all;
use proto::session::v1::subscribe_request::From;
use sqlx::Executor as _;

use super::{kib, milliseconds, past, turns, two};
use crate::{
    counts::{Counters, Counts},
    quantiles::Quantiles,
    scale::Scale,
    stage::Stage,
    table::Table,
};

/// The least, and how many times as much there is in the end, by steps of ten or a hundred.
const FEWEST: i64 = 10;

/// How much more a turn may cost in the end.
const FLAT: f64 = 1.5;

/// How long somebody speaks whom nobody measures, so that the first sizes are not those of a system that
/// has just begun.
const WARM: Duration = Duration::from_secs(1);

/// How often each conversation speaks, in turns with the others.
const ROUNDS: usize = 5;
const TURNS: usize = 20;

/// A system of its own, in which there is nothing yet.
pub async fn measure(scale: Scale, table: &mut Table) -> Result<()> {
    let stage = &mut Stage::start(scale).await?;
    sessions(stage, table).await?;
    history(stage, table).await
}

/// Sessions that exist and are quiet, each with a turn behind it, while one speaks, a new one every
/// twenty turns; those that have spoken before it are there too, some tens in the end.
async fn sessions(stage: &mut Stage, table: &mut Table) -> Result<()> {
    let mut counters = Counters::new(stage).await?;
    let (mut there, mut costs) = (0, Vec::new());
    turns::run(stage, &mut counters, 1, WARM, async || Ok(())).await?;
    for count in [FEWEST, stage.scale.grown_sessions / 10, stage.scale.grown_sessions] {
        eprintln!("{count} sessions …");
        there = populate(stage, there, count).await?;
        stage.settle().await?;
        stage.database().await?.execute("analyze").await?;
        let time = stage.scale.load / 2;
        let load = turns::run(stage, &mut counters, 1, time, async || Ok(())).await?;
        let where_it_is = format!("beside {count} sessions");
        costs.push(tell(table, &where_it_is, &load.latencies, load.counts, load.turns));
    }
    let what = format!("a turn beside {} ÷ beside {FEWEST} sessions", stage.scale.grown_sessions);
    flat(table, what, &costs);
    Ok(())
}

/// Has every session say something, as many at a time as the other parts have.
async fn populate(stage: &mut Stage, there: i64, wanted: i64) -> Result<i64> {
    let mut left = wanted - there;
    while left > 0 {
        let some = left.min(stage.scale.sessions as i64);
        let readers = turns::readers(stage, some as usize).await?;
        try_join_all(readers.into_iter().map(|reader| tokio::spawn(turns::converse(reader, 0, 1))))
            .await?;
        left -= some;
    }
    Ok(wanted)
}

/// Conversations of different lengths, all of them compacted, as they are long before they have
/// so many messages.
async fn history(stage: &mut Stage, table: &mut Table) -> Result<()> {
    let lengths = [FEWEST, stage.scale.grown_messages / 100, stage.scale.grown_messages];
    let mut conversations = Vec::new();
    for messages in lengths {
        eprintln!("a history of {messages} messages …");
        let session = past::compacted(stage, messages / 2).await?;
        conversations.push((messages, session, Quantiles::default(), Counts::default()));
    }
    stage.settle().await?;
    let mut counters = Counters::new(stage).await?;
    for _ in 0..ROUNDS {
        for (_, session, latencies, counts) in &mut conversations {
            let last = session.get().await.last_sequence;
            let events = session.subscribe(From::AfterSequence(last)).await;
            let before = counters.read().await?;
            let spoken = turns::converse((session.clone(), events), last, TURNS);
            latencies.extend(spoken.await);
            counts.add(counters.since(&before).await?);
        }
    }
    let mut costs = Vec::new();
    for (messages, _, latencies, counts) in &conversations {
        let where_it_is = format!("after {messages} messages");
        costs.push(tell(table, &where_it_is, latencies, *counts, (ROUNDS * TURNS) as f64));
    }
    let what = format!("a turn after {} ÷ after {FEWEST} messages", stage.scale.grown_messages);
    flat(table, what, &costs);
    Ok(())
}

/// What a turn cost there, and of that how long it took.
fn tell(
    table: &mut Table,
    where_it_is: &str,
    latencies: &Quantiles,
    counts: Counts,
    turns: f64,
) -> f64 {
    let p50 = latencies.p50();
    table.note(format!("submit to completed {where_it_is}, p50"), milliseconds(p50));
    table.note(format!("statements per turn {where_it_is}"), two(counts.statements / turns));
    table.note(format!("WAL per turn {where_it_is}"), kib(counts.wal_bytes / turns));
    p50
}

fn flat(table: &mut Table, what: String, costs: &[f64]) {
    if let [first, .., last] = costs {
        table.at_most(what, last / first, FLAT, |times| format!("{times:.2}"));
    }
}
