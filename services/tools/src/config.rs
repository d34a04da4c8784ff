use std::{env, net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::Context as _;
use sandbox::Tier;
use secrecy::SecretString;

use crate::{egress::Allowance, outputs, search};

/// Everything that can be configured; `tools --help` is its manual.
#[derive(Debug, Clone, clap::Parser)]
pub struct Config {
    #[command(subcommand)]
    pub command: Option<chassis::Command>,

    /// Address to accept gRPC calls on.
    #[arg(long, env, default_value = "[::]:50052")]
    pub listen: SocketAddr,

    /// Directory that holds the workspaces, one directory per tenant.
    #[arg(long, env, default_value = "/var/lib/windlass/workspaces")]
    pub workspaces_dir: PathBuf,

    /// How other replicas reach this one, as http(s)://host:port. Set it where each replica has a
    /// disk of its own: a workspace then lives on one of them, and the others pass calls on. Unset:
    /// there is one replica, or all share WORKSPACES_DIR. Set it before adding a second replica.
    #[arg(long, env)]
    pub advertise: Option<String>,

    /// How many bytes a workspace may take on disk.
    #[arg(long, env, default_value_t = 10 * 1024 * 1024 * 1024, value_parser = clap::value_parser!(u64).range(1..))]
    pub workspace_bytes: u64,

    /// How many files and directories a workspace may have.
    #[arg(long, env, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub workspace_files: u64,

    /// How many snapshots of a workspace are kept before the oldest give way.
    #[arg(long, env, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub workspace_snapshots: u32,

    /// Directory that holds what tools printed beyond what the log takes. With OUTPUTS_URL, only
    /// while it is printed.
    #[arg(long, env, default_value = "/var/lib/windlass/outputs")]
    pub outputs_dir: PathBuf,

    #[command(flatten)]
    pub outputs: outputs::Args,

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
    /// Less than A is the relaxed mode, which every fact, health and the log name.
    #[arg(long, env, default_value = "A")]
    pub sandbox_minimum_tier: Tier,

    /// How many sandboxes are prepared ahead of calls, which then start in half the time. Each is two
    /// processes that sleep, of 1 MiB together. 0 prepares none.
    #[arg(long, env, default_value_t = 2, value_parser = clap::value_parser!(u8).range(0..=64))]
    pub sandbox_pool: u8,

    /// Directory of the host that sandboxes may read, at the same path. Repeat it, or separate with commas. The user that commands run as must be able to reach it, and there must be no sockets in it: whoever sees one can talk to its owner.
    #[arg(long, env, value_delimiter = ',')]
    pub sandbox_read_only: Vec<PathBuf>,

    /// Directory with the secrets that tenants refer to by name: one directory per tenant, one file per secret.
    #[arg(long, env)]
    pub secrets_dir: Option<PathBuf>,

    /// How many MCP servers may be connected at once, and how many watched; one tenant may have half of each.
    #[arg(long, env, default_value_t = 64)]
    pub mcp_connections: usize,

    /// Seconds that an MCP server stays connected when nobody uses it.
    #[arg(long, env, default_value = "300", value_parser = chassis::seconds)]
    pub mcp_idle: Duration,

    /// How many tools may run at once before further calls are refused; one tenant may run three quarters
    /// of them.
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
    /// What beside the public internet may be reached, by those who were granted the host, by hooks and
    /// by MCP servers: networks (`10.0.0.0/8`), addresses, and names (`host`, `*.host`), with commas
    /// between them.
    #[arg(long, env, value_delimiter = ',')]
    pub egress_allow_private: Vec<Allowance>,

    /// How many bytes one call may send to and receive from other hosts.
    #[arg(long, env, default_value_t = 1024 * 1024 * 1024)]
    pub egress_bytes: u64,

    /// Secret that the keys are made of which calls to hooks are signed with. Unset: they are not signed.
    #[arg(long, env, hide_env_values = true)]
    pub hook_secret: Option<SecretString>,

    /// Another such secret that signs too, for as long as receivers change from one to the other.
    #[arg(long, env, hide_env_values = true, requires = "hook_secret")]
    pub hook_secret_also: Option<SecretString>,

    #[command(flatten)]
    pub search: search::Args,

    #[command(flatten)]
    pub chassis: chassis::Args,
}

impl Config {
    /// The directories that sandboxes may read, as their real paths.
    pub fn sandbox_read_only(&self) -> anyhow::Result<Vec<PathBuf>> {
        let real = |path: &PathBuf| {
            let path = path
                .canonicalize()
                .with_context(|| format!("cannot find SANDBOX_READ_ONLY {}", path.display()))?;
            anyhow::ensure!(path.is_dir(), "SANDBOX_READ_ONLY {} is no directory", path.display());
            Ok(path)
        };
        self.sandbox_read_only.iter().map(real).collect()
    }

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
