use std::{env, net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::Context as _;
use sandbox::Tier;

/// Everything that can be configured; `tools --help` is its manual.
#[derive(Debug, Clone, clap::Parser)]
pub struct Config {
    /// Address to accept gRPC calls on.
    #[arg(long, env, default_value = "[::]:50052")]
    pub listen: SocketAddr,

    /// Directory that holds the workspaces, one directory per tenant.
    #[arg(long, env, default_value = "/var/lib/windlass/workspaces")]
    pub workspaces_dir: PathBuf,

    /// Directory that holds what tools printed beyond what the log takes.
    #[arg(long, env, default_value = "/var/lib/windlass/outputs")]
    pub outputs_dir: PathBuf,

    /// How many bytes of one output are kept at most.
    #[arg(long, env, default_value_t = 256 * 1024 * 1024)]
    pub output_bytes: u64,

    /// Seconds an output is kept.
    #[arg(long, env, default_value = "604800", value_parser = chassis::seconds)]
    pub output_retention: Duration,

    /// File with secrets, one per line, that are never shown or kept of what tools print.
    #[arg(long, env)]
    pub redact_file: Option<PathBuf>,

    /// The program that builds sandboxes. Unset: `sandbox-init` beside this executable.
    #[arg(long, env)]
    pub sandbox_init: Option<PathBuf>,

    /// The worst sandbox that is good enough: A, B or C. Tools are refused on a machine that has less.
    #[arg(long, env, default_value = "A")]
    pub sandbox_minimum_tier: Tier,

    /// How many tools may run at once before further calls are refused.
    #[arg(long, env, default_value_t = 64)]
    pub max_executions: usize,

    /// How many processes may run on this server at once.
    #[arg(long, env, default_value_t = 256)]
    pub max_processes: usize,

    /// How many processes a session may have running at once.
    #[arg(long, env, default_value_t = 16)]
    pub max_session_processes: u32,

    /// How many processes a tenant may have running at once.
    #[arg(long, env, default_value_t = 128)]
    pub max_tenant_processes: u32,

    /// Seconds a process may run before it is ended.
    #[arg(long, env, default_value = "86400", value_parser = chassis::seconds)]
    pub process_seconds: Duration,

    #[command(flatten)]
    pub chassis: chassis::Args,
}

impl Config {
    pub fn sandbox_init(&self) -> anyhow::Result<PathBuf> {
        match &self.sandbox_init {
            Some(path) => Ok(path.clone()),
            None => {
                let executable = env::current_exe().context("cannot find this executable")?;
                Ok(executable.with_file_name("sandbox-init"))
            }
        }
    }
}

#[test]
fn flags_are_consistent() {
    <Config as clap::CommandFactory>::command().debug_assert();
}
