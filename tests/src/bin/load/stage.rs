//! What the load is put on.

use std::{
    fs,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use chassis::{Auth, Caller};
use clap::Parser as _;
use local::{Fleet, Servers, Service};
use proto::{session::v1::session::Status, triggers::v1::GetTriggerStatsRequest};
use sqlx::PgPool;
use tests::{Client, Push, Session, Witness, World};
use tokio::time::sleep;

use crate::Profile;

/// Whose everything here is.
const TENANT: &str = "load";

/// How many sessions turns are submitted to, one after the other.
const SESSIONS: usize = 16;

/// How many turns are in the log that subscribers read.
const PAST: usize = 20;

/// How long turns may take that still wait when a profile is over.
const PATIENCE: Duration = Duration::from_secs(300);

pub struct Stage {
    world: World,
    key: String,
    auth: Auth,
    addresses: Vec<(Service, String)>,
    sessions: Vec<Session>,
    /// A session with a past.
    history: Session,
    workspace_id: String,
    /// Has a line for each command that ran.
    witness: Witness,
    pub pushes: Vec<Push>,
    /// What the webhooks are told to, one each.
    pushed: Vec<Session>,
}

/// What the chassis reads from the command line to know who vouches for whom.
#[derive(Debug, clap::Parser)]
struct Args {
    #[command(flatten)]
    auth: chassis::auth::Args,
}

/// What each service has used up to an instant.
pub struct Used {
    at: Instant,
    services: Vec<(Service, f64, u64)>,
}

/// What a service used in a while.
pub struct Usage {
    pub service: Service,
    /// How many cores it kept busy.
    pub cores: f64,
    pub bytes: u64,
}

impl Stage {
    pub async fn start(senders: usize) -> Result<Stage> {
        // Queues and quotas are not what is looked at.
        let plan = Fleet::plan().env_of(Service::Session, "MAX_QUEUE", "1000").env_of(
            Service::Triggers,
            "DAILY_QUOTA",
            "1000000000",
        );
        let mut world = World::on(Servers::private().await?, plan).await;
        let key = world.fleet.mint_key(TENANT, "ann", "read,run,configure").await?;
        let client = world.client_with(Some(&key));
        client.put_agent().await;
        let sessions = create(&client, SESSIONS).await;
        let mut pushes = Vec::new();
        let pushed = create(&client, senders).await;
        for session in &pushed {
            pushes.push(Push::create(&client, &session.id).await);
        }
        let history = client.create_session().await;
        for _ in 0..PAST {
            history.run("say Some words.").await;
        }
        let workspace_id = history.get().await.workspace_id;
        let witness = Witness::of(&world, TENANT, &history).await;

        let secret = fs::read_to_string(world.fleet.dir().join("internal.secret"))?;
        let args = Args::parse_from(["load", "--auth-internal-secret", secret.trim()]);
        let db = PgPool::connect_lazy(world.fleet.database_url())?;
        let auth = Auth::new("load", &args.auth, db).await?;
        let addresses = Service::ALL.map(|service| (service, world.fleet.get(service).address()));
        let addresses = addresses.into();
        Ok(Stage {
            world,
            key,
            auth,
            addresses,
            sessions,
            history,
            workspace_id,
            witness,
            pushes,
            pushed,
        })
    }

    /// Where a profile calls.
    pub fn address(&self, profile: Profile) -> String {
        let wanted = service(profile);
        let found = self.addresses.iter().find(|(service, _)| *service == wanted);
        found.map(|(_, address)| address.clone()).unwrap_or_default()
    }

    /// What the configuration of a profile fills in.
    pub fn environment(&self, profile: Profile) -> Result<Vec<(&'static str, String)>> {
        let token = match profile {
            Profile::Submit | Profile::Subscribe | Profile::Webhook => self.key.clone(),
            Profile::Generate | Profile::Execute => {
                let caller = Caller::service(TENANT.parse()?, "load");
                self.auth.vouch(service(profile).name(), &caller)
            }
        };
        let sessions: Vec<_> = self.sessions.iter().map(|session| session.id.as_str()).collect();
        Ok(vec![
            ("LOAD_TOKEN", token),
            ("LOAD_SESSIONS", sessions.join(",")),
            ("LOAD_HISTORY", self.history.id.clone()),
            ("LOAD_WORKSPACE", self.workspace_id.clone()),
        ])
    }

    /// What every service has used so far, without the commands that tools runs.
    pub fn used(&mut self) -> Result<Used> {
        let mut services = Vec::new();
        for service in Service::ALL {
            let pid = self.world.fleet.get(service).process().pid();
            let used = pid.and_then(|pid| {
                Some((service, local::cpu_seconds(pid)?, local::resident_bytes(pid)?))
            });
            services.push(used.with_context(|| format!("{service} has ended"))?);
        }
        Ok(Used { at: Instant::now(), services })
    }

    /// How much of what a profile asks for was done so far, where that is not all in the answer.
    pub async fn done(&self, profile: Profile) -> Result<Option<u64>> {
        Ok(match profile {
            Profile::Submit => Some(completed(&self.sessions).await),
            Profile::Webhook => Some(completed(&self.pushed).await),
            Profile::Execute => Some(self.witness.lines().len() as u64),
            Profile::Subscribe | Profile::Generate => None,
        })
    }

    /// How many firings, of all triggers, are no turns yet.
    async fn pending(&self) -> Result<i64> {
        let request = GetTriggerStatsRequest::default();
        let stats = self.history.client.triggers().get_trigger_stats(request).await?;
        Ok(stats.into_inner().pending)
    }

    /// Waits until no turn is left that would disturb what comes next.
    pub async fn comes_to_rest(&self) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        while self.pending().await? > 0 && Instant::now() < end {
            sleep(Duration::from_millis(50)).await;
        }
        for session in self.sessions.iter().chain(&self.pushed) {
            while session.get().await.status() != Status::Idle && Instant::now() < end {
                sleep(Duration::from_millis(50)).await;
            }
        }
        Ok(())
    }
}

impl Used {
    pub fn since(self, before: &Used) -> Vec<Usage> {
        let seconds = (self.at - before.at).as_secs_f64();
        let both = self.services.into_iter().zip(&before.services);
        both.map(|((service, cpu, bytes), (_, earlier, _))| Usage {
            service,
            cores: (cpu - earlier) / seconds,
            bytes,
        })
        .collect()
    }
}

fn service(profile: Profile) -> Service {
    match profile {
        Profile::Submit | Profile::Subscribe => Service::Session,
        Profile::Generate => Service::Models,
        Profile::Execute => Service::Tools,
        Profile::Webhook => Service::Triggers,
    }
}

/// How many turns went well.
async fn completed(sessions: &[Session]) -> u64 {
    let mut completed = 0;
    for session in sessions {
        let log = session.log().await;
        completed += log.iter().filter(|event| event.r#type == "turn.completed").count();
    }
    completed as u64
}

async fn create(client: &Client, count: usize) -> Vec<Session> {
    let mut sessions = Vec::new();
    for _ in 0..count {
        sessions.push(client.create_session().await);
    }
    sessions
}
