//! One running copy of a service, and everything that can happen to it.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::{
    process::{self, Process},
    service::Service,
};

/// Debug builds on a busy machine, each with migrations to run, take a while.
const START: Duration = Duration::from_secs(60);
/// Longer than the services' own drain deadline.
const GRACE: Duration = Duration::from_secs(45);
const PROBE: Duration = Duration::from_secs(2);

/// A service process on a port that it keeps through kills and restarts.
#[derive(Debug)]
pub struct Replica {
    service: Service,
    ports: Ports,
    process: Process,
}

/// Where a replica listens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ports {
    pub grpc: u16,
    pub metrics: u16,
    /// For webhooks, where there are any.
    pub http: Option<u16>,
}

impl Replica {
    /// Starts a process and does not wait for it; [`Replica::ready`] does.
    pub(crate) fn spawn<'a>(
        service: Service,
        name: &str,
        dir: &Path,
        ports: Ports,
        environment: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Replica> {
        let farewell = Signal::SIGKILL;
        let mut command = process::command(service.binary()?, farewell, None);
        command
            .env("LISTEN", format!("127.0.0.1:{}", ports.grpc))
            .env("METRICS_LISTEN", format!("127.0.0.1:{}", ports.metrics));
        if let Some(port) = ports.http {
            command.env("HTTP_LISTEN", format!("127.0.0.1:{port}"));
            command.env("PUBLIC_URL", format!("http://127.0.0.1:{port}"));
        }
        command.envs(environment);
        let log = dir.join(name).with_extension("log");
        let mut process = Process::new(name, &log, farewell, command)?;
        process.start()?;
        Ok(Replica { service, ports, process })
    }

    /// Waits until the replica says of itself that it serves.
    pub async fn ready(&mut self) -> Result<()> {
        let endpoint = tonic::transport::Endpoint::from_shared(self.endpoint())?
            .connect_timeout(PROBE)
            .timeout(PROBE);
        self.process
            .ready(START, async || {
                let channel = endpoint.connect().await.context("nobody answers")?;
                let request = HealthCheckRequest::default();
                let response = HealthClient::new(channel).check(request).await?;
                let status = response.into_inner().status();
                ensure!(status == ServingStatus::Serving, "health is {}", status.as_str_name());
                Ok(())
            })
            .await
    }

    pub fn service(&self) -> Service {
        self.service
    }

    /// Where the replica takes gRPC calls.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address())
    }

    /// The same without the scheme.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.ports.grpc)
    }

    /// Where it receives webhooks, if it does.
    pub fn http_url(&self) -> Option<String> {
        self.ports.http.map(|port| format!("http://127.0.0.1:{port}"))
    }

    /// Where Prometheus would scrape it.
    pub fn metrics_url(&self) -> String {
        format!("http://127.0.0.1:{}/metrics", self.ports.metrics)
    }

    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Kills it as the kernel or a power failure would.
    pub async fn kill(&mut self) -> Result<()> {
        self.process.kill().await
    }

    /// Asks it to finish what it does and end, as Kubernetes does.
    pub async fn terminate(&mut self) -> Result<()> {
        let status = self.process.end(Signal::SIGTERM, GRACE).await?;
        let (name, tail) = (self.process.name(), self.process.tail());
        ensure!(status.success(), "{name} ended badly ({status})\n{tail}");
        Ok(())
    }

    /// The same, and does not wait for it.
    pub fn dismiss(&mut self) -> Result<()> {
        self.process.signal(Signal::SIGTERM)
    }

    /// Stops the clock for it: it keeps its connections and does nothing.
    pub fn pause(&mut self) -> Result<()> {
        self.process.pause()
    }

    pub fn resume(&mut self) -> Result<()> {
        self.process.resume()
    }

    /// Starts it again on the same port, after a graceful stop if it still runs.
    pub async fn restart(&mut self) -> Result<()> {
        if self.process.pid().is_some() {
            self.terminate().await?;
        }
        self.process.start()?;
        self.ready().await
    }
}
