use std::{net::SocketAddr, path::PathBuf, time::Duration};

use chassis::Tenant;

/// Everything that can be configured; `session --help` is its manual.
#[derive(Debug, Clone, clap::Parser)]
#[command(version, about = "Durable sessions, the turn queue and the loop of Windlass")]
pub struct Config {
    #[command(subcommand)]
    pub command: Option<Command>,

    #[command(flatten)]
    pub serve: Serve,
}

#[derive(Debug, Clone, clap::Args)]
#[group(skip)]
pub struct Serve {
    /// Address to accept gRPC calls on.
    #[arg(long, env, default_value = "[::]:50051")]
    pub listen: SocketAddr,

    /// URL of the models service.
    #[arg(long, env, default_value = "http://localhost:50053")]
    pub models_url: String,

    /// URL of the tools service.
    #[arg(long, env, default_value = "http://localhost:50052")]
    pub tools_url: String,

    /// URL of the triggers service, which keeps the wake-ups that agents ask for.
    #[arg(long, env, default_value = "http://localhost:50054")]
    pub triggers_url: String,

    /// Directory of manifests, `<agent>.json` or `.yaml`, that every tenant has unless it puts its own.
    #[arg(long, env)]
    pub agents: Option<PathBuf>,

    /// How many turns this process runs at once; one tenant may have three quarters of them.
    #[arg(long, env, default_value_t = 256)]
    pub max_turns: usize,

    /// How many turns may wait in one session's queue.
    #[arg(long, env, default_value_t = 100, value_parser = clap::value_parser!(i32).range(1..=1000))]
    pub max_queue: i32,

    /// How many subagents of one session may run at once.
    #[arg(long, env, default_value_t = 20, value_parser = clap::value_parser!(i64).range(1..=1000))]
    pub max_children: i64,

    /// How deep subagents may nest where an agent does not say.
    #[arg(long, env, default_value_t = 5, value_parser = clap::value_parser!(i32).range(1..=32))]
    pub max_depth: i32,

    /// How many connections commit events side by side.
    #[arg(long, env, default_value_t = 2)]
    pub flushers: usize,

    /// How many connections serve what every turn needs: submitting and loading. They come on
    /// top of `--database-connections`, which everything else shares.
    #[arg(long, env, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..))]
    pub turn_connections: u16,

    /// Seconds between two heartbeats of this process.
    #[arg(long, env, default_value = "2", value_parser = chassis::seconds)]
    pub heartbeat: Duration,

    /// Seconds without a heartbeat after which another process takes over the sessions.
    #[arg(long, env, default_value = "10", value_parser = chassis::seconds)]
    pub lease: Duration,

    /// Seconds a model may be silent before its answer counts as broken off.
    #[arg(long, env, default_value = "120", value_parser = chassis::seconds)]
    pub model_silence: Duration,

    /// Seconds for which a call of a tool is repeated while the tools service, or the replica of it
    /// that has the workspace, is away. Longer than a replica takes to be replaced.
    #[arg(long, env, default_value = "60", value_parser = chassis::seconds)]
    pub tools_patience: Duration,

    /// Seconds after which a question to a person expires; 0: never.
    #[arg(long, env, default_value = "604800", value_parser = chassis::seconds)]
    pub action_expiry: Duration,

    /// Seconds an event may wait for a reader before the reader is dropped.
    #[arg(long, env, default_value = "10", value_parser = chassis::seconds)]
    pub reader_patience: Duration,

    /// Seconds between two looks for logs to seal, to join and to shorten.
    #[arg(long, env, default_value = "5", value_parser = chassis::seconds)]
    pub sweep: Duration,

    /// Seconds after which the deltas of a finished turn become one; 0: never.
    #[arg(long, env, default_value = "604800", value_parser = chassis::seconds)]
    pub delta_retention: Duration,

    /// Seconds after which the events of a finished turn are removed; 0: never. Messages stay.
    #[arg(long, env, default_value = "0", value_parser = chassis::seconds)]
    pub log_retention: Duration,

    /// File with the Ed25519 key (PKCS #8, PEM) that packs of evidence are signed with; without it
    /// they are unsigned. `evidence new-key` makes one.
    #[arg(long, env)]
    pub evidence_key_file: Option<PathBuf>,

    #[command(flatten)]
    pub chassis: chassis::Args,
}

#[derive(Debug, Clone, clap::Subcommand)]
pub enum Command {
    /// Bring the database up to date and exit.
    Migrate,

    /// Create an API key, print it once, and exit.
    MintKey {
        /// Whose sessions the key reaches.
        #[arg(long)]
        tenant: Tenant,

        /// Who acts with it.
        #[arg(long)]
        subject: String,

        /// What it may do: read, run, configure, admin.
        #[arg(long, value_delimiter = ',', default_value = "read,run")]
        scopes: Vec<String>,
    },
}

#[test]
fn flags_are_consistent() {
    <Config as clap::CommandFactory>::command().debug_assert();
}
