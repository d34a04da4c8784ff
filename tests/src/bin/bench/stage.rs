use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result};
use local::{Fleet, Plan, Servers, Service};
use proto::session::v1::{Manifest, PutAgentRequest};
use sqlx::{Connection, PgConnection};
use tests::{Client, World};
use tokio::time::sleep;

use crate::scale::Scale;

/// Whose everything here is.
pub const TENANT: &str = "bench";

/// A system that nobody else uses, and the ways to look behind it.
pub struct Stage {
    world: World,
    key: String,
    pub scale: Scale,
}

impl Stage {
    pub async fn start(scale: Scale) -> Result<Stage> {
        Stage::with(scale, Fleet::plan()).await
    }

    /// One whose session service gives back at once what it no longer needs, which its allocator
    /// else does when it sees fit: its memory is then what it holds.
    pub async fn tidy(scale: Scale) -> Result<Stage> {
        let plan = Fleet::plan();
        Stage::with(scale, plan.env_of(Service::Session, "MIMALLOC_PURGE_DELAY", "0")).await
    }

    pub async fn with(scale: Scale, plan: Plan) -> Result<Stage> {
        let world = World::on(Servers::private().await?, plan).await;
        let key = world.fleet.mint_key(TENANT, "bench", "read,run,configure").await?;
        let mut stage = Stage { world, key, scale };
        stage.client().put_agent().await;
        Ok(stage)
    }

    /// A caller with a connection of its own.
    pub fn client(&mut self) -> Client {
        self.world.client_with(Some(&self.key))
    }

    pub async fn put_agent(&mut self, agent: &str, manifest: Manifest) -> Result<()> {
        let request = PutAgentRequest { agent: agent.to_owned(), manifest: Some(manifest) };
        self.client().agents().put_agent(request).await?;
        Ok(())
    }

    /// The server itself: what is asked here is not counted as Windlass' statements.
    pub async fn server(&self) -> Result<PgConnection> {
        Ok(PgConnection::connect(self.world.servers.database_url()).await?)
    }

    /// The database of the services, for those who want to put something there.
    pub async fn database(&self) -> Result<PgConnection> {
        Ok(PgConnection::connect(self.world.fleet.database_url()).await?)
    }

    /// Waits until what was measured before is sealed, so that it does not disturb what comes next.
    pub async fn settle(&self) -> Result<()> {
        let unsealed = "select exists (select from session.turn
            where not sealed and status in ('completed', 'failed', 'cancelled'))";
        let mut database = self.database().await?;
        while sqlx::query_scalar::<_, bool>(unsealed).fetch_one(&mut database).await? {
            sleep(Duration::from_millis(200)).await;
        }
        Ok(())
    }

    /// The name of that database.
    pub fn database_name(&self) -> &str {
        self.world.fleet.database_url().rsplit('/').next().unwrap_or_default()
    }

    pub fn server_url(&self) -> &str {
        self.world.servers.database_url()
    }

    /// A program that came with the server.
    pub fn program(&mut self, name: &str) -> Result<PathBuf> {
        Ok(self.world.servers.postgres()?.program(name))
    }

    /// Where the files of a workspace are.
    pub fn workspace(&self, workspace_id: &str) -> PathBuf {
        self.world.fleet.dir().join("workspaces").join(TENANT).join(workspace_id)
    }

    /// Gives the session service an empty memory.
    pub async fn restart_session(&mut self) -> Result<()> {
        self.world.fleet.get(Service::Session).restart().await
    }

    /// Has the session service stand still until it is resumed.
    pub fn pause_session(&mut self) -> Result<()> {
        self.world.fleet.get(Service::Session).pause()
    }

    pub fn resume_session(&mut self) -> Result<()> {
        self.world.fleet.get(Service::Session).resume()
    }

    /// The ends of all logs, for when something went wrong.
    pub fn last_words(&mut self) -> String {
        let replicas = self.world.fleet.replicas().iter_mut();
        replicas.map(|replica| replica.process().tail()).collect::<Vec<_>>().join("\n")
    }

    /// Where `service` takes calls.
    pub fn endpoint(&mut self, service: Service) -> String {
        self.world.fleet.endpoint(service)
    }

    /// The file with what services vouch for their callers with.
    pub fn internal_secret(&self) -> PathBuf {
        self.world.fleet.dir().join("internal.secret")
    }

    /// How many scripts its Redis has run so far.
    pub async fn redis_scripts(&self) -> Result<f64> {
        let client = redis::Client::open(self.world.fleet.redis_url())?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        let info: String =
            redis::cmd("INFO").arg("commandstats").query_async(&mut connection).await?;
        let line = info.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        let calls = line.and_then(|rest| rest.split(',').next()).context("no scripts were run")?;
        Ok(calls.parse()?)
    }

    /// How long the first replica of `service` has kept cores busy, in seconds.
    pub fn cpu_seconds(&mut self, service: Service) -> Result<f64> {
        let pid = self.world.fleet.get(service).process().pid().context("the service has ended")?;
        local::cpu_seconds(pid).context("the service has ended")
    }

    /// How much memory the session service has, in bytes.
    pub fn session_memory(&mut self) -> Result<f64> {
        let process = self.world.fleet.get(Service::Session).process();
        let pid = process.pid().context("the session service has ended")?;
        let bytes = local::resident_bytes(pid).context("the session service has ended")?;
        Ok(bytes as f64)
    }
}
