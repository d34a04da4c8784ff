use std::{net::SocketAddr, path::PathBuf, time::Duration};

use crate::admission::Without;

/// Everything that can be configured; `models --help` is its manual.
#[derive(Debug, Clone, clap::Parser)]
#[command(version, about = "Calls language models for the other services.")]
pub struct Config {
    #[command(subcommand)]
    pub command: Option<chassis::Command>,

    /// Address to accept gRPC calls on.
    #[arg(long, env, default_value = "[::]:50053")]
    pub listen: SocketAddr,

    /// The catalogue: providers, models, prices and what tenants may use, as CATALOGUE.md
    /// describes it. Read again when it changes. Unset: only the scripted models.
    #[arg(long, env)]
    pub catalogue: Option<PathBuf>,

    /// What becomes of calls that limits or budgets govern while Redis is away: `closed` refuses them,
    /// `share` lets each process use what is left divided by the number of processes. Calls that nothing
    /// governs go on.
    #[arg(long, env, value_enum, default_value_t = Without::Closed)]
    pub limits_without_redis: Without,

    /// Seconds without a sign of life after which the others end the calls of a process, with their
    /// worst case, and free what they had reserved.
    #[arg(long, env, default_value = "15", value_parser = chassis::seconds)]
    pub lease: Duration,

    /// How many rows of the request log may wait for Postgres before further calls are refused.
    #[arg(long, env, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub ledger_rows: u32,

    #[command(flatten)]
    pub chassis: chassis::Args,
}

#[test]
fn flags_are_consistent() {
    <Config as clap::CommandFactory>::command().debug_assert();
}
