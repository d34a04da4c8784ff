//! What governs tools beyond a single agent, as it is stored and as calls see it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use chassis::Tenant;
use moka::future::Cache;
use proto::tools::v1::Rule;
use sqlx::PgPool;

use crate::{
    call::{Call, WorkspaceId},
    error::{Error, Result},
    hook::{Event, Hook},
    store,
};

/// How long what another replica changed may still be seen as it was.
const STALE: Duration = Duration::from_secs(1);

/// How many workspaces are remembered.
const MOST: u64 = 10_000;

/// What holds in a workspace.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Policy {
    /// The workspace's project, or its own id where it has none.
    pub project: String,
    pub rules: Vec<Rule>,

    /// In the order in which they are asked.
    pub hooks: Vec<Hook>,
}

impl Policy {
    /// Adds the project's rules to those that the call came with. They hold for its parents too.
    pub fn govern(&self, call: &mut Call) {
        for rules in call.permissions.all_rules_mut() {
            rules.extend(self.rules.iter().cloned());
        }
    }

    /// Who is asked, in order.
    pub fn asked(&self, event: Event, tool: &str) -> impl Iterator<Item = &Hook> {
        self.hooks.iter().filter(move |hook| hook.is_about(event, tool))
    }
}

/// Remembers for a moment what holds where, so that a busy session costs a query a second.
pub struct Policies {
    db: PgPool,
    known: Cache<(Tenant, WorkspaceId), Known>,

    /// How often something was changed here. What was read before the last change is not
    /// believed any more, however it came to be remembered after it.
    changes: AtomicU64,
}

#[derive(Clone)]
struct Known {
    policy: Arc<Policy>,
    changes: u64,
}

impl Policies {
    pub fn new(db: PgPool) -> Policies {
        let known = Cache::builder().max_capacity(MOST).time_to_live(STALE).build();
        Policies { db, known, changes: AtomicU64::new(0) }
    }

    /// What holds in a workspace.
    pub async fn of(&self, tenant: &Tenant, id: WorkspaceId) -> Result<Arc<Policy>> {
        let key = (tenant.clone(), id);
        let changes = self.changes.load(SeqCst);
        if let Some(known) = self.known.get(&key).await
            && known.changes == changes
        {
            return Ok(known.policy);
        }
        let policy = Arc::new(store::policies::policy(&self.db, tenant, id).await?);
        self.known.insert(key, Known { policy: policy.clone(), changes }).await;
        Ok(policy)
    }

    /// Adds or replaces a rule.
    pub async fn put_rule(&self, tenant: &Tenant, project: &str, rule: &Rule) -> Result<()> {
        let stored = store::policies::put_rule(&self.db, tenant, project, rule).await;
        self.changed(stored)
    }

    pub async fn rules(&self, tenant: &Tenant, project: &str) -> Result<Vec<Rule>> {
        store::policies::rules(&self.db, tenant, project).await
    }

    pub async fn delete_rule(
        &self,
        tenant: &Tenant,
        project: &str,
        permission: &str,
        pattern: &str,
    ) -> Result<()> {
        let deleted =
            store::policies::delete_rule(&self.db, tenant, project, permission, pattern).await;
        match self.changed(deleted)? {
            true => Ok(()),
            false => Err(Error::PolicyNotFound(format!("{permission} {pattern}"))),
        }
    }

    /// Adds or replaces a hook.
    pub async fn put_hook(&self, tenant: &Tenant, hook: &Hook) -> Result<()> {
        let stored = store::policies::put_hook(&self.db, tenant, hook).await;
        self.changed(stored)
    }

    pub async fn hooks(&self, tenant: &Tenant, project: &str) -> Result<Vec<Hook>> {
        store::policies::hooks(&self.db, tenant, project).await
    }

    pub async fn delete_hook(&self, tenant: &Tenant, project: &str, id: &str) -> Result<()> {
        let deleted = store::policies::delete_hook(&self.db, tenant, project, id).await;
        match self.changed(deleted)? {
            true => Ok(()),
            false => Err(Error::PolicyNotFound(id.to_owned())),
        }
    }

    /// The events that somebody of the tenant wants to hear of.
    pub async fn hook_events(&self, tenant: &Tenant) -> Result<Vec<String>> {
        store::policies::hook_events(&self.db, tenant).await
    }

    /// Also after a failure, which may have come after the change.
    fn changed<T>(&self, result: Result<T>) -> Result<T> {
        self.changes.fetch_add(1, SeqCst);
        result
    }
}
