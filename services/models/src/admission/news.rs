//! Sessions hear of it when somebody changes a limit or a budget that governs them: with their next
//! call, whether that is admitted or refused.

use std::time::Duration;

use proto::event::v1::{LimitChanged, event::Payload};
use tokio::time::timeout;
use tracing::warn;

use super::{Admission, Wanted, lock};
use crate::{limit::Change, store};

/// How many sessions we remember what they were told.
const MAX_SESSIONS: usize = 100_000;

/// How long a call waits for the ledger. Calls go on while Postgres is away; what changed right then is
/// not told.
const PATIENCE: Duration = Duration::from_millis(100);

impl Admission {
    /// What was changed of what governs a call since its session's last one. A session's first call
    /// finds limits as they are, and nothing has changed for it.
    pub async fn news(&self, wanted: &Wanted) -> Vec<Payload> {
        let Wanted { id, account, correlation, .. } = wanted;
        let governed = self.governed(&account.tenant);
        let Some(governance) = governed.as_ref().map(|governed| &governed.governance) else {
            return vec![];
        };
        let Some(newest) = governance.newest_change() else { return vec![] };
        let session = (account.tenant.clone(), correlation.session_id.clone());
        let told = lock(&self.0.told).get(&session).copied();
        if session.1.is_empty() || told.is_some_and(|told| told >= newest.id) {
            return vec![];
        }
        // Whom we do not know somebody else may have told, with the call before this one.
        let last = match told {
            Some(_) => None,
            None => {
                let asked = store::requests::last(&self.0.db, &session.0, &session.1, *id);
                let Ok(Ok(last)) = timeout(PATIENCE, asked).await else {
                    warn!(
                        session.id = session.1,
                        "session {} is not told which limits were changed", session.1
                    );
                    return vec![];
                };
                Some(last)
            }
        };
        let is_news = |change: &&Change| match last {
            Some(last) => last.is_some_and(|last| last < change.changed_at),
            None => told.is_some_and(|told| told < change.id),
        };
        let budget = governance.budget(account.budget_id).ok().flatten().map(|(id, _)| id);
        let call = wanted.subject();
        let news = governance.changes(&call, budget).filter(is_news).map(fact).collect();
        let mut told = lock(&self.0.told);
        if told.len() >= MAX_SESSIONS {
            told.clear();
        }
        told.insert(session, newest.id);
        news
    }
}

fn fact(change: &Change) -> Payload {
    let Change { name, scope, before, after, subject, .. } = change.clone();
    Payload::LimitChanged(LimitChanged { limit: name, scope, before, after, subject })
}
