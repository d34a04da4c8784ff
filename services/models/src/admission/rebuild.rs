//! Counting anew what Redis does not know.
//!
//! An epoch that is missing means that Redis lost its counters, or that the rules changed. Nothing is
//! admitted then until they are counted from the ledger. Before that, every process that lives has
//! put on record what it admitted: a beat of its own that began later than the loss says so.

use std::{pin::pin, sync::Arc, time::Duration};

use chassis::Tenant;
use futures::{
    FutureExt as _,
    future::{BoxFuture, Shared},
};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::{Admission, PATIENCE, POLL, RETRY, heart::BEATS, lock, now};
use crate::{
    bus::{RENEWAL, Turn},
    counters::Counters,
    error::{Error, Result},
    limit::Governance,
    moment::Moment,
    request::ReplicaId,
    store::{self, replicas::Replica},
};

/// How long a step of it may take, beside waiting for those that are silent. Whoever is not done by then
/// waits for a Postgres that others may reach.
const STEP: Duration = Duration::from_secs(60);

/// How many tenants' ledgers are read at once. A Redis that is empty is so for all of them, and beats and
/// rows want connections too.
pub const READINGS: usize = 8;

pub type Rebuild = Shared<BoxFuture<'static, ()>>;

/// How all processes stand. Nothing: Postgres does not say.
pub type Look = Shared<BoxFuture<'static, Option<Arc<Vec<Replica>>>>>;

impl Admission {
    /// Waits until the counters may be known again.
    pub(super) async fn rebuilt(&self, tenant: &Tenant) -> Result<()> {
        let late = |_| Error::Unavailable { dependency: "redis", retry_after: RETRY };
        timeout(PATIENCE, self.count_anew(tenant)).await.map_err(late)
    }

    /// Has them counted, whether somebody waits for it or not.
    pub(super) fn count_anew(&self, tenant: &Tenant) -> Rebuild {
        let mut rebuilding = lock(&self.0.rebuilding);
        let start = || self.clone().start_rebuild(tenant.clone());
        rebuilding.entry(tenant.clone()).or_insert_with(start).clone()
    }

    /// A task of its own, so that it goes on when those who wait for it do not.
    fn start_rebuild(self, tenant: Tenant) -> Rebuild {
        let task = tokio::spawn(async move {
            if let Err(error) = self.rebuild(&tenant).await {
                warn!(%error, tenant.id = tenant.as_str(), "the counters of {} were not rebuilt", tenant.as_str());
                sleep(POLL).await;
            }
            lock(&self.0.rebuilding).remove(&tenant);
        });
        task.map(drop).boxed().shared()
    }

    async fn rebuild(&self, tenant: &Tenant) -> anyhow::Result<()> {
        let token = ReplicaId::new().to_string();
        let mut complete = false;
        loop {
            match self.0.bus.begin(tenant, &token).await? {
                Turn::Yours => (),
                Turn::Present => return Ok(()),
                Turn::Busy => {
                    sleep(POLL).await;
                    continue;
                }
            }
            let at = Moment::of(now());
            let reading = async {
                let _turn = self.0.readings.acquire().await;
                store::requests::past(&self.0.db, tenant, &at).await
            };
            let Some((rules, past)) = self.keep(tenant, &token, reading).await? else {
                complete = false;
                continue;
            };
            let governance = Governance::from(&rules);
            // Where nothing is counted nobody has to be waited for.
            if !governance.is_empty() && !complete {
                complete = self.keep(tenant, &token, self.on_record()).await?.is_some();
                continue;
            }
            let counters = Counters::of(&governance, &past, &at);
            let held: Vec<_> = past
                .running
                .into_iter()
                .map(|row| {
                    let checks = row.checks(&governance);
                    (row, checks)
                })
                .collect();
            if self.0.bus.rebuild(tenant, &token, &at, &rules, &counters, &held).await?
                == Turn::Yours
            {
                self.0.counts.rebuilt.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                info!(
                    tenant.id = tenant.as_str(),
                    live = held.len(),
                    "counted {} anew",
                    tenant.as_str()
                );
                return Ok(());
            }
            complete = false;
        }
    }

    /// Does what may take longer than a builder may be silent. Nothing: somebody else took over.
    async fn keep<T>(
        &self,
        tenant: &Tenant,
        token: &str,
        work: impl Future<Output = Result<T>>,
    ) -> anyhow::Result<Option<T>> {
        let mut work = pin!(timeout(self.0.lease + STEP, work));
        loop {
            if let Ok(done) = timeout(RENEWAL, &mut work).await {
                return Ok(Some(done??));
            }
            if self.0.bus.renew(tenant, token).await? != Turn::Yours {
                return Ok(None);
            }
        }
    }

    /// Returns when everything that any living process had admitted is in the ledger.
    async fn on_record(&self) -> Result<()> {
        let here = self.0.here().replica;
        let before = self.look().await?;
        drop(self.0.asking.write().await);
        self.0.ledger.flush().await;
        let mut patience = i64::from(BEATS);
        loop {
            let after = self.look().await?;
            let beats = |then: &Replica| {
                let now = after.iter().find(|now| now.id == then.id && !now.dead)?;
                Some(now.beat - then.beat)
            };
            // The beat after the next began later than now, whenever the next one did.
            let is_late = |then: &&Replica| beats(then).is_some_and(|beats| beats < 2);
            let late: Vec<_> = before.iter().filter(is_late).map(|then| then.id).collect();
            if late.iter().all(|id| *id == here) {
                return Ok(());
            }
            // By our own beats and not by a clock: while nobody can write, nobody misses any.
            let ours = before.iter().find(|then| then.id == here).and_then(beats);
            if ours >= Some(patience) {
                self.send_away(&late).await;
                patience += i64::from(BEATS);
            }
        }
    }

    /// Those who show themselves in Redis are not given up, whether they reach Postgres or not.
    async fn send_away(&self, late: &[ReplicaId]) {
        for id in late {
            if let Ok(true) = self.0.bus.is_alive(*id).await
                && let Ok(true) = self.0.bus.send_away(*id).await
            {
                warn!(replica.id = %id, "process {id} does not write to Postgres and is sent away");
            }
        }
    }

    /// The processes as they stand a moment from now. All who ask within it have the same answer, however
    /// many tenants are counted at once.
    async fn look(&self) -> Result<Arc<Vec<Replica>>> {
        let look = {
            let mut next = lock(&self.0.look);
            next.get_or_insert_with(|| self.clone().next_look().boxed().shared()).clone()
        };
        look.await.ok_or(Error::Unavailable { dependency: "postgres", retry_after: RETRY })
    }

    async fn next_look(self) -> Option<Arc<Vec<Replica>>> {
        sleep(POLL).await;
        // Who asks from here on wants to know of later.
        lock(&self.0.look).take();
        store::replicas::all(&self.0.db).await.ok().map(Arc::new)
    }
}

#[cfg(test)]
mod tests {
    use sqlx::PgPool;
    use tokio::join;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::{admission::Without, bus::tests::bus};

    async fn start(db: &PgPool, done: &CancellationToken) -> Admission {
        let lease = Duration::from_secs(1);
        Admission::start(db.clone(), bus(), lease, Without::Closed, 10, done).await.unwrap()
    }

    #[sqlx::test(migrator = "crate::MIGRATIONS")]
    async fn who_asks_in_time_shares_one_look_and_nobody_has_one_from_before(db: PgPool) {
        let done = CancellationToken::new();
        let _done = done.clone().drop_guard();
        let admission = start(&db, &done).await;
        let (one, other) = join!(admission.look(), admission.look());
        let (one, other) = (one.unwrap(), other.unwrap());
        assert!(Arc::ptr_eq(&one, &other));
        assert_eq!(one.len(), 1);
        assert!(!Arc::ptr_eq(&one, &admission.look().await.unwrap()));
    }

    #[sqlx::test(migrator = "crate::MIGRATIONS")]
    async fn nobody_waits_for_ever_for_one_that_does_not_reach_postgres(db: PgPool) {
        let done = CancellationToken::new();
        let _done = done.clone().drop_guard();
        let (bus, stuck) = (bus(), ReplicaId::new());
        store::replicas::register(&db, stuck).await.unwrap();
        let admission = start(&db, &done).await;
        let shows_itself = async {
            while bus.live(stuck, &[], Duration::from_secs(1)).await.unwrap() {
                sleep(POLL).await;
            }
        };
        let recorded = async { join!(admission.on_record(), shows_itself).0 };
        timeout(Duration::from_secs(20), recorded).await.unwrap().unwrap();
    }

    #[sqlx::test(migrator = "crate::MIGRATIONS")]
    async fn who_is_sent_away_goes_on_as_another(db: PgPool) {
        let done = CancellationToken::new();
        let _done = done.clone().drop_guard();
        let admission = start(&db, &done).await;
        let (before, given_up) = admission.here().ok().unwrap();
        bus().send_away(before).await.unwrap();
        timeout(Duration::from_secs(20), given_up.cancelled()).await.unwrap();
        let another = async {
            while admission.here().is_err() {
                sleep(POLL).await;
            }
        };
        timeout(Duration::from_secs(20), another).await.unwrap();
        assert_ne!(admission.here().ok().unwrap().0, before);
    }
}
