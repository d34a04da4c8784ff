//! What this Postgres can do on this machine: one row per transaction, with pgbench.

use std::{fs, time::Duration};

use anyhow::{Context, Result, ensure};
use tokio::process::Command;

use crate::{quantiles::Quantiles, stage::Stage};

const INSERT: &str = "insert into baseline (body) values ('a row');\n";

pub struct Baseline {
    pub per_second: f64,
    pub latencies: Quantiles,
}

/// Commits single rows for some seconds with so many clients.
pub async fn measure(stage: &mut Stage, clients: usize, seconds: u32) -> Result<Baseline> {
    let mut server = stage.server().await?;
    let table = "create table if not exists baseline
                 (id bigint generated always as identity primary key, body text not null)";
    sqlx::query(table).execute(&mut server).await?;

    let dir = tempfile::tempdir()?;
    let script = dir.path().join("insert.sql");
    fs::write(&script, INSERT)?;
    let pgbench = stage.program("pgbench")?;
    let (user, password, address) = login(stage.server_url()).context("not a Postgres URL")?;
    let (host, port) = address.split_once(':').context("the server has no port")?;
    let output = Command::new(pgbench)
        .args(["--no-vacuum", "--protocol=prepared", "--log", "--jobs=2"])
        .args([format!("--client={clients}"), format!("--time={seconds}")])
        .args(["--host", host, "--port", port, "--username", user])
        .arg("--file")
        .arg(&script)
        .arg("postgres")
        .env("PGPASSWORD", password)
        .current_dir(dir.path())
        .output()
        .await
        .context("pgbench comes with Postgres, and cannot be run")?;
    let (said, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "pgbench failed\n{errors}");

    let rate = said.lines().find_map(|line| line.strip_prefix("tps = "));
    let rate = rate.and_then(|rest| rest.split_whitespace().next());
    let rate = rate.with_context(|| format!("pgbench says no rate\n{said}{errors}"))?.parse()?;
    let mut latencies = Quantiles::default();
    for file in fs::read_dir(dir.path())? {
        let path = file?.path();
        if path != script {
            latencies.extend(fs::read_to_string(path)?.lines().filter_map(latency));
        }
    }
    Ok(Baseline { per_second: rate, latencies })
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
