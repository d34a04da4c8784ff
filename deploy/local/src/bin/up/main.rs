//! What `make up` runs: all of Windlass on this machine, one turn to look at, and
//! then everything a person needs to try it out.
#![expect(clippy::print_stdout, reason = "a person reads this")]

mod client;
mod demo;
mod screen;

use std::{
    fs::{File, TryLockError},
    path::{Path, PathBuf},
    process,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use clap::Parser;
use local::{Fleet, Servers, Service, record, record::Entry};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::sleep,
};

use client::Client;

/// Starts Postgres, Redis and the four services, shows one turn, and stays up until Ctrl-C.
#[derive(Debug, Parser)]
struct Args {
    /// Where data, keys and logs are kept between runs.
    #[arg(long, default_value = ".local")]
    dir: PathBuf,
}

#[tokio::main]
async fn main() -> Result<()> {
    let Args { dir } = Args::parse();
    let dir = local::data_dir(&dir)?;
    let _lock = lock(&dir)?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;

    let mut up = tokio::select! {
        up = Up::start(&dir) => up?,
        _ = interrupt.recv() => return Ok(()),
        _ = terminate.recv() => return Ok(()),
    };
    tokio::select! {
        () = up.watch() => {}
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    println!("\nstopping …");
    up.fleet.stop().await?;
    up.servers.stop().await?;
    println!("stopped; the data stays in {} until `make clean`", dir.display());
    Ok(())
}

/// Everything that runs. The fleet is dropped before the servers it stands on.
struct Up {
    fleet: Fleet,
    servers: Servers,
}

impl Up {
    async fn start(dir: &Path) -> Result<Up> {
        println!("starting Postgres and Redis …");
        let mut servers = Servers::start(dir).await?;
        let mut running = vec![("up".to_owned(), process::id())];
        running.extend(servers.pids());
        remember(dir, &running)?;

        println!("starting session, tools, models and triggers …");
        let mut fleet = Fleet::plan().lasting(dir).start(&servers).await?;
        running.extend(fleet.pids());
        remember(dir, &running)?;

        let client = Client::connect(&mut fleet, &dir.join("key")).await?;
        let logs = || format!("the demo turn failed; the logs are in {}", dir.display());
        demo::run(&client).await.with_context(logs)?;
        let mut up = Up { fleet, servers };
        up.invite(client.key());
        Ok(up)
    }

    /// Says how to go on from here.
    fn invite(&mut self, key: &str) {
        println!("\nWindlass is up. Logs are in {}\n", self.fleet.dir().display());
        for service in Service::ALL {
            let replica = self.fleet.get(service);
            let (address, metrics) = (replica.address(), replica.metrics_url());
            println!("  {:<10}{address}    metrics {metrics}", service.name());
        }
        if let Some(url) = self.fleet.get(Service::Triggers).http_url() {
            println!("  {:<10}{url}", "webhooks");
        }
        println!("  {:<10}{}", "postgres", self.fleet.database_url());
        println!("  {:<10}{}", "redis", self.fleet.redis_url());
        println!("\n  key       {key}\n\nTry it:\n");
        println!(
            "  grpcurl -plaintext -H 'authorization: Bearer {key}' \\\n    {} \
             windlass.session.v1.SessionService/ListSessions\n",
            self.fleet.get(Service::Session).address()
        );
        println!("Ctrl-C stops everything.");
    }

    /// Tells about every process that ends by itself. Never returns.
    async fn watch(&mut self) {
        loop {
            for obituary in self.servers.obituaries().chain(self.fleet.obituaries()) {
                println!("\n{obituary}\nCtrl-C and `make up` start it again.");
            }
            sleep(Duration::from_millis(500)).await;
        }
    }
}

/// Held as long as we live: two of us on one data directory would fight over it.
fn lock(dir: &Path) -> Result<File> {
    let file = File::create(dir.join("lock"))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            bail!("this clone is already up in another terminal; `make down` stops it")
        }
        Err(TryLockError::Error(error)) => Err(error).context("cannot lock the data directory"),
    }
}

fn remember(dir: &Path, running: &[(String, u32)]) -> Result<()> {
    let entries = running.iter().filter_map(|(name, pid)| Entry::of(name, *pid));
    record::save(&dir.join("processes"), &entries.collect::<Vec<_>>())
}
