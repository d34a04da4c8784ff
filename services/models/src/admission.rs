//! Who may call a model now: limits and budgets, checked and reserved before the first byte and
//! settled after the last.
//!
//! A call is admitted by one script in Redis, which checks everything that governs it and reserves
//! the worst case at once, or takes nothing. Its row goes to the ledger at the same time, without
//! anybody waiting for that, and once more with what it really took. What Redis forgets is counted
//! again from the ledger before anything else is admitted, see `rebuild`; what a process leaves
//! behind when it dies is ended by the others, see `heart`.

mod heart;
mod news;
mod rebuild;
mod refusal;
mod reservation;
mod share;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use chassis::Tenant;
use futures::join;
use jiff::Timestamp;
use sqlx::PgPool;
use tokio::{
    sync::{RwLock, Semaphore},
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    bus::{Answer, Bus},
    catalogue::Price,
    error::{Error, Result},
    facts::{Correlation, ModelRequestId},
    ledger::Ledger,
    limit::{BudgetId, Check, Governance, Rules, Subject, Worst},
    moment::Moment,
    request::{Basis, ReplicaId, Row, Status},
    store,
};

pub use refusal::Refused;
pub use reservation::{Remaining, Reservation};
use share::Share;
pub use share::Without;

/// How soon somebody in line asks again.
const POLL: Duration = Duration::from_millis(50);

/// How long a call waits for counters to be counted anew.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long the end of the process waits for the books.
const FAREWELL: Duration = Duration::from_secs(3);

/// How many tenants' rules are kept at hand.
const MAX_TENANTS: usize = 10_000;

/// How many calls may be under way or, while Redis is away, wait to be settled there.
const MAX_CALLS: usize = 100_000;

/// When to come back to somebody who cannot decide now.
pub const RETRY: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub struct Admission(Arc<Inner>);

struct Inner {
    db: PgPool,
    bus: Bus,
    ledger: Ledger,
    without: Without,
    lease: Duration,
    here: Mutex<Here>,
    /// What governs each tenant whose calls we serve.
    governed: Mutex<HashMap<Tenant, Arc<Governed>>>,
    /// Our calls: those that are asking, those under way, and those that ended and that Redis may
    /// still count.
    calls: Mutex<HashMap<ModelRequestId, Call>>,
    ended: Mutex<Ended>,
    /// Held by whoever is between asking Redis and telling the ledger. A beat waits for all of them.
    asking: RwLock<()>,
    rebuilding: Mutex<HashMap<Tenant, rebuild::Rebuild>>,
    readings: Semaphore,
    /// The look at all processes that comes next.
    look: Mutex<Option<rebuild::Look>>,
    shares: Mutex<HashMap<Tenant, Share>>,
    /// The newest change that each session was told of, by its tenant and id.
    told: Mutex<HashMap<(Tenant, String), i64>>,
    counts: Counts,
}

/// This process, as others know it.
struct Here {
    replica: ReplicaId,
    /// When Postgres or Redis last heard of it. Nothing: neither has yet.
    heard: Option<Instant>,
    /// Ends everything that was admitted under this id.
    given_up: CancellationToken,
    /// How many of us there are.
    replicas: usize,
}

/// Rules in the form that decides, and the epoch they hold in.
struct Governed {
    epoch: String,
    governance: Governance,
}

struct Call {
    tenant: Tenant,
    /// Redis was not asked, and what it counts when it is back is what the ledger has: only of calls
    /// that go on by then is there something to settle.
    uncounted: bool,
    /// What it took.
    ended: Option<Worst>,
}

/// Calls that ended a moment ago, for Redis to hear of together with the next that asks.
#[derive(Default)]
struct Ended {
    calls: Vec<(Tenant, ModelRequestId)>,
    /// Somebody tells it soon if nobody asks.
    awaited: bool,
}

/// For `/health` and metrics.
#[derive(Default)]
struct Counts {
    admitted: AtomicU64,
    blocked: AtomicU64,
    rebuilt: AtomicU64,
    abandoned: AtomicU64,
}

/// A call that wants to be made.
#[derive(Debug, Clone)]
pub struct Wanted {
    pub id: ModelRequestId,
    pub account: Account,
    pub correlation: Correlation,
    pub provider: String,
    pub model: String,
    pub price: Price,
    /// The worst case.
    pub input: i32,
    pub output: i32,
}

/// Who pays for a request.
#[derive(Debug, Clone)]
pub struct Account {
    pub tenant: Tenant,
    pub subject: String,
    pub root_session_id: String,
    /// `None`: the tenant's, if it has one.
    pub budget_id: Option<BudgetId>,
}

impl Admission {
    /// Registers this process and starts what keeps the books.
    pub async fn start(
        db: PgPool,
        bus: Bus,
        lease: Duration,
        without: Without,
        room: usize,
        done: &CancellationToken,
    ) -> Result<Admission> {
        let replica = ReplicaId::new();
        store::replicas::register(&db, replica).await?;
        let admission = Admission(Arc::new(Inner {
            ledger: Ledger::start(db.clone(), room),
            db,
            bus,
            without,
            lease,
            here: Mutex::new(Here {
                replica,
                heard: Some(Instant::now()),
                given_up: CancellationToken::new(),
                replicas: 1,
            }),
            governed: Mutex::default(),
            calls: Mutex::default(),
            ended: Mutex::default(),
            asking: RwLock::default(),
            rebuilding: Mutex::default(),
            readings: Semaphore::new(rebuild::READINGS),
            look: Mutex::default(),
            shares: Mutex::default(),
            told: Mutex::default(),
            counts: Counts::default(),
        }));
        tokio::spawn(done.clone().run_until_cancelled_owned(heart::run(admission.clone())));
        heart::observe(&admission);
        Ok(admission)
    }

    /// Admits a call, lets it wait for its turn, or says what is in the way.
    ///
    /// May be dropped at any time: what it had reserved by then is given back.
    pub async fn admit(&self, wanted: &Wanted) -> Result<Reservation, Refused> {
        let inner = &self.0;
        let full = if !inner.ledger.has_room() {
            Some("postgres")
        } else if lock(&inner.calls).len() >= MAX_CALLS {
            Some("redis")
        } else {
            None
        };
        if let Some(dependency) = full {
            return Err(Refused::with(Error::Unavailable { dependency, retry_after: RETRY }));
        }
        let asked = Instant::now();
        let mut up_to_date = false;
        loop {
            let (replica, given_up) = self.here()?;
            let now = Moment::of(now());
            let governed = self.governed(&wanted.account.tenant);
            let (epoch, governance) = match &governed {
                Some(known) => (known.epoch.as_str(), Some(&known.governance)),
                None => ("", None),
            };
            let budget = match governance.map(|rules| rules.budget(wanted.account.budget_id)) {
                // Rules that were read before the budget was made do not know it.
                Some(Err(_)) if !up_to_date => {
                    lock(&inner.governed).remove(&wanted.account.tenant);
                    up_to_date = true;
                    continue;
                }
                Some(Err(id)) => return Err(Refused::with(Error::BudgetNotFound(id.to_string()))),
                Some(Ok(budget)) => budget,
                None => None,
            };
            let row = wanted.row(&now, replica, budget.map(|(id, _)| id));
            let mut checks = governance
                .map(|rules| rules.checks(&row.subject(), row.worst(), budget))
                .unwrap_or_default();
            shorten(&mut checks, asked);

            let asking = inner.asking.read().await;
            let asks = inner.bus.is_up();
            let guard = self.guard(wanted, asks);
            let answer = match asks {
                // Behind what ended before it, so that nobody is in the way of who comes after them.
                true => {
                    let admit = inner.bus.admit(&wanted.account.tenant, epoch, &now, &checks, &row);
                    join!(self.release_ended(), admit).1.ok()
                }
                false => None,
            };
            match answer {
                Some(Answer::Admitted { remaining, low }) => {
                    let reservation = guard.admitted(row, given_up, &checks, remaining);
                    drop(asking);
                    return Ok(reservation.warn(&low, &checks, &now));
                }
                Some(Answer::Refused(blocked)) => {
                    guard.nothing();
                    inner.counts.blocked.fetch_add(1, Relaxed);
                    return Err(Refused::by(&checks, &blocked, &now));
                }
                Some(Answer::Wait(_)) => {
                    guard.nothing();
                    drop(asking);
                    sleep(POLL).await;
                }
                Some(Answer::Stale { epoch, rules }) => {
                    guard.nothing();
                    self.govern(&wanted.account.tenant, epoch, &rules);
                }
                Some(Answer::Lost) => {
                    guard.nothing();
                    drop(asking);
                    self.rebuilt(&wanted.account.tenant).await?;
                }
                None => return self.without(wanted, &now, guard, row, given_up).await,
            }
        }
    }

    /// The id to act under. Whoever was silent for too long may have been given up, and finds out first.
    fn here(&self) -> Result<(ReplicaId, CancellationToken), Refused> {
        let here = self.0.here();
        match here.heard.is_some_and(|heard| heard.elapsed() < self.0.lease) {
            true => Ok((here.replica, here.given_up.clone())),
            false => {
                Err(Refused::with(Error::Unavailable { dependency: "redis", retry_after: RETRY }))
            }
        }
    }

    fn governed(&self, tenant: &Tenant) -> Option<Arc<Governed>> {
        lock(&self.0.governed).get(tenant).cloned()
    }

    fn govern(&self, tenant: &Tenant, epoch: String, rules: &Rules) {
        let governed = Arc::new(Governed { epoch, governance: rules.into() });
        let mut known = lock(&self.0.governed);
        if known.len() >= MAX_TENANTS {
            known.clear();
        }
        known.insert(tenant.clone(), governed);
    }

    /// Ends the books: everything is settled and written, as far as that can be done soon.
    pub async fn close(&self) {
        let settled = async {
            while self.owes() {
                sleep(POLL).await;
            }
        };
        let _ = timeout(FAREWELL, settled).await;
        let replica = self.0.here().replica;
        let written = timeout(FAREWELL, self.0.ledger.flush()).await.is_ok();
        // What could not be written or told is for the others, who look for a process that is silent.
        if written && !self.owes() {
            let _ = timeout(FAREWELL, store::replicas::remove(&self.0.db, replica)).await;
        }
    }

    /// Whether there is something that Redis has to hear yet.
    fn owes(&self) -> bool {
        let shares = self.0.without == Without::Share && !lock(&self.0.shares).is_empty();
        shares || !lock(&self.0.calls).is_empty()
    }

    /// Has new rules hold from now on.
    pub async fn rules_changed(&self, tenant: &Tenant) -> Result<()> {
        match self.leave_share(tenant).await {
            true => Ok(()),
            false => Err(Error::Unavailable { dependency: "redis", retry_after: RETRY }),
        }
    }

    pub fn db(&self) -> &PgPool {
        &self.0.db
    }
}

impl Inner {
    fn here(&self) -> MutexGuard<'_, Here> {
        lock(&self.here)
    }

    /// Whose calls were served here.
    fn tenants(&self) -> Vec<Tenant> {
        lock(&self.governed).keys().cloned().collect()
    }
}

impl Wanted {
    fn subject(&self) -> Subject {
        Subject {
            subject: self.account.subject.clone(),
            root_session_id: self.account.root_session_id.clone(),
            provider: self.provider.clone(),
            model: format!("{}/{}", self.provider, self.model),
        }
    }

    fn row(&self, now: &Moment, replica_id: ReplicaId, budget_id: Option<BudgetId>) -> Row {
        let Wanted { id, account, correlation, provider, model, price, input, output } =
            self.clone();
        Row {
            id,
            tenant_id: account.tenant.as_str().to_owned(),
            subject: account.subject,
            session_id: correlation.session_id,
            root_session_id: account.root_session_id,
            turn_id: correlation.turn_id,
            step_id: correlation.step_id,
            provider,
            model,
            budget_id,
            replica_id,
            status: Status::Running,
            error_kind: String::new(),
            basis: Basis::None,
            reserved_input: input,
            reserved_output: output,
            reserved_micros: price.worst_micros(input, output),
            input: 0,
            output: 0,
            reasoning: 0,
            cache_read: 0,
            cache_write: 0,
            cost_micros: 0,
            currency: price.currency,
            started_at: now.at,
            first_token_ms: 0,
            duration_ms: 0,
        }
    }
}

/// How long each may still be waited for.
fn shorten(checks: &mut [Check], asked: Instant) {
    let waited = asked.elapsed().as_millis() as i64;
    for check in checks {
        check.wait_ms = (check.queue_ms - waited).max(0);
    }
}

/// Now, as precise as Postgres stores it.
fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
