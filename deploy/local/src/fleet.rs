//! All four services as real processes, to be talked to and to be killed.

use std::{
    path::{Path, PathBuf},
    thread,
};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use tempfile::TempDir;
use tokio::process::Command;

use crate::{
    Plan, Replica, Servers, Service,
    ground::{self, Ground},
    keep, port,
    replica::Ports,
};

/// Where webhooks are received unless somebody says otherwise.
const HTTP_PORT: u16 = 50055;

/// A running system with a database of its own. Everything ends when this is
/// dropped; if that happens in a panic, the ends of all logs are shown.
#[derive(Debug)]
pub struct Fleet {
    // First, because fields are dropped in order: first the processes, then their logs.
    replicas: Vec<Replica>,
    plan: Plan,
    ground: Ground,
    /// Where the other services find each one, and what all of them share.
    common: Vec<(String, String)>,
    dir: PathBuf,
    _scratch: Option<TempDir>,
}

impl Fleet {
    /// One replica of each service, on an empty database.
    pub async fn start(servers: &Servers) -> Result<Fleet> {
        Plan::default().start(servers).await
    }

    /// The beginning of a fleet that is not the usual one.
    pub fn plan() -> Plan {
        Plan::default()
    }

    pub(crate) async fn launch(plan: Plan, servers: &Servers) -> Result<Fleet> {
        let (ground, dir, scratch) = match plan.dir() {
            Some(dir) => (Ground::lasting(servers).await?, keep::dir(dir)?, None),
            None => {
                let scratch = keep::scratch()?;
                (Ground::fresh(servers).await?, scratch.path().to_owned(), Some(scratch))
            }
        };
        let mut common = vec![
            ("DATABASE_URL".to_owned(), ground.database_url.clone()),
            ("REDIS_URL".to_owned(), ground.redis_url.clone()),
            ("AUTH_INTERNAL_SECRET".to_owned(), keep::secret(&dir.join("internal.secret"))?),
            ("WORKSPACES_DIR".to_owned(), dir.join("workspaces").display().to_string()),
            ("OUTPUTS_DIR".to_owned(), dir.join("outputs").display().to_string()),
            (
                "SECRETS_KEY_FILE".to_owned(),
                keep::key(&dir.join("secrets.key"))?.display().to_string(),
            ),
        ];
        let mut firsts = Vec::new();
        for service in Service::ALL {
            let port = port::prefer(plan.dir().map(|_| service.port()))?;
            common.push((service.url_variable(), format!("http://127.0.0.1:{port}")));
            firsts.push((service, port));
        }
        let mut fleet =
            Fleet { replicas: Vec::new(), plan, ground, common, dir, _scratch: scratch };
        for (service, port) in firsts {
            for index in 0..fleet.plan.count(service) {
                let port = if index == 0 { port } else { port::free()? };
                fleet.spawn(service, port)?;
            }
        }
        try_join_all(fleet.replicas.iter_mut().map(Replica::ready)).await?;
        Ok(fleet)
    }

    /// Starts one more replica of `service` and waits until it serves.
    pub async fn add(&mut self, service: Service) -> Result<&mut Replica> {
        self.spawn(service, port::free()?)?;
        let replica = self.replicas.last_mut().context("just pushed")?;
        replica.ready().await?;
        Ok(replica)
    }

    /// The first replica of `service`, which is the one the other services call.
    pub fn get(&mut self, service: Service) -> &mut Replica {
        self.replica(service, 0)
    }

    /// The replica of `service` that was started as number `index`, from zero.
    pub fn replica(&mut self, service: Service, index: usize) -> &mut Replica {
        let mut replicas = self.replicas.iter_mut().filter(|replica| replica.service() == service);
        let Some(replica) = replicas.nth(index) else {
            panic!("this fleet has no replica {index} of {service}")
        };
        replica
    }

    /// Every replica, in the order of their starts.
    pub fn replicas(&mut self) -> &mut [Replica] {
        &mut self.replicas
    }

    /// Where the first replica of `service` takes gRPC calls.
    pub fn endpoint(&mut self, service: Service) -> String {
        self.get(service).endpoint()
    }

    /// The database of this fleet, for those who want to look behind the API.
    pub fn database_url(&self) -> &str {
        &self.ground.database_url
    }

    pub fn redis_url(&self) -> &str {
        &self.ground.redis_url
    }

    /// Where the logs are, each named for its process.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where a replica of the tools service has its workspaces.
    pub fn disk(&self, index: usize) -> PathBuf {
        match self.plan.has_separate_disks() {
            true => self.dir.join(format!("workspaces-{index}")),
            false => self.dir.join("workspaces"),
        }
    }

    /// Makes an API key, as an operator would on the command line.
    pub async fn mint_key(&self, tenant: &str, subject: &str, scopes: &str) -> Result<String> {
        let output = Command::new(Service::Session.binary()?)
            .args(["mint-key", "--tenant", tenant, "--subject", subject, "--scopes", scopes])
            .envs(self.common.iter().cloned())
            .output()
            .await?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "cannot mint a key ({})\n{errors}", output.status);
        let answer = String::from_utf8(output.stdout)?;
        Ok(answer.trim_end().lines().last().context("mint-key printed no key")?.to_owned())
    }

    /// The processes that run, by name.
    pub fn pids(&mut self) -> impl Iterator<Item = (String, u32)> {
        self.replicas.iter_mut().filter_map(|replica| replica.process().identity())
    }

    /// A few words, with the log, about each replica that ended since they were last asked for.
    pub fn obituaries(&mut self) -> impl Iterator<Item = String> {
        self.replicas.iter_mut().filter_map(|replica| replica.process().obituary())
    }

    /// Lets every service finish and end.
    pub async fn stop(&mut self) -> Result<()> {
        let running = self.replicas.iter_mut().filter_map(|replica| {
            replica.process().pid()?;
            Some(replica.terminate())
        });
        try_join_all(running).await?;
        Ok(())
    }

    fn spawn(&mut self, service: Service, port: u16) -> Result<()> {
        let index = self.replicas.iter().filter(|peer| peer.service() == service).count();
        let name = match index {
            0 => service.name().to_owned(),
            _ => format!("{service}-{}", index + 1),
        };
        let common: Vec<_> = self
            .common
            .iter()
            .map(|(name, value)| match self.plan.way(service, index, name) {
                Some(address) => (name.as_str(), ground::at_address(value, address)),
                None => (name.as_str(), value.clone()),
            })
            .collect();
        let common = common.iter().map(|(name, value)| (*name, value.as_str()));
        let own: Vec<_> = match service {
            Service::Tools if self.plan.has_separate_disks() => vec![
                ("WORKSPACES_DIR", self.disk(index).display().to_string()),
                ("ADVERTISE", format!("http://127.0.0.1:{port}")),
            ],
            _ => vec![],
        };
        let own = own.iter().map(|(name, value)| (*name, value.as_str()));
        let environment = common.chain(own).chain(self.plan.variables(service));
        let usual = self.plan.dir().filter(|_| index == 0).map(|_| HTTP_PORT);
        let http_port = match service {
            Service::Triggers => Some(port::prefer(usual)?),
            Service::Session | Service::Tools | Service::Models => None,
        };
        let ports = Ports { grpc: port, metrics: port::free()?, http: http_port };
        self.replicas.push(Replica::spawn(service, &name, &self.dir, ports, environment)?);
        Ok(())
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        if thread::panicking() {
            for replica in &mut self.replicas {
                eprintln!("{}", replica.process().tail());
            }
        }
    }
}
