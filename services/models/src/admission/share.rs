//! Deciding without Redis: not at all, or within a share of what is allowed.

use std::collections::hash_map::Entry;

use chassis::Tenant;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    Admission, RETRY, Wanted, lock,
    refusal::Refused,
    reservation::{Guard, Reservation},
};
use crate::{
    counters::Counters,
    error::Error,
    limit::{Check, Governance, Window, Worst},
    moment::Moment,
    request::Row,
    store,
};

/// What becomes of calls that limits or budgets govern while Redis is away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Without {
    /// They are refused until it is back.
    Closed,
    /// Each process admits its share: what is left, divided by the number of processes.
    Share,
}

/// One tenant's share here.
pub struct Share {
    governance: Governance,
    /// What was used when the share was made.
    before: Counters,
    now: Counters,
    replicas: i64,
    day: String,
    made: Instant,
    /// Redis is being told to have the tenant counted anew.
    pub(super) left: bool,
}

/// What a call holds of a share.
pub struct Held {
    checks: Vec<Check>,
    second: i64,
}

impl Admission {
    pub(super) async fn without(
        &self,
        wanted: &Wanted,
        now: &Moment,
        guard: Guard<'_>,
        mut row: Row,
        given_up: CancellationToken,
    ) -> Result<Reservation, Refused> {
        let tenant = &wanted.account.tenant;
        let governance = self.share_of(tenant, now).await?;
        let budget = match governance.budget(wanted.account.budget_id) {
            Ok(budget) => budget,
            Err(id) => return Err(Refused::with(Error::BudgetNotFound(id.to_string()))),
        };
        row.budget_id = budget.map(|(id, _)| id);
        let checks = governance.checks(&row.subject(), row.worst(), budget);
        if checks.is_empty() {
            return Ok(guard.uncounted().admitted(row, given_up, &checks, None));
        }
        if self.0.without == Without::Closed {
            return Err(Refused::with(Error::Unavailable {
                dependency: "redis",
                retry_after: RETRY,
            }));
        }
        let mut shares = lock(&self.0.shares);
        let Some(share) = shares.get_mut(tenant) else {
            return Err(Refused::with(Error::Unavailable {
                dependency: "redis",
                retry_after: RETRY,
            }));
        };
        let checks = share.cut(&checks, now.second());
        match share.now.admit(&checks, now.second()) {
            blocked if blocked.is_empty() => {
                let held = Held { checks, second: now.second() };
                Ok(guard.uncounted().admitted(row, given_up, &[], None).share(held))
            }
            blocked => Err(Refused::by(&checks, &blocked, now)),
        }
    }

    pub(super) fn settle_share(&self, tenant: &Tenant, held: &Held, taken: Worst) {
        if let Some(share) = lock(&self.0.shares).get_mut(tenant) {
            share.now.settle(&held.checks, held.second, taken, Moment::of(super::now()).second());
        }
    }

    /// What was decided without Redis is unknown to it: it has to be counted.
    pub(super) async fn leave_shares(&self) {
        let shares: Vec<_> =
            lock(&self.0.shares).iter().map(|(of, share)| (of.clone(), share.left)).collect();
        for (tenant, left) in shares {
            if !self.0.bus.is_up() {
                return;
            }
            if !self.leave_share(&tenant).await {
                self.mark_share(&tenant, left);
            }
        }
    }

    /// Has a tenant counted anew. Its share is left before Redis hears of it: what is admitted or ends
    /// from here on may be too late to be counted. It stays, for what ends meanwhile and in case that
    /// Redis does not hear: `false`.
    pub(super) async fn leave_share(&self, tenant: &Tenant) -> bool {
        self.mark_share(tenant, true);
        let heard = self.0.bus.invalidate(tenant).await.is_ok();
        if heard {
            // One that was made meanwhile is left the next time.
            lock(&self.0.shares).retain(|of, share| of != tenant || !share.left);
        }
        heard
    }

    fn mark_share(&self, tenant: &Tenant, left: bool) {
        if let Some(share) = lock(&self.0.shares).get_mut(tenant) {
            share.left = left;
        }
    }

    /// The tenant's rules; the first to ask has what is on record counted.
    async fn share_of(&self, tenant: &Tenant, now: &Moment) -> Result<Governance, Refused> {
        if let Some(share) = lock(&self.0.shares).get(tenant)
            && share.holds(now)
        {
            return Ok(share.governance.clone());
        }
        let (rules, past) = store::requests::past(&self.0.db, tenant, now).await?;
        let governance = Governance::from(&rules);
        let before = Counters::of(&governance, &past, now);
        let replicas = self.0.here().replicas.max(1) as i64;
        let share = Share {
            governance: governance.clone(),
            now: before.clone(),
            before,
            replicas,
            day: now.day.clone(),
            made: Instant::now(),
            left: false,
        };
        match lock(&self.0.shares).entry(tenant.clone()) {
            // What was admitted meanwhile stays counted.
            Entry::Occupied(known) if known.get().holds(now) => (),
            Entry::Occupied(mut old) => drop(old.insert(share)),
            Entry::Vacant(none) => drop(none.insert(share)),
        }
        Ok(governance)
    }
}

impl Share {
    /// Quotas are counted anew with the day. Whether somebody set the first limit of a tenant is
    /// looked up again and again.
    fn holds(&self, now: &Moment) -> bool {
        !self.left
            && self.day == now.day
            && (!self.governance.is_empty() || self.made.elapsed() < RETRY)
    }

    /// The same checks against what this process may use of each.
    fn cut(&self, checks: &[Check], second: i64) -> Vec<Check> {
        let cut = checks.iter().cloned().map(|mut check| {
            let used = match check.window {
                // Of what is open and of this minute, others have theirs and we have ours.
                Window::Live | Window::Minute => 0,
                Window::Day | Window::Month | Window::Budget => {
                    self.before.used(check.window, &check.counter, second)
                }
            };
            check.limit = used + (check.limit - used).max(0) / self.replicas;
            (check.queue_ms, check.wait_ms) = (0, 0);
            check
        });
        cut.collect()
    }
}

#[cfg(test)]
mod tests;
