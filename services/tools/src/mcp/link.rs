//! One server for one workspace: connected when it is needed, and again when it was lost.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use chassis::Tenant;
use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior, interval, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{
    Server,
    activity::{Activity, lock},
    connect::{Connection, Connector, Protocol},
    describe, tool,
};
use crate::{
    call::WorkspaceId,
    catalog::{Catalog, Entry},
};

/// After a failure nobody tries for so long, then for twice as long, and so on.
const FIRST_REST: Duration = Duration::from_secs(1);
const LONGEST_REST: Duration = Duration::from_secs(300);

/// A connection that held for so long was a good one.
const GOOD: Duration = Duration::from_secs(60);

/// A server that changes its tools is asked about them at most this often.
const CHANGES: Duration = Duration::from_secs(1);

/// How long whoever needs a server that is not connected waits for it.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often to see whether anybody still uses a server.
const LOOK: Duration = Duration::from_secs(1);

/// What tools are needed for.
#[derive(Debug, Clone, Copy)]
pub enum Need {
    List,
    Call,
}

/// Which server, for whom.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key {
    pub tenant: Tenant,
    pub workspace_id: WorkspaceId,
    pub server_id: String,
}

pub struct Link {
    pub server: Server,
    status: watch::Sender<Status>,
    /// How often it has failed in a row.
    failures: AtomicU32,
    /// When connecting began.
    begun: Mutex<Instant>,
    pub activity: Arc<Activity>,
    stop: CancellationToken,
}

#[derive(Clone)]
pub enum Status {
    Idle,
    Connecting,
    Up(Arc<Tools>),
    Down { why: String, until: Instant },
}

/// What a server that is connected has.
pub struct Tools {
    pub entries: Vec<Arc<Entry>>,
    /// What there is to say about those that it has not.
    pub detail: String,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Link {
    pub fn new(server: Server) -> Link {
        Link {
            server,
            status: watch::channel(Status::Idle).0,
            failures: AtomicU32::new(0),
            begun: Mutex::new(Instant::now()),
            activity: Arc::new(Activity::new()),
            stop: CancellationToken::new(),
        }
    }

    pub fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    /// Ends the connection, with every call that runs over it.
    pub fn end(&self) {
        self.stop.cancel();
    }

    /// The server's tools, for which it is connected if it is not. Or why there are none.
    pub async fn tools(
        self: &Arc<Link>,
        key: &Key,
        around: &Arc<Around>,
        need: Need,
    ) -> Result<Arc<Tools>, String> {
        self.activity.touch();
        let mut news = self.status.subscribe();
        let begins = self.status.send_if_modified(|status| {
            let rested = match status {
                Status::Idle => true,
                Status::Down { until, .. } => *until <= Instant::now(),
                Status::Connecting | Status::Up(_) => false,
            };
            if rested {
                *status = Status::Connecting;
            }
            rested
        });
        if begins {
            *lock(&self.begun) = Instant::now();
            let keeping = Keeper {
                link: Arc::downgrade(self),
                server: self.server.clone(),
                activity: self.activity.clone(),
                stop: self.stop.clone(),
                key: key.clone(),
                around: around.clone(),
                protocol: match self.failures.load(Ordering::Relaxed) % 2 {
                    0 => Protocol::Any,
                    _ => Protocol::Old,
                },
            };
            tokio::spawn(keeping.keep());
        }
        let settled = news.wait_for(|status| !matches!(status, Status::Connecting));
        match timeout(self.patience(need), settled).await {
            Ok(Ok(status)) => match &*status {
                Status::Up(tools) => Ok(tools.clone()),
                Status::Down { why, .. } => Err(why.clone()),
                Status::Idle | Status::Connecting => Err("it was disconnected".into()),
            },
            Ok(Err(_)) => Err("it was disconnected".into()),
            Err(_) => Err("it is still being connected".into()),
        }
    }

    /// How long to wait for a connection. What is listed can do without a server that has failed
    /// before, so that one which never answers does not slow every turn.
    fn patience(&self, need: Need) -> Duration {
        match need {
            Need::Call => PATIENCE,
            Need::List if self.failures.load(Ordering::Relaxed) > 0 => Duration::ZERO,
            Need::List => PATIENCE.saturating_sub(lock(&self.begun).elapsed()),
        }
    }

    /// Remembers a failure and when to try again.
    fn failed(&self, why: String) {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed);
        let rest = FIRST_REST * 2u32.saturating_pow(failures.min(16));
        let until = Instant::now() + rest.min(LONGEST_REST);
        self.status.send_replace(Status::Down { why, until });
    }
}

/// What connections are made with.
pub struct Around {
    pub connector: Connector,
    /// Whose names nobody else may have.
    pub built_in: Catalog,
    /// How long a connection is kept that nobody uses.
    pub idle: Duration,
}

/// Keeps a connection for as long as it holds and is of use.
struct Keeper {
    /// The link need not wait for us to be gone.
    link: std::sync::Weak<Link>,
    server: Server,
    activity: Arc<Activity>,
    stop: CancellationToken,
    key: Key,
    around: Arc<Around>,
    protocol: Protocol,
}

impl Keeper {
    async fn keep(self) {
        let Key { tenant, workspace_id, server_id } = &self.key;
        let begun = Instant::now();
        let kept = self.stop.run_until_cancelled(self.connect_and_watch()).await;
        let Some(link) = self.link.upgrade() else { return };
        match kept {
            None | Some(Ok(())) => drop(link.status.send_replace(Status::Idle)),
            Some(Err(why)) => {
                warn!(tenant.id = %tenant, workspace.id = %workspace_id, "MCP server {server_id}: {why}");
                if begun.elapsed() > GOOD {
                    link.failures.store(0, Ordering::Relaxed);
                }
                link.failed(why);
            }
        }
    }

    async fn connect_and_watch(&self) -> Result<(), String> {
        let Key { tenant, workspace_id, .. } = &self.key;
        let connector = &self.around.connector;
        let connection =
            connector.connect(tenant, *workspace_id, &self.server, self.protocol).await?;
        let fault = &connection.common.fault;
        tokio::select! {
            // Who hung up says more by the error.
            biased;
            watched = self.watch(&connection) => watched,
            () = fault.ended() => match fault.is_nobodys() {
                true => Ok(()),
                false => Err(connection.common.detail("it hung up").await),
            },
        }
    }

    /// Returns when nobody uses the server any more.
    async fn watch(&self, connection: &Connection) -> Result<(), String> {
        let Key { tenant, workspace_id, server_id } = &self.key;
        self.show(connection).await?;
        info!(tenant.id = %tenant, workspace.id = %workspace_id, "MCP server {server_id} is connected");
        let mut subscription = connection.subscribe().await;
        let mut ticks = interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let told = async {
                match &mut subscription {
                    Some(subscription) => subscription.next().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = connection.changed.notified() => (),
                told = told => match told {
                    Ok(Some(_)) => (),
                    Ok(None) | Err(_) => {
                        subscription = None;
                        continue;
                    }
                },
                _ = ticks.tick() => {
                    let unused = self.activity.unused_since();
                    if unused.is_some_and(|since| since.elapsed() > self.around.idle) {
                        return Ok(());
                    }
                    continue;
                }
            }
            self.show(connection).await?;
            sleep(CHANGES).await;
        }
    }

    /// Puts the tools that the server has by now in the place of those that it had.
    async fn show(&self, connection: &Connection) -> Result<(), String> {
        let listed = connection.list().await?;
        let (around, server) = (self.around.clone(), self.server.clone());
        // Making sense of what a server says takes as long as the server wants, within bounds.
        let described = tokio::task::spawn_blocking(move || {
            let taken = |name: &str| around.built_in.is_built_in(name);
            describe::tools(&server.id, server.trusted, listed, taken)
        });
        let (described, left_out) =
            described.await.map_err(|_| "its tools cannot be described".to_owned())?;
        let (peer, common) = (connection.running.peer(), &connection.common);
        let entries = described
            .into_iter()
            .map(|described| Arc::new(tool::entry(described, peer, common, &self.activity)));
        let detail = describe::explain(&left_out);
        let detail = crate::text::shorten(&detail, super::LONGEST_DETAIL - 1);
        let tools = Tools { entries: entries.collect(), detail };
        if let Some(link) = self.link.upgrade() {
            link.status.send_replace(Status::Up(Arc::new(tools)));
        }
        Ok(())
    }
}
