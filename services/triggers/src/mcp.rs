//! Fires triggers when MCP servers tell of something.
//!
//! The tools service talks to servers: it has their secrets and knows which addresses may be reached.
//! Here is who listens. One replica does for each trigger, by a lease; what happens while nobody is
//! connected is not told, as the protocol has it.

use std::{collections::HashMap, sync::Arc, time::Duration};

use chassis::{Auth, Peer, Tenant};
use futures::FutureExt as _;
use proto::tools::v1::{
    ListMcpServersRequest, WatchMcpServerRequest, WatchMcpServerResponse,
    mcp_event_service_client::McpEventServiceClient, mcp_server::Transport,
    policy_service_client::PolicyServiceClient,
};
use serde_json::Value;
use sqlx::PgPool;
use tokio::time::{Instant, sleep};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::{Status, Streaming};
use tracing::{info, warn};
use uuid::Uuid;

use crate::{
    error::{Error, Result, invalid},
    fire::Fire,
    firing::Occasion,
    ids::TriggerId,
    sessions::creator,
    store::{mcp_watches, triggers},
    trigger::{Kind, McpEvent, Trigger},
};

/// How often to see which triggers there are, and to renew the leases of those that are ours.
const LOOK: Duration = Duration::from_secs(2);

/// For how long nobody else listens. Long enough for several looks to fail.
const LEASE: Duration = Duration::from_secs(15);

/// Who has less than this left of a lease fires nothing, so that two never fire the same.
const MARGIN: Duration = Duration::from_secs(5);

/// How many triggers one look takes, so that replicas that start together share them.
const AT_ONCE: i64 = 20;

/// After a failure nobody tries for so long, then for twice as long, and so on.
const FIRST_REST: Duration = Duration::from_secs(1);
const LONGEST_REST: Duration = Duration::from_secs(300);

/// A connection that held for so long was a good one.
const GOOD: Duration = Duration::from_secs(60);

/// How often, and how long apart, storing a firing is tried.
const ATTEMPTS: usize = 5;
const PAUSE: Duration = Duration::from_millis(500);

/// How long it may take to hear about servers.
const ANSWER: Duration = Duration::from_secs(5);

/// The way to the service that knows MCP servers.
#[derive(Clone)]
pub struct Tools {
    peer: Peer,
    chassis: chassis::Args,
}

impl Tools {
    pub fn new(url: &str, chassis: &chassis::Args, auth: &Auth) -> anyhow::Result<Tools> {
        let peer = Peer::new("tools", url, &chassis.tls, auth)?;
        Ok(Tools { peer, chassis: chassis.clone() })
    }

    /// Whether a server is there and can be listened to.
    pub async fn check(&self, tenant: &Tenant, subject: &str, event: &McpEvent) -> Result<()> {
        let request = ListMcpServersRequest {
            project: event.project.clone(),
            page_size: 200,
            ..Default::default()
        };
        let request = self.peer.request_within(ANSWER, &creator(tenant, subject), request);
        let mut client =
            chassis::client!(PolicyServiceClient::new(self.peer.channel()), self.chassis);
        let answer = client.list_mcp_servers(request).await;
        let servers = answer
            .map_err(|status| Error::Peer(Box::new(self.peer.failed(&status))))?
            .into_inner()
            .mcp_servers;
        let field = "trigger.mcp_event.mcp_server_id";
        let server = servers.into_iter().find(|server| server.mcp_server_id == event.mcp_server_id);
        match server.map(|server| server.transport) {
            Some(Some(Transport::Url(_))) => Ok(()),
            Some(_) => Err(invalid(
                field,
                "is a command, which runs in a workspace and only while it is needed: \
                 only servers that have a url can fire triggers",
            )),
            None => {
                Err(invalid(field, "the tools service knows no such MCP server in this project"))
            }
        }
    }

    async fn watch(
        &self,
        trigger: &Trigger,
        event: &McpEvent,
    ) -> Result<Streaming<WatchMcpServerResponse>, Status> {
        let request = WatchMcpServerRequest {
            project: event.project.clone(),
            mcp_server_id: event.mcp_server_id.clone(),
            subscription: event.subscription.clone(),
        };
        let caller = creator(&trigger.tenant, &trigger.subject);
        let client = McpEventServiceClient::new(self.peer.channel());
        let mut client = chassis::client!(client, self.chassis);
        Ok(client.watch_mcp_server(self.peer.request(&caller, request)).await?.into_inner())
    }
}

/// Listens for the triggers that are this replica's, until `stop`.
pub async fn run(db: PgPool, fire: Fire, tools: Tools, stop: CancellationToken) {
    let listener = Arc::new(Listener { owner: Uuid::now_v7().to_string(), db, fire, tools });
    let mut heard = HashMap::new();
    loop {
        if let Err(error) = listener.look(&mut heard).await {
            warn!(%error, "cannot look for triggers of MCP servers, trying again");
        }
        if stop.run_until_cancelled(sleep(LOOK)).await.is_none() {
            break;
        }
    }
    heard.clear();
    if let Err(error) = mcp_watches::let_go(&listener.db, &listener.owner).await {
        warn!(%error, "others have to wait until our leases are over");
    }
}

struct Listener {
    /// This process and no other.
    owner: String,
    db: PgPool,
    fire: Fire,
    tools: Tools,
}

/// A trigger that somebody listens for here.
struct Heard {
    trigger: Trigger,
    epoch: i64,
    /// Ends it.
    _stop: DropGuard,
}

impl Listener {
    /// Begins with what is new, and ends with what is no longer ours or not what it was.
    async fn look(self: &Arc<Self>, heard: &mut HashMap<TriggerId, Heard>) -> Result<()> {
        let now = self.fire.clock.now();
        let held = mcp_watches::hold(&self.db, &self.owner, now, LEASE, AT_ONCE).await?;
        let held: HashMap<TriggerId, i64> = held.into_iter().collect();
        heard.retain(|id, heard| held.get(id) == Some(&heard.epoch));
        for (id, epoch) in held {
            let Some(trigger) = triggers::find(&self.db, id).await? else { continue };
            let same =
                heard.get(&id).is_some_and(|heard| heard.trigger.definition == trigger.definition);
            if !same {
                let stop = CancellationToken::new();
                let keep = self.clone().keep(trigger.clone(), epoch);
                tokio::spawn(stop.clone().run_until_cancelled_owned(keep));
                heard.insert(id, Heard { trigger, epoch, _stop: stop.drop_guard() });
            }
        }
        Ok(())
    }

    /// Listens, and again whenever that fails.
    async fn keep(self: Arc<Self>, trigger: Trigger, epoch: i64) {
        let Kind::McpEvent(event) = &trigger.definition.kind else { return };
        let (id, server) = (trigger.id, &event.mcp_server_id);
        let mut told = Told::new(epoch);
        let mut failures = 0;
        loop {
            let begun = Instant::now();
            let problem = match self.listen(&trigger, event, &mut told).await {
                Ok(()) => "the stream ended".to_owned(),
                Err(problem) => problem,
            };
            if begun.elapsed() > GOOD {
                failures = 0;
            }
            let rest = LONGEST_REST.min(FIRST_REST * 2u32.saturating_pow(failures));
            failures = (failures + 1).min(16);
            warn!(trigger.id = %id, ?rest, "trigger {id} does not hear MCP server {server}: {problem}");
            sleep(rest).await;
        }
    }

    async fn listen(
        &self,
        trigger: &Trigger,
        event: &McpEvent,
        told: &mut Told,
    ) -> Result<(), String> {
        let words = |status: Status| status.message().to_owned();
        let mut stream = self.tools.watch(trigger, event).await.map_err(words)?;
        let id = trigger.id;
        while let Some(message) = stream.message().await.map_err(words)? {
            if message.notification_json.is_empty() {
                info!(trigger.id = %id, "trigger {id} hears MCP server {}", event.mcp_server_id);
                continue;
            }
            // What came meanwhile and says the same is the same.
            let mut messages = vec![message];
            while let Some(Ok(Some(more))) = stream.message().now_or_never() {
                if !messages.contains(&more) {
                    messages.push(more);
                }
            }
            for message in messages {
                self.fire(trigger, told, &message.notification_json).await?;
            }
        }
        Ok(())
    }

    async fn fire(&self, trigger: &Trigger, told: &mut Told, text: &str) -> Result<(), String> {
        let payload: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let delivery_id = told.next();
        let mut attempt = 1;
        loop {
            let stored = async {
                let (id, owner) = (trigger.id, &self.owner);
                if !mcp_watches::holds(&self.db, id, owner, told.epoch, MARGIN).await? {
                    return Ok(false);
                }
                let now = self.fire.clock.now();
                let occasion = Occasion::now(now, delivery_id.clone(), payload.clone());
                self.fire.accept(trigger, occasion).await?;
                Ok::<_, Error>(true)
            };
            match stored.await {
                Ok(true) => return Ok(()),
                Ok(false) => return Err("another replica listens".to_owned()),
                Err(error) if attempt == ATTEMPTS => {
                    return Err(format!("what it told cannot be stored: {error}"));
                }
                Err(_) => attempt += 1,
            }
            sleep(PAUSE).await;
        }
    }
}

/// Numbers what was told, so that storing it again stores nothing new. Notifications have no ids of
/// their own.
struct Told {
    epoch: i64,
    /// Nobody else numbers like this, nor does who listens here for the same trigger later: it may
    /// be changed, or paused and resumed, while the lease and its epoch stay.
    prefix: Uuid,
    count: u64,
}

impl Told {
    fn new(epoch: i64) -> Told {
        Told { epoch, prefix: Uuid::now_v7(), count: 0 }
    }

    fn next(&mut self) -> String {
        self.count += 1;
        format!("{}-{}", self.prefix, self.count)
    }
}

#[test]
fn who_listens_again_in_the_same_epoch_tells_of_other_things() {
    let (mut first, mut second) = (Told::new(7), Told::new(7));
    let mut ids = vec![first.next(), first.next(), second.next(), second.next()];
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 4, "{ids:?}");
}
