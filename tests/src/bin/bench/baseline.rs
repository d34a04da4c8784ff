//! What this Postgres can do on this machine: one row per transaction, with pgbench.

use std::{fs, path::PathBuf, time::Duration};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use tokio::process::Command;

use crate::{quantiles::Quantiles, stage::Stage};

const SCRIPT: &str = "insert.sql";
const INSERT: &str = "insert into baseline (body) values ('a row');\n";

/// So many clients who commit single rows, a while at a time: whoever is compared with them takes
/// turns with them, so that a machine that is busy for a while is busy for both.
pub struct Baseline {
    pgbench: PathBuf,
    dir: TempDir,
    server_url: String,
    clients: usize,
    commits: f64,
    seconds: f64,
    pub latencies: Quantiles,
}

impl Baseline {
    pub async fn new(stage: &mut Stage, clients: usize) -> Result<Baseline> {
        let table = "create table if not exists baseline
                     (id bigint generated always as identity primary key, body text not null)";
        sqlx::query(table).execute(&mut stage.server().await?).await?;
        let dir = tempfile::tempdir()?;
        fs::write(dir.path().join(SCRIPT), INSERT)?;
        Ok(Baseline {
            pgbench: stage.program("pgbench")?,
            dir,
            server_url: stage.server_url().to_owned(),
            clients,
            commits: 0.0,
            seconds: 0.0,
            latencies: Quantiles::default(),
        })
    }

    /// Has each client commit so many rows.
    pub async fn commit(&mut self, rows: usize) -> Result<()> {
        let (user, password, address) = login(&self.server_url).context("not a Postgres URL")?;
        let (host, port) = address.split_once(':').context("the server has no port")?;
        let output = Command::new(&self.pgbench)
            .args(["--no-vacuum", "--protocol=prepared", "--log", "--jobs=2"])
            .args([format!("--client={}", self.clients), format!("--transactions={rows}")])
            .args(["--host", host, "--port", port, "--username", user])
            .args(["--file", SCRIPT, "postgres"])
            .env("PGPASSWORD", password)
            .current_dir(&self.dir)
            .output()
            .await
            .context("pgbench comes with Postgres, and cannot be run")?;
        let (said, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        ensure!(output.status.success(), "pgbench failed\n{errors}");

        let rate = said.lines().find_map(|line| line.strip_prefix("tps = "));
        let rate = rate.and_then(|rest| rest.split_whitespace().next());
        let rate: f64 =
            rate.with_context(|| format!("pgbench says no rate\n{said}{errors}"))?.parse()?;
        let commits = (self.clients * rows) as f64;
        self.commits += commits;
        self.seconds += commits / rate;
        for file in fs::read_dir(&self.dir)? {
            let path = file?.path();
            if !path.ends_with(SCRIPT) {
                self.latencies.extend(fs::read_to_string(&path)?.lines().filter_map(latency));
                fs::remove_file(path)?;
            }
        }
        Ok(())
    }

    /// Commits per second, over all of the while.
    pub fn rate(&self) -> f64 {
        self.commits / self.seconds
    }
}

/// A line of pgbench's log: client, transaction, microseconds, …
fn latency(line: &str) -> Option<Duration> {
    let micros = line.split_whitespace().nth(2)?.parse().ok()?;
    Some(Duration::from_micros(micros))
}

/// User, password and address of a URL; arguments can be read by everybody on the machine,
/// so the password goes another way.
fn login(url: &str) -> Option<(&str, &str, &str)> {
    let (login, rest) = url.split_once("://")?.1.split_once('@')?;
    let (user, password) = login.split_once(':')?;
    Some((user, password, rest.split('/').next()?))
}
