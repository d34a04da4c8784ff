//! `make bench`: how fast Windlass is and how much it needs, in multiples of what the
//! Postgres under it, or a program that does the same, can do in the same minute on the same
//! machine.
//!
//! Everything is as in production: durable servers, four processes, the public API. It ends
//! with a failure when a bar is missed, so it is for quiet machines and not part of the tests.
#![expect(clippy::print_stdout, reason = "a person reads this")]

mod table;
mod scale;
mod stage;
mod counts;
mod baseline;
mod handover;
mod quantiles;
mod session;
mod models;
mod tools;
mod triggers;

use std::{
    fs,
    process::{Command, ExitCode},
    thread,
};

use anyhow::{Context, Result};
use clap::Parser;

use scale::Scale;
use stage::Stage;
use table::Table;

#[derive(Debug, Parser)]
#[command(about = "Measures Windlass against the Postgres under it")]
struct Args {
    /// Also say which statements the turns of many sessions were made of.
    #[arg(long)]
    statements: bool,

    /// Measure a tenth of everything, to try the bench itself: the numbers mean little.
    #[arg(long)]
    small: bool,

    /// Measure only a part.
    #[arg(long)]
    only: Option<Part>,
}

/// What can be measured alone.
#[derive(Debug, Clone, Copy, PartialEq, clap::ValueEnum)]
pub enum Part {
    Turns,
    Deltas,
    Long,
    Growth,
    Memory,
    Spawn,
    Output,
    Grep,
    Due,
    Webhooks,
    Models,
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let args = Args::parse();
    eprintln!("starting Postgres, Redis and the four services …");
    let scale = if args.small { Scale::SMALL } else { Scale::FULL };
    let mut stage = Stage::start(scale).await?;
    println!("{}\n", about(&stage).await?);
    let [mut session, mut tools, mut triggers, mut models] =
        ["session", "tools", "triggers", "models"].map(Table::new);
    let measured = session::measure(&mut stage, &mut session, args.only).await;
    print(&session);
    let statements = measured.with_context(|| stage.last_words())?;
    let measured = tools::measure(&mut stage, &mut tools, args.only).await;
    print(&tools);
    measured.with_context(|| stage.last_words())?;
    drop(stage);
    let measured = triggers::measure(scale, &mut triggers, args.only).await;
    print(&triggers);
    measured?;
    if args.only.is_none_or(|only| only == Part::Models) {
        models::measure(scale, &mut models).await?;
        print(&models);
    }
    if args.statements {
        println!("{statements}");
    }
    let passes = [session, tools, triggers, models].iter().all(Table::passes);
    Ok(if passes { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What was measured, and where.
async fn about(stage: &Stage) -> Result<String> {
    let postgres: String =
        sqlx::query_scalar("show server_version").fetch_one(&mut stage.server().await?).await?;
    let postgres = postgres.split(' ').next().unwrap_or_default();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let cores = thread::available_parallelism()?;
    let commit = commit().unwrap_or_else(|| "a commit that nobody knows".to_owned());
    let kernel: Vec<&str> = kernel.splitn(3, '.').take(2).collect();
    let kernel = kernel.join(".");
    Ok(format!("{commit}, {cores} cores, Linux {kernel}, Postgres {postgres}"))
}

/// With its subject, because ids change when commits are put behind others.
fn commit() -> Option<String> {
    let git = |arguments: &[&str]| {
        let git = Command::new("git").args(arguments).output().ok()?;
        let said = String::from_utf8_lossy(&git.stdout).trim().to_owned();
        git.status.success().then_some(said)
    };
    let commit = git(&["log", "-1", "--format=commit %h of %cs (%s)"])?;
    let changed = !git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    Some(if changed { format!("{commit} and what was changed since") } else { commit })
}

fn print(table: &Table) {
    if !table.is_empty() {
        println!("{table}");
    }
}
