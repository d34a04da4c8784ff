//! What a call under way holds, from before it is asked for until it is settled.

use std::mem;

use chassis::Tenant;
use futures::future::join_all;
use proto::event::v1::event::Payload;
use tokio::{
    runtime::Handle,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use super::{Admission, Call, RETRY, Wanted, lock, refusal, share};
use crate::{
    bus::Settled,
    catalogue::Price,
    error::{Error, Result},
    facts::ModelRequestId,
    limit::{BudgetId, Check, Window, Worst},
    moment::Moment,
    provider::Delta,
    request::{Basis, Row, Status},
    soon::SOON,
    usage::{Meter, Usage},
};

/// Leave to call a provider. Dropping it ends the request with what was streamed until then.
pub struct Reservation {
    admission: Admission,
    tenant: Tenant,
    price: Price,
    /// Until it has ended.
    row: Option<Row>,
    began: Instant,
    given_up: CancellationToken,
    meter: Meter,
    budget: Option<Remaining>,
    facts: Vec<Payload>,
    share: Option<share::Held>,
}

/// What a budget has left beside everything that is reserved.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Remaining {
    pub budget_id: BudgetId,
    pub micros: i64,
}

impl Reservation {
    /// What is to be put on record before the call.
    pub fn facts(&mut self) -> Vec<Payload> {
        mem::take(&mut self.facts)
    }

    /// The budget that pays, if any.
    pub fn remaining(&self) -> Option<Remaining> {
        self.budget
    }

    /// Waits for the provider, unless this process is given up meanwhile and its calls with it.
    pub async fn within<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        let over = Error::Unavailable { dependency: "redis", retry_after: RETRY };
        self.given_up.run_until_cancelled(work).await.ok_or(over)
    }

    /// Notes what streams past.
    pub fn count(&mut self, delta: &Delta) {
        self.meter.count(delta);
        let elapsed = milliseconds(self.began);
        if let Some(row) = self.row.as_mut().filter(|row| row.first_token_ms == 0) {
            row.first_token_ms = elapsed.max(1);
        }
    }

    /// What was streamed so far, by our own count.
    pub fn usage(&self) -> Usage {
        self.meter.usage(self.row.as_ref().map(|row| row.reserved_input).unwrap_or_default())
    }

    /// The call is complete. Returns what the budget has left.
    pub fn settle(&mut self, usage: Usage, counted: bool) -> Option<Remaining> {
        self.end(Status::Completed, "", usage, basis(counted))
    }

    /// The call failed, and cost what it came to until then.
    pub fn fail(&mut self, kind: &str, usage: Usage, counted: bool) -> Option<Remaining> {
        self.end(Status::Failed, kind, usage, basis(counted))
    }

    pub(super) fn warn(
        mut self,
        low: &[(usize, i64)],
        checks: &[Check],
        now: &Moment,
    ) -> Reservation {
        let low = low.iter().filter_map(|(index, used)| Some((checks.get(*index)?, *used)));
        self.facts =
            low.map(|(check, used)| Payload::QuotaLow(refusal::quota(check, used, now))).collect();
        self
    }

    pub(super) fn share(mut self, held: share::Held) -> Reservation {
        self.share = Some(held);
        self
    }

    /// Nobody waits for Redis: what is left of the budget is what was left when the call was
    /// admitted, and what it did not need. Whoever calls next asks behind what is sent here.
    fn end(&mut self, status: Status, kind: &str, usage: Usage, basis: Basis) -> Option<Remaining> {
        let reserved = self.row.as_ref()?.reserved_micros;
        let unused = reserved.saturating_sub(self.price.cost_micros(&usage));
        let id = self.close(status, kind, usage, basis)?;
        self.admission.release_later(&self.tenant, id);
        let left = |budget: Remaining| budget.micros.saturating_add(unused);
        self.budget.map(|budget| Remaining { micros: left(budget), ..budget })
    }

    /// Tells the ledger; from here on the end is known, whoever tells Redis.
    fn close(
        &mut self,
        status: Status,
        kind: &str,
        usage: Usage,
        basis: Basis,
    ) -> Option<ModelRequestId> {
        let mut row = self.row.take()?;
        row.status = status;
        row.error_kind = kind.to_owned();
        row.duration_ms = milliseconds(self.began).max(row.first_token_ms);
        row.consume(usage, self.price.cost_micros(&usage), basis);
        let (id, taken) = (row.id, row.taken());
        if let Some(held) = self.share.take() {
            self.admission.settle_share(&self.tenant, &held, taken);
        }
        self.admission.0.ledger.push(row);
        self.admission.note_end(id, taken);
        Some(id)
    }

    /// Whether anything was streamed.
    pub fn has_begun(&self) -> bool {
        self.row.as_ref().is_some_and(|row| row.first_token_ms > 0)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let usage = self.usage();
        let ended = self.close(Status::Cancelled, "", usage, Basis::Estimated);
        if let Some(id) = ended {
            self.admission.release_later(&self.tenant, id);
        }
    }
}

impl Admission {
    pub(super) fn guard(&self, wanted: &Wanted, asked: bool) -> Guard<'_> {
        let (id, tenant) = (wanted.id, wanted.account.tenant.clone());
        let call = Call { tenant: tenant.clone(), uncounted: false, ended: None };
        lock(&self.0.calls).insert(id, call);
        Guard { admission: self, id, tenant, price: wanted.price.clone(), armed: true, asked }
    }

    /// From here on it is to be settled, unless nobody counts it: Redis was not asked, and will
    /// count what the ledger has because there is a share. Without one it may have done so already.
    fn note_end(&self, id: ModelRequestId, taken: Worst) {
        let is_away = !self.0.bus.is_up();
        let shares = lock(&self.0.shares);
        let mut calls = lock(&self.0.calls);
        let Some(call) = calls.get_mut(&id) else { return };
        let shared = shares.get(&call.tenant).is_some_and(|share| !share.left);
        match call.uncounted && is_away && shared {
            true => drop(calls.remove(&id)),
            false => call.ended = Some(taken),
        }
    }

    /// Settles a call that has ended. Without an answer it stays in our books, and the heart
    /// tries again. `Lost`: the tenant's counters have to be counted anew before that.
    pub(super) async fn release(&self, tenant: &Tenant, id: ModelRequestId) -> Option<Settled> {
        let taken = lock(&self.0.calls).get(&id).and_then(|call| call.ended);
        let taken = taken.filter(|_| self.0.bus.is_up())?;
        let settled = self.0.bus.settle(tenant, id, taken).await.ok()?;
        if settled != Settled::Lost {
            lock(&self.0.calls).remove(&id);
        }
        Some(settled)
    }

    /// Together with the next call that asks, or soon: who tells Redis twice wakes it up twice.
    fn release_later(&self, tenant: &Tenant, id: ModelRequestId) {
        // Without a runtime the process is ending.
        let Ok(runtime) = Handle::try_current() else { return };
        let mut ended = lock(&self.0.ended);
        ended.calls.push((tenant.clone(), id));
        if !mem::replace(&mut ended.awaited, true) {
            let admission = self.clone();
            runtime.spawn(async move {
                sleep(SOON).await;
                lock(&admission.0.ended).awaited = false;
                admission.release_ended().await;
            });
        }
    }

    /// Settles what ended a moment ago.
    pub(super) async fn release_ended(&self) {
        let ended = mem::take(&mut lock(&self.0.ended).calls);
        join_all(ended.iter().map(|(tenant, id)| self.release(tenant, *id))).await;
    }
}

/// Stands between asking and knowing: if nobody stays to hear the answer, or there is none, what
/// may have been reserved is given back.
pub struct Guard<'a> {
    admission: &'a Admission,
    id: ModelRequestId,
    tenant: Tenant,
    price: Price,
    armed: bool,
    /// Redis may know of it.
    asked: bool,
}

impl Guard<'_> {
    /// Redis counts nothing of the call, so there is nothing to settle, unless it was asked and did not
    /// answer.
    pub fn uncounted(self) -> Self {
        if let Some(call) = lock(&self.admission.0.calls).get_mut(&self.id) {
            call.uncounted = !self.asked;
        }
        self
    }

    /// Nothing was reserved.
    pub fn nothing(mut self) {
        self.armed = false;
        lock(&self.admission.0.calls).remove(&self.id);
    }

    pub fn admitted(
        mut self,
        row: Row,
        given_up: CancellationToken,
        checks: &[Check],
        remaining: Option<i64>,
    ) -> Reservation {
        self.armed = false;
        let admission = self.admission.clone();
        admission.0.counts.admitted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        admission.0.ledger.push(row.clone());
        let pays = checks.iter().any(|check| check.window == Window::Budget);
        let budget = row.budget_id.zip(remaining).filter(|_| pays);
        Reservation {
            admission,
            tenant: self.tenant.clone(),
            price: self.price.clone(),
            row: Some(row),
            began: Instant::now(),
            given_up,
            meter: Meter::default(),
            budget: budget.map(|(budget_id, micros)| Remaining { budget_id, micros }),
            facts: Vec::new(),
            share: None,
        }
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        if !self.asked {
            // Nobody can have reserved anything.
            lock(&self.admission.0.calls).remove(&self.id);
            return;
        }
        self.admission.note_end(self.id, Worst { tokens: 0, micros: 0 });
        self.admission.release_later(&self.tenant, self.id);
    }
}

fn basis(counted: bool) -> Basis {
    if counted { Basis::Exact } else { Basis::Estimated }
}

fn milliseconds(since: Instant) -> i32 {
    i32::try_from(since.elapsed().as_millis()).unwrap_or(i32::MAX)
}
