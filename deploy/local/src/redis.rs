//! A private Redis.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result};
use nix::sys::signal::Signal;

use crate::{
    keep,
    process::{self, Process},
};

const START: Duration = Duration::from_secs(20);
/// Enough for every fleet of a test run to have one of its own.
const DATABASES: usize = 4096;
const STOP: Duration = Duration::from_secs(20);

/// One Redis server on a loopback port, with a password. It keeps nothing on disk: whoever loses
/// what is in it finds all of it again in Postgres.
#[derive(Debug)]
pub struct Redis {
    url: String,
    process: Process,
}

impl Redis {
    /// Starts a server whose data is in `dir`, on the port it had the last time if that is free.
    pub async fn start(dir: &Path) -> Result<Redis> {
        let data = keep::dir(&dir.join("redis"))?;
        let password = keep::secret(&dir.join("redis.password"))?;
        let port = keep::port(&dir.join("redis.port"))?;
        // A file and not arguments, which every user of the machine can read.
        let config = dir.join("redis.conf");
        keep::text(
            &config,
            &format!(
                "bind 127.0.0.1\nport {port}\nrequirepass {password}\ndir {data:?}\n\
                 appendonly no\nsave \"\"\n\
                 maxmemory-policy noeviction\ndatabases {DATABASES}\n"
            ),
        )?;
        let farewell = Signal::SIGKILL;
        let mut command = process::command("redis-server", farewell, None);
        command.arg(&config);
        let process = Process::new("redis", &dir.join("redis.log"), farewell, command)?;
        let url = format!("redis://:{password}@127.0.0.1:{port}");
        let mut redis = Redis { url, process };
        redis.restart().await?;
        Ok(redis)
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn pid(&mut self) -> Option<u32> {
        self.process.pid()
    }

    /// Starts the server again, on the same port and with nothing in it.
    pub async fn restart(&mut self) -> Result<()> {
        if self.process.pid().is_some() {
            self.stop().await?;
        }
        let client = redis::Client::open(self.url.as_str())?;
        self.process
            .start()
            .context("redis-server comes with deploy/local/install.sh, or set REDIS_URL")?;
        self.process
            .ready(START, async || {
                let mut connection = client.get_multiplexed_async_connection().await?;
                Ok(redis::cmd("PING").exec_async(&mut connection).await?)
            })
            .await
    }

    /// Stops the clock for it: it keeps its connections and does nothing.
    pub fn pause(&mut self) -> Result<()> {
        self.process.pause()
    }

    pub fn resume(&mut self) -> Result<()> {
        self.process.resume()
    }

    /// Loses everything, as one does that has no file and was restarted.
    pub async fn forget(&mut self) -> Result<()> {
        let client = redis::Client::open(self.url.as_str())?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        Ok(redis::cmd("FLUSHALL").exec_async(&mut connection).await?)
    }

    /// Stops the server in good order.
    pub async fn stop(&mut self) -> Result<()> {
        self.process.end(Signal::SIGTERM, STOP).await.map(|_| ())
    }

    /// Kills the server as a crash would.
    pub async fn kill(&mut self) -> Result<()> {
        self.process.kill().await
    }

    pub(crate) fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}
