//! The session service: turns, live events, long sessions, memory.

mod turns;
mod deltas;
mod past;
mod long;
mod growth;
mod memory;

use std::time::Duration;

use anyhow::Result;
use tokio::{task::spawn_blocking, time::sleep};

use crate::{
    Part,
    baseline::Baseline,
    counts::{Counters, Counts, Statements},
    handover,
    scale::Scale,
    stage::Stage,
    table::Table,
};

/// How long an idle system is watched: several rounds of whatever it does by itself.
const IDLE: Duration = Duration::from_secs(6);

/// How many rows a client commits before turns have their turn.
const COMMITS: usize = 250;

/// Measures everything, or only one part of it.
pub async fn measure(
    stage: &mut Stage,
    table: &mut Table,
    only: Option<Part>,
) -> Result<Statements> {
    let mut statements = Statements::default();
    for part in [Part::Turns, Part::Deltas, Part::Long, Part::Growth, Part::Memory] {
        if only.is_some_and(|only| only != part) {
            continue;
        }
        stage.settle().await?;
        match part {
            Part::Turns => statements = measure_turns(stage, table).await?,
            Part::Deltas => deltas::measure(stage, table).await?,
            Part::Long => long::measure(stage, table).await?,
            Part::Growth => growth::measure(stage.scale, table).await?,
            Part::Memory => memory::measure(stage.scale, table).await?,
            Part::Spawn | Part::Output | Part::Grep => (),
            Part::Due | Part::Webhooks | Part::Models => (),
        }
    }
    Ok(statements)
}

async fn measure_turns(stage: &mut Stage, table: &mut Table) -> Result<Statements> {
    let mut counters = Counters::new(stage).await?;
    let Scale { sessions, load, .. } = stage.scale;
    let idle = idle(stage, &mut counters).await?;
    turns::warm_up(stage).await?;

    let mut alone = Baseline::new(stage, 1).await?;
    let with = async || alone.commit(COMMITS).await;
    let one = turns::run(stage, &mut counters, 1, load, with).await?;
    let eight = turns::run(stage, &mut counters, sessions.min(8), load, async || Ok(())).await?;
    let mut crowd = Baseline::new(stage, 32).await?;
    counters.forget_statements().await?;
    let with = async || crowd.commit(COMMITS).await;
    let many = turns::run(stage, &mut counters, sessions, load * 2, with).await?;
    let statements = counters.statements(many.turns).await?;
    let (commit, commits) = (alone.latencies.p50(), crowd.rate());
    let handover = spawn_blocking(handover::there_and_back).await??;

    let micros = handover.p50() * 1000.0;
    table.note("a byte to another process and back, p50", format!("{micros:.0} µs"));
    table.note("commit of one inserted row, 1 client, p50", milliseconds(commit));
    table.note("commits of one inserted row per second, 32 clients", format!("{commits:.0}"));
    for load in [&one, &eight, &many] {
        let sessions = match load.sessions {
            1 => "1 session".to_owned(),
            many => format!("{many} sessions"),
        };
        table.note(format!("turns per second, {sessions}"), format!("{:.0}", load.rate()));
        let (p50, p99) = (load.latencies.p50(), load.latencies.p99());
        table.note(
            format!("submit to completed, {sessions}, p50 and p99"),
            format!("{p50:.2} and {p99:.2} ms"),
        );
    }
    let (what, times) =
        ("submit to completed, 1 session, p50 ÷ commit p50", one.latencies.p50() / commit);
    table.toward(what, times, 12.0, one_digit);
    table.at_most(what, times, 40.0, one_digit);
    table.at_least(
        format!("turns per second, {sessions} sessions ÷ commits per second"),
        many.rate() / commits,
        0.03,
        |times| format!("{times:.3}"),
    );
    let spent = many.counts.beyond(idle);
    let per_turn = |what| format!("{what} per turn, {sessions} sessions");
    table.at_most(per_turn("statements"), spent.statements / many.turns, 8.0, two);
    table.at_most(per_turn("writing transactions"), spent.writes / many.turns, 3.0, two);
    table.note(per_turn("WAL"), kib(spent.wal_bytes / many.turns));
    let spent = one.counts.beyond(idle);
    table.note("statements per turn, 1 session", two(spent.statements / one.turns));
    table.note("writing transactions per turn, 1 session", two(spent.writes / one.turns));
    let seconds = idle.elapsed.as_secs_f64();
    table.note("statements per second of an idle system", two(idle.statements / seconds));
    Ok(statements)
}

/// What the system does by itself while readers wait for something to happen.
async fn idle(stage: &mut Stage, counters: &mut Counters) -> Result<Counts> {
    eprintln!("nothing happens …");
    let readers = turns::readers(stage, stage.scale.sessions).await?;
    sleep(Duration::from_secs(1)).await;
    let before = counters.read().await?;
    sleep(IDLE).await;
    let idle = counters.since(&before).await?;
    drop(readers);
    Ok(idle)
}

fn milliseconds(value: f64) -> String {
    format!("{value:.2} ms")
}

fn kib(bytes: f64) -> String {
    format!("{:.1} KiB", bytes / 1024.0)
}

fn one_digit(value: f64) -> String {
    format!("{value:.1}")
}

fn two(value: f64) -> String {
    format!("{value:.2}")
}
