//! gRPC calls, made by ghz.

use std::{collections::BTreeMap, path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use tokio::process::Command;

use crate::outcome::Outcome;

/// How ghz calls it when it leaves a stream itself, after as many messages as it was told to wait
/// for. A server that ends a call says something else.
pub const LEFT: &str = "rpc error: code = Canceled desc = context canceled";

/// What ghz says in the end, as far as we ask.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    count: u64,
    rps: f64,
    error_distribution: Option<BTreeMap<String, u64>>,
    latency_distribution: Option<Vec<Latency>>,
}

#[derive(Debug, Deserialize)]
struct Latency {
    percentage: u32,
    /// In nanoseconds.
    latency: u64,
}

pub async fn call(
    ghz: &Path,
    config: &Path,
    address: &str,
    environment: Vec<(&'static str, String)>,
    length: Duration,
    rate: Option<u32>,
) -> Result<Outcome> {
    let mut command = Command::new(ghz);
    command.arg("--config").arg(config).args(["--format", "json"]);
    command.args(["--duration", &format!("{}s", length.as_secs())]);
    if let Some(rate) = rate {
        command.args(["--rps", &rate.to_string()]);
    }
    command.arg(address).envs(environment).kill_on_drop(true);
    let output = command.output().await.with_context(|| format!("cannot run {}", ghz.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ghz with {} failed: {said}", config.display());
    let report: Report = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("ghz with {} says what nobody expects", config.display()))?;
    let latencies = report.latency_distribution.unwrap_or_default();
    let quantile = |percentage| {
        let found = latencies.iter().find(|latency| latency.percentage == percentage);
        found.map(|latency| Duration::from_nanos(latency.latency)).unwrap_or_default()
    };
    Ok(Outcome {
        count: report.count,
        rate: report.rps,
        quantiles: [quantile(50), quantile(95), quantile(99)],
        errors: report.error_distribution.unwrap_or_default(),
    })
}
