//! The servers of all workspaces, as far as they are in use here.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use chassis::{Places, Tenant};
use futures::future::join_all;
use moka::future::Cache;
use sqlx::PgPool;

use super::{
    Address, Server, State, Wanted, Watch,
    connect::Connector,
    link::{Around, Key, Link, Need, Status, Tools},
};
use crate::{
    call::WorkspaceId,
    catalog::Catalog,
    error::{Error, Result},
    store,
};

/// How long a server that changed may still be seen as it was.
const STALE: Duration = Duration::from_secs(2);

pub struct Servers {
    db: PgPool,
    around: Arc<Around>,
    /// How many links there may be, of which one tenant may have half.
    most: usize,
    links: Mutex<HashMap<Key, Arc<Link>>>,
    /// As many can be watched as can be used.
    watches: Places,
    any: Cache<Tenant, bool>,
    configured: Cache<(Tenant, WorkspaceId), Arc<Vec<Server>>>,
}

impl Servers {
    pub fn new(
        db: PgPool,
        connector: Connector,
        built_in: Catalog,
        idle: Duration,
        most: usize,
    ) -> Servers {
        Servers {
            db,
            around: Arc::new(Around { connector, built_in, idle }),
            most: most.max(2),
            links: Mutex::default(),
            watches: Places::new(most.max(2), most.max(2) / 2),
            any: Cache::builder().max_capacity(10_000).time_to_live(STALE).build(),
            configured: Cache::builder()
                .max_capacity(10_000)
                .time_to_live(STALE)
                .support_invalidation_closures()
                .build(),
        }
    }

    /// Whether a tenant has any servers.
    pub async fn has_any(&self, tenant: &Tenant) -> Result<bool> {
        let load = store::mcp_servers::any(&self.db, tenant);
        self.any.try_get_with(tenant.clone(), load).await.map_err(shared)
    }

    /// The catalogue of a workspace: ours, and what its servers have. Those that run in the workspace
    /// make it, which is only done if that is wanted.
    pub async fn catalog(&self, tenant: &Tenant, id: WorkspaceId, make: bool) -> Result<Catalog> {
        let configured = self.configured(tenant, id).await?;
        let asked = configured.iter().map(async |server| match server.address {
            Address::Command(_) if !make => Err("nothing has used the workspace yet".to_owned()),
            Address::Command(_) | Address::Url(_) => {
                self.tools(tenant, id, server, Need::List).await
            }
        });
        let answers = join_all(asked).await;
        let (mut entries, mut missing) = (Vec::new(), Vec::new());
        for (server, answer) in configured.iter().zip(answers) {
            match answer {
                Ok(tools) => entries.extend(tools.entries.iter().cloned()),
                Err(why) => missing.push((server.id.clone(), why)),
            }
        }
        Ok(self.around.built_in.with(entries, missing))
    }

    /// As much of that catalogue as has to do with one tool.
    pub async fn catalog_for(
        &self,
        tenant: &Tenant,
        id: WorkspaceId,
        tool: &str,
    ) -> Result<Catalog> {
        let none = || self.around.built_in.with([], vec![]);
        let Some((prefix, _)) = tool.split_once('_') else { return Ok(none()) };
        if !self.has_any(tenant).await? {
            return Ok(none());
        }
        let configured = self.configured(tenant, id).await?;
        let Some(server) = configured.iter().find(|server| server.id == prefix) else {
            return Ok(none());
        };
        Ok(match self.tools(tenant, id, server, Need::Call).await {
            Ok(tools) => self.around.built_in.with(tools.entries.iter().cloned(), vec![]),
            Err(why) => self.around.built_in.with([], vec![(server.id.clone(), why)]),
        })
    }

    /// Hears what a server at a URL tells of.
    pub async fn watch(
        &self,
        tenant: &Tenant,
        server: &Server,
        url: &str,
        wanted: Wanted,
    ) -> Result<Watch> {
        let room = self.watches.try_take(tenant).ok_or(Error::Overloaded)?;
        let watch = Watch::begin(&self.around.connector, tenant, server, url, wanted, room).await;
        watch.map_err(|why| Error::McpUnavailable { id: server.id.clone(), why })
    }

    /// How a server is doing, over all workspaces that use it from here.
    pub fn state(&self, tenant: &Tenant, server: &Server) -> State {
        let links = self.links();
        let ours =
            links.iter().filter(|(key, link)| key.tenant == *tenant && link.server == *server);
        let states = ours.map(|(_, link)| match link.status() {
            Status::Idle | Status::Connecting => State::Idle,
            Status::Up(tools) => State::Connected(tools.detail.clone()),
            Status::Down { why, .. } => State::Failed(why),
        });
        // Whoever is reached from somewhere is there; who fails is worth more than who rests.
        let rank = |state: &State| match state {
            State::Idle => 0,
            State::Failed(_) => 1,
            State::Connected(_) => 2,
        };
        states.max_by_key(rank).unwrap_or(State::Idle)
    }

    /// Lets the next call see servers that were just stored, and ends those that are no more.
    pub async fn changed(&self, tenant: &Tenant) {
        self.any.invalidate(tenant).await;
        let of = tenant.clone();
        // It fails only where closures are not supported, which they are.
        let _ = self.configured.invalidate_entries_if(move |key, _| key.0 == of);
    }

    async fn configured(&self, tenant: &Tenant, id: WorkspaceId) -> Result<Arc<Vec<Server>>> {
        let load = async {
            let found = store::mcp_servers::of_workspace(&self.db, tenant, id).await?;
            // What runs as it is no longer wanted ends as soon as somebody knows.
            self.links().retain(|key, link| {
                let kept =
                    key.tenant != *tenant || key.workspace_id != id || found.contains(&link.server);
                if !kept {
                    link.end();
                }
                kept
            });
            Ok::<_, Error>(Arc::new(found))
        };
        self.configured.try_get_with((tenant.clone(), id), load).await.map_err(shared)
    }

    async fn tools(
        &self,
        tenant: &Tenant,
        workspace_id: WorkspaceId,
        server: &Server,
        need: Need,
    ) -> Result<Arc<Tools>, String> {
        let server_id = server.id.clone();
        let key = Key { tenant: tenant.clone(), workspace_id, server_id };
        let link = self.link(&key, server)?;
        link.tools(&key, &self.around, need).await
    }

    fn link(&self, key: &Key, server: &Server) -> Result<Arc<Link>, String> {
        let mut links = self.links();
        if let Some(link) = links.get(key)
            && link.server == *server
        {
            return Ok(link.clone());
        }
        if let Some(old) = links.remove(key) {
            old.end();
        }
        make_room(&mut links, &key.tenant, self.most)?;
        let link = Arc::new(Link::new(server.clone()));
        links.insert(key.clone(), link.clone());
        Ok(link)
    }

    fn links(&self) -> MutexGuard<'_, HashMap<Key, Arc<Link>>> {
        self.links.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Gives up what was not used for the longest time, if there is no room for one more.
fn make_room(
    links: &mut HashMap<Key, Arc<Link>>,
    tenant: &Tenant,
    most: usize,
) -> Result<(), String> {
    let own = links.keys().filter(|key| key.tenant == *tenant).count();
    let own_only = own >= most / 2;
    if links.len() < most && !own_only {
        return Ok(());
    }
    let unused = links
        .iter()
        .filter(|(key, _)| !own_only || key.tenant == *tenant)
        .filter_map(|(key, link)| Some((link.activity.unused_since()?, key.clone())));
    let oldest = unused.min_by_key(|(since, _)| *since).map(|(_, key)| key);
    match oldest.and_then(|key| links.remove(&key)) {
        Some(link) => {
            link.end();
            Ok(())
        }
        None => Err("as many MCP servers are in use as may be".into()),
    }
}

/// Several waited for one query, and each gets to hear why it failed.
fn shared(error: Arc<Error>) -> Error {
    match Arc::try_unwrap(error) {
        Ok(error) => error,
        Err(error) => {
            tracing::warn!(%error, "cannot load MCP servers");
            Error::Database(sqlx::Error::PoolTimedOut)
        }
    }
}
