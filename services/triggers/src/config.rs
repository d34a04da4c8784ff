use std::{net::SocketAddr, path::PathBuf, time::Duration};

use crate::http;

/// Everything that can be configured; `triggers --help` is its manual.
#[derive(Debug, Clone, clap::Parser)]
#[command(version, about = "Schedules, webhooks and wake-ups of Windlass")]
pub struct Config {
    #[command(subcommand)]
    pub command: Option<chassis::Command>,

    /// Address to accept gRPC calls on.
    #[arg(long, env, default_value = "[::]:50054")]
    pub listen: SocketAddr,

    /// URL of the session service.
    #[arg(long, env, default_value = "http://localhost:50051")]
    pub session_url: String,

    /// URL of the tools service, which knows MCP servers.
    #[arg(long, env, default_value = "http://localhost:50052")]
    pub tools_url: String,

    #[command(flatten)]
    pub http: http::Args,

    #[command(flatten)]
    pub limits: Limits,

    /// How many firings one process submits at once.
    #[arg(long, env, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub deliveries: u16,

    /// Seconds after which another process delivers what this one has not.
    #[arg(long, env, default_value = "20", value_parser = chassis::seconds)]
    pub lease: Duration,

    /// Seconds between two looks for what is due or undelivered. What is known to be due is fired
    /// when it is.
    #[arg(long, env, default_value = "0.25", value_parser = chassis::seconds)]
    pub poll: Duration,

    /// Seconds after which firings are forgotten; 0: never. A delivery that comes again later is new.
    #[arg(long, env, default_value = "2592000", value_parser = chassis::seconds)]
    pub firing_retention: Duration,

    /// A file that says what time it is. Tests let a year pass with it.
    #[arg(long, env, hide = true)]
    pub clock_file: Option<PathBuf>,

    #[command(flatten)]
    pub chassis: chassis::Args,
}

/// How much triggers may do.
#[derive(Debug, Clone, clap::Args)]
#[group(skip)]
pub struct Limits {
    /// How often a trigger may fire in a minute if it does not say.
    #[arg(long, env, default_value_t = 60, value_parser = clap::value_parser!(i32).range(1..=6000))]
    pub max_per_minute: i32,

    /// How often all triggers of a tenant may fire on a day (UTC).
    #[arg(long, env, default_value_t = 10_000, value_parser = clap::value_parser!(i64).range(1..))]
    pub daily_quota: i64,

    /// How many triggers a tenant may have, whatever their status; wake-ups do not count.
    #[arg(long, env, default_value_t = 1_000, value_parser = clap::value_parser!(i64).range(1..))]
    pub max_triggers: i64,

    /// Seconds after which a trigger expires that does not say when.
    #[arg(long, env, default_value = "604800", value_parser = chassis::seconds)]
    pub trigger_ttl: Duration,

    /// Seconds that a due time may be late before the schedule's misfire policy decides about it.
    #[arg(long, env, default_value = "60", value_parser = chassis::seconds)]
    pub misfire_grace: Duration,

    /// How many wake-ups a session may have.
    #[arg(long, env, default_value_t = 20, value_parser = clap::value_parser!(i64).range(1..))]
    pub max_wakeups: i64,

    /// How many seconds ahead a wake-up may lie.
    #[arg(long, env, default_value = "604800", value_parser = chassis::seconds)]
    pub wakeup_horizon: Duration,
}

#[test]
fn flags_are_consistent() {
    <Config as clap::CommandFactory>::command().debug_assert();
}
