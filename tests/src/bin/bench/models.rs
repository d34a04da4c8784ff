//! The models service: what it adds to the call of a provider who answers at once.
//!
//! Whoever calls directly does what the service does: the same request to the same upstream with
//! the same library, read to its end, until the words are at hand. Both take turns, so that a
//! machine that is busy for a while is busy for both.

mod upstream;
mod callers;

use std::{fs, time::Instant};

use anyhow::{Context as _, Result};
use futures::future::try_join_all;
use local::{Fleet, Service};

use self::{
    callers::{Direct, Through},
    upstream::Upstream,
};
use crate::{quantiles::Quantiles, scale::Scale, stage::Stage, table::Table};

/// How many others listen to slow answers while calls are measured.
const STREAMS: usize = 64;

/// How many calls are measured before the other way has its turn.
const TURN: usize = 50;

pub async fn measure(scale: Scale, table: &mut Table) -> Result<()> {
    let upstream = Upstream::start()?;
    let folder = tempfile::tempdir()?;
    let catalogue = folder.path().join("catalogue.json");
    fs::write(&catalogue, upstream.catalogue())?;
    let plan = Fleet::plan().env_of(Service::Models, "CATALOGUE", catalogue.display().to_string());
    let stage = &mut Stage::with(scale, plan).await?;
    let (direct, through) = (Direct::new(&upstream)?, Through::new(stage).await?);

    eprintln!("a provider is called, directly and through models …");
    let free = compare(scale.calls, &direct, &through).await?;
    through.put_limits().await?;
    let scripts = stage.redis_scripts().await?;
    let alone = compare(scale.calls, &direct, &through).await?;
    let scripts = (stage.redis_scripts().await? - scripts) / scale.calls as f64;

    eprintln!("the same, beside {STREAMS} slow streams …");
    let among = {
        // Each way is measured among streams of its own kind.
        let _open = try_join_all((0..STREAMS / 2).map(|_| direct.listen())).await?;
        let _open = try_join_all((0..STREAMS).map(|_| through.listen())).await?;
        compare(scale.calls, &direct, &through).await?
    };

    eprintln!("as many calls as possible, {STREAMS} at once …");
    let used = stage.cpu_seconds(Service::Models)?;
    let begun = Instant::now();
    let calls = saturate(scale, &through).await?;
    let (elapsed, used) =
        (begun.elapsed().as_secs_f64(), stage.cpu_seconds(Service::Models)? - used);

    let (p50, p99) = (alone.direct.p50(), alone.direct.p99());
    table.note("a direct call of 64 deltas, p50 and p99", format!("{p50:.2} and {p99:.2} ms"));
    let added = |paired: &Paired| format!("{:.2} and {:.2} ms", paired.p50(), paired.p99());
    table.note("added to it without limits, p50 and p99", added(&free));
    table.note("added to it with five limits and a budget, p50 and p99", added(&alone));
    table.note(
        "of that, limits and budget, p50",
        format!("{:.2} ms", alone.through.p50() - free.through.p50()),
    );
    let milliseconds = |value: f64| format!("{value:.2} ms");
    let what = format!("added to a call with limits, budget and log beside {STREAMS} streams");
    table.toward(format!("{what}, p50"), among.p50(), 0.5, milliseconds);
    table.toward(format!("{what}, p99"), among.p99(), 2.0, milliseconds);
    let what = format!("the same call ÷ a direct one, beside {STREAMS} streams, p50");
    let times = among.through.p50() / among.direct.p50();
    table.at_most(what, times, 8.0, |times| format!("{times:.1}"));
    table.note("Redis scripts per call, before and after it", format!("{scripts:.2}"));
    table.note(
        format!("calls per second, {STREAMS} at once, everything on this machine"),
        format!("{:.0}", calls / elapsed),
    );
    table.note("calls per second of one core of models", format!("{:.0}", calls / used));
    Ok(())
}

/// The same call, both ways.
#[derive(Default)]
struct Paired {
    direct: Quantiles,
    through: Quantiles,
}

impl Paired {
    fn p50(&self) -> f64 {
        self.through.p50() - self.direct.p50()
    }

    fn p99(&self) -> f64 {
        self.through.p99() - self.direct.p99()
    }
}

async fn compare(calls: usize, direct: &Direct, through: &Through) -> Result<Paired> {
    let mut paired = Paired::default();
    for _ in 0..calls / TURN {
        for _ in 0..TURN {
            paired.direct.push(direct.call().await?);
        }
        for _ in 0..TURN {
            paired.through.push(through.call().await?);
        }
    }
    Ok(paired)
}

/// Calls one after the other, many times at once; how many there were.
async fn saturate(scale: Scale, through: &Through) -> Result<f64> {
    let callers = (0..STREAMS).map(|_| {
        let through = through.clone();
        tokio::spawn(async move {
            let (begun, mut calls) = (Instant::now(), 0.0);
            while begun.elapsed() < scale.load {
                through.call().await?;
                calls += 1.0;
            }
            anyhow::Ok(calls)
        })
    });
    let calls: Vec<Result<f64>> = try_join_all(callers).await.context("a caller failed")?;
    calls.into_iter().sum()
}
