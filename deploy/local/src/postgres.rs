//! A private Postgres.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Result;
use nix::sys::signal::Signal;
use sqlx::{Connection, PgConnection};
use tokio::time::{Instant, sleep};

use crate::{
    cluster::Cluster,
    keep,
    process::{self, Process},
};

const START: Duration = Duration::from_secs(60);
const STOP: Duration = Duration::from_secs(30);
/// Ends all backends at once; the next start recovers as after a power failure.
const FAREWELL: Signal = Signal::SIGQUIT;

/// Durability is on, as in production: a test that kills the server means it.
const SETTINGS: &[(&str, &str)] = &[
    ("listen_addresses", "127.0.0.1"),
    ("unix_socket_directories", ""),
    ("max_connections", "200"),
    ("fsync", "on"),
    ("synchronous_commit", "on"),
    ("full_page_writes", "on"),
];

/// One Postgres server on a loopback port, durable and with a password.
#[derive(Debug)]
pub struct Postgres {
    url: String,
    bin: PathBuf,
    process: Process,
}

impl Postgres {
    /// Starts a server whose data is in `dir`, on the port it had the last time if that is free.
    pub async fn start(dir: &Path) -> Result<Postgres> {
        let password = keep::secret(&dir.join("postgres.password"))?;
        let port = keep::port(&dir.join("postgres.port"))?;
        let cluster = Cluster::open(dir, &password)?;
        let user = cluster.user.as_ref();
        let mut command = process::command(cluster.bin.join("postgres"), FAREWELL, user);
        command.arg("-D").arg(&cluster.data).args(["-p", &port.to_string()]);
        for (name, value) in SETTINGS {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        if cluster.has_library("pg_stat_statements") {
            command.args(["-c", "shared_preload_libraries=pg_stat_statements"]);
        }
        let process = Process::new("postgres", &dir.join("postgres.log"), FAREWELL, command)?;
        let url = format!("postgres://{}:{password}@127.0.0.1:{port}/postgres", Cluster::SUPERUSER);
        let mut postgres = Postgres { url, bin: cluster.bin, process };
        postgres.restart().await?;
        Ok(postgres)
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// A program that came with the server, such as `pgbench`.
    pub fn program(&self, name: &str) -> PathBuf {
        self.bin.join(name)
    }

    pub fn pid(&mut self) -> Option<u32> {
        self.process.pid()
    }

    /// Starts the server again, on the same port with the same data.
    pub async fn restart(&mut self) -> Result<()> {
        if self.process.pid().is_some() {
            self.stop().await?;
        }
        let deadline = Instant::now() + START;
        loop {
            self.process.start()?;
            let probe = async || Ok(PgConnection::connect(&self.url).await?.close().await?);
            let Err(error) = self.process.ready(START, probe).await else { return Ok(()) };
            // Backends of a killed server need a moment to notice, and until then
            // their shared memory keeps a new one out.
            if Instant::now() > deadline
                || !error.to_string().contains("pre-existing shared memory")
            {
                return Err(error);
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Stops the clock for the server and all that serves its connections, with the locks they hold.
    pub fn pause(&mut self) -> Result<()> {
        self.process.pause()
    }

    pub fn resume(&mut self) -> Result<()> {
        self.process.resume()
    }

    /// Stops the server in good order; open connections are cut.
    pub async fn stop(&mut self) -> Result<()> {
        self.process.end(Signal::SIGINT, STOP).await.map(|_| ())
    }

    /// Kills the server as a crash would.
    pub async fn kill(&mut self) -> Result<()> {
        self.process.kill().await
    }

    pub(crate) fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}
