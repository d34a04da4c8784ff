//! Runs a command with a private Postgres and Redis:
//! `with-servers -- cargo test --workspace`.

use std::{
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{ExitCode, ExitStatus},
};

use anyhow::{Context, Result};
use clap::Parser;
use local::Servers;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    process::{Child, Command},
    signal::unix::{SignalKind, signal},
};

/// Runs a command with DATABASE_URL and REDIS_URL of private servers, and stops
/// them when it ends. A variable that is already set is left as it is.
#[derive(Debug, Parser)]
struct Args {
    /// Keep the servers' data here instead of throwing it away.
    #[arg(long)]
    dir: Option<PathBuf>,

    /// Have new databases begin with everything that the services migrate: hundreds of tests then
    /// copy it and do not do it again. Only where Postgres is a private one.
    #[arg(long)]
    migrated: bool,

    /// The command, and its arguments.
    #[arg(required = true, trailing_var_arg = true)]
    command: Vec<String>,
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let args = Args::parse();
    // Caught from the start: Ctrl-C while Postgres comes up must stop it as well.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let start = async {
        let servers = match &args.dir {
            Some(dir) => Servers::start(dir).await?,
            None => Servers::throwaway().await?,
        };
        if args.migrated {
            servers.migrate_template().await?;
        }
        anyhow::Ok(servers)
    };
    let mut servers = tokio::select! {
        servers = start => servers?,
        _ = interrupt.recv() => return Ok(ExitCode::from(128 + Signal::SIGINT as u8)),
        _ = terminate.recv() => return Ok(ExitCode::from(128 + Signal::SIGTERM as u8)),
    };

    let (program, rest) = args.command.split_first().context("no command")?;
    let mut child = Command::new(program)
        .args(rest)
        .env("DATABASE_URL", servers.database_url())
        .env("REDIS_URL", servers.redis_url())
        .spawn()
        .with_context(|| format!("cannot run {program}"))?;
    let status = loop {
        tokio::select! {
            status = child.wait() => break status?,
            // The terminal has sent Ctrl-C to the command too: it decides when to end.
            _ = interrupt.recv() => {}
            _ = terminate.recv() => pass_on(&child, Signal::SIGTERM),
        }
    };
    // Nobody has to write down what is thrown away.
    if args.dir.is_some() {
        servers.stop().await?;
    }
    Ok(code(status))
}

fn pass_on(child: &Child, signal: Signal) {
    if let Some(pid) = child.id() {
        kill(Pid::from_raw(pid.cast_signed()), signal).ok();
    }
}

/// The exit code a shell would report.
fn code(status: ExitStatus) -> ExitCode {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
    u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from)
}
