//! The two servers that Windlass stands on, private to whoever starts them.

use std::{env, path::Path};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;
use tokio::process::Command;

use crate::{Process, Service, keep, postgres::Postgres, redis::Redis};

/// A Postgres and a Redis on loopback ports of their own, durable and with
/// generated passwords. They end when this is dropped, or when we die.
///
/// `DATABASE_URL` and `REDIS_URL` in the environment name servers that somebody
/// else runs; [`Servers::start`] then uses those and starts nothing.
#[derive(Debug)]
pub struct Servers {
    database_url: String,
    redis_url: String,
    postgres: Option<Postgres>,
    redis: Option<Redis>,
    /// Last, because fields are dropped in order: first the servers, then the files under them.
    _scratch: Option<TempDir>,
}

impl Servers {
    /// Uses the servers the environment names, and starts those it does not name with their data in `dir`.
    pub async fn start(dir: &Path) -> Result<Servers> {
        Servers::assemble(dir, named("DATABASE_URL"), named("REDIS_URL")).await
    }

    /// The same with a directory that goes away when this is dropped.
    pub async fn throwaway() -> Result<Servers> {
        let scratch = keep::scratch()?;
        let servers = Servers::start(scratch.path()).await?;
        Ok(Servers { _scratch: Some(scratch), ..servers })
    }

    /// Two servers that nobody else uses, whatever the environment says: for
    /// tests that kill them. Their data goes away when this is dropped.
    pub async fn private() -> Result<Servers> {
        let scratch = keep::scratch()?;
        let servers = Servers::assemble(scratch.path(), None, None).await?;
        Ok(Servers { _scratch: Some(scratch), ..servers })
    }

    async fn assemble(
        dir: &Path,
        database: Option<String>,
        redis: Option<String>,
    ) -> Result<Servers> {
        let dir = keep::dir(dir)?;
        let (postgres, database_url) = match database {
            Some(url) => (None, url),
            None => {
                let server = Postgres::start(&dir).await?;
                let url = server.url().to_owned();
                (Some(server), url)
            }
        };
        let (redis, redis_url) = match redis {
            Some(url) => (None, url),
            None => {
                let server = Redis::start(&dir).await?;
                let url = server.url().to_owned();
                (Some(server), url)
            }
        };
        Ok(Servers { database_url, redis_url, postgres, redis, _scratch: None })
    }

    /// Migrates what new databases of our Postgres are copies of. Somebody else's is left alone.
    pub async fn migrate_template(&self) -> Result<()> {
        if !self.owns_postgres() {
            return Ok(());
        }
        let (server, _) = self.database_url.rsplit_once('/').context("a URL without a database")?;
        for service in Service::ALL {
            let output = Command::new(service.binary()?)
                .arg("migrate")
                .env("DATABASE_URL", format!("{server}/template1"))
                .env("REDIS_URL", &self.redis_url)
                .env("AUTH_INTERNAL_SECRET", "nobody is called while migrating")
                .output()
                .await?;
            let said = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.success(), "{service} cannot migrate: {said}");
        }
        Ok(())
    }

    pub fn database_url(&self) -> &str {
        &self.database_url
    }

    pub fn redis_url(&self) -> &str {
        &self.redis_url
    }

    pub(crate) fn owns_postgres(&self) -> bool {
        self.postgres.is_some()
    }

    /// Postgres, to be stopped, killed and restarted.
    pub fn postgres(&mut self) -> Result<&mut Postgres> {
        self.postgres.as_mut().context("DATABASE_URL names a Postgres that is not ours to stop")
    }

    /// Redis, to be stopped, killed and restarted.
    pub fn redis(&mut self) -> Result<&mut Redis> {
        self.redis.as_mut().context("REDIS_URL names a Redis that is not ours to stop")
    }

    /// The processes that were started, by name.
    pub fn pids(&mut self) -> impl Iterator<Item = (String, u32)> {
        self.processes().filter_map(Process::identity)
    }

    /// A few words, with the log, about each server that ended since they were last asked for.
    pub fn obituaries(&mut self) -> impl Iterator<Item = String> {
        self.processes().filter_map(Process::obituary)
    }

    fn processes(&mut self) -> impl Iterator<Item = &mut Process> {
        let postgres = self.postgres.as_mut().map(Postgres::process);
        postgres.into_iter().chain(self.redis.as_mut().map(Redis::process))
    }

    /// Stops what was started, in good order.
    pub async fn stop(&mut self) -> Result<()> {
        if let Some(redis) = &mut self.redis {
            redis.stop().await?;
        }
        if let Some(postgres) = &mut self.postgres {
            postgres.stop().await?;
        }
        Ok(())
    }
}

fn named(variable: &str) -> Option<String> {
    env::var(variable).ok().filter(|url| !url.is_empty())
}
