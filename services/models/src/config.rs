use std::{net::SocketAddr, path::PathBuf};

/// Everything that can be configured; `models --help` is its manual.
#[derive(Debug, Clone, clap::Parser)]
#[command(version, about = "Calls language models for the other services.")]
pub struct Config {
    /// Address to accept gRPC calls on.
    #[arg(long, env, default_value = "[::]:50053")]
    pub listen: SocketAddr,

    /// The catalogue: providers, models, prices and what tenants may use, as CATALOGUE.md
    /// describes it. Read again when it changes. Unset: only the scripted models.
    #[arg(long, env)]
    pub catalogue: Option<PathBuf>,

    #[command(flatten)]
    pub chassis: chassis::Args,
}

#[test]
fn flags_are_consistent() {
    <Config as clap::CommandFactory>::command().debug_assert();
}
