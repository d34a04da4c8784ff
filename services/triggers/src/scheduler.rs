//! Fires what is due. Every replica does; the rows of what is due are each for one of them.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use serde_json::Value;
use sqlx::PgPool;
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};
use tracing::{error, warn};

use crate::{
    clock::Clock,
    config::Limits,
    deliver::Deliverer,
    error::Result,
    fire,
    firing::{Candidate, Drop, Occasion},
    ids::{FiringId, TriggerId},
    metrics,
    schedule::{Due, catch_up},
    store::{self, due::DueTrigger},
    trigger::{Kind, Status, Trigger},
};

/// How many schedules are fired in one transaction.
const AT_ONCE: usize = 500;

/// How many firings one transaction stores; what is due beyond that waits for the next one.
const MOST_FIRINGS: usize = 2_000;

pub struct Scheduler {
    pub db: PgPool,
    pub clock: Clock,
    pub limits: Limits,
    pub deliverer: Deliverer,
    pub poll: Duration,

    /// Something may be due earlier than anybody here thinks.
    pub poke: Arc<Notify>,
}

impl Scheduler {
    /// Fires for ever.
    pub async fn run(self) {
        loop {
            self.deliverer.room().await;
            match self.fire_due().await {
                Ok(true) => continue,
                Ok(false) => {}
                Err(error) => warn!(%error, "cannot fire what is due, trying again"),
            }
            let nap = self.nap().await;
            let _ = timeout(nap, self.poke.notified()).await;
        }
    }

    /// Fires some of what is due. `true`: there may be more.
    async fn fire_due(&self) -> Result<bool> {
        let now = self.clock.now();
        let mut tx = chassis::database::begin(&self.db, "begin").await?;
        let due = store::due::claim(&mut tx, now, AT_ONCE as i64).await?;
        if due.is_empty() {
            return Ok(false);
        }
        let full = due.len() == AT_ONCE;
        let times: Vec<Timestamp> = due.iter().map(|due| due.fire_at).collect();
        let Fired { candidates, next } = decide(due, now, &self.limits);
        let (quota, lease) = (self.limits.daily_quota, self.deliverer.lease());
        let receipts = store::firings::record(&mut *tx, &candidates, now, quota, lease).await?;
        store::due::advance(&mut *tx, &next, now).await?;
        tx.commit().await?;
        times.into_iter().take(next.len()).for_each(|due| metrics::fired(due, now));
        // From here on they are pending, whoever delivers them.
        let behind = next.iter().any(|(_, next)| next.is_ok_and(|next| next <= now));
        self.deliverer.hand_over(fire::pending(candidates, &receipts));
        Ok(full || behind)
    }

    /// How long until something is due that this process knows of, or may be that it does not.
    async fn nap(&self) -> Duration {
        let due = match self.clock.runs() {
            true => store::due::next(&self.db).await.ok().flatten(),
            false => None,
        };
        let ahead = due.map(|due| due.duration_since(self.clock.now()));
        let ahead = ahead.map(|ahead| Duration::try_from(ahead).unwrap_or_default());
        // Not at once: somebody else may have it already, and only hold its row still.
        ahead.map_or(self.poll, |ahead| ahead.clamp(Duration::from_millis(5), self.poll))
    }
}

/// What is fired, and when each schedule is due again.
struct Fired {
    candidates: Vec<Candidate>,
    next: Vec<(TriggerId, Result<Timestamp, Status>)>,
}

/// Decides about schedules that are due, as many as one transaction takes.
fn decide(due: Vec<DueTrigger>, now: Timestamp, limits: &Limits) -> Fired {
    let mut fired = Fired { candidates: Vec::new(), next: Vec::new() };
    for DueTrigger { trigger, fire_at } in due {
        if fired.candidates.len() >= MOST_FIRINGS {
            break;
        }
        fired.next.push((trigger.id, one(&trigger, fire_at, now, limits, &mut fired.candidates)));
    }
    fired
}

/// Fires what is due of one schedule. Returns when it is due again, or what has become of it.
fn one(
    trigger: &Trigger,
    fire_at: Timestamp,
    now: Timestamp,
    limits: &Limits,
    candidates: &mut Vec<Candidate>,
) -> Result<Timestamp, Status> {
    let (Kind::Schedule(schedule), Ok(Some(plan))) = (&trigger.definition.kind, trigger.plan())
    else {
        // It was checked when it was stored, by a version that knew more.
        error!(trigger.id = %trigger.id, "trigger {} has no schedule that this version knows", trigger.id);
        return Err(Status::Finished);
    };
    let caught = catch_up(&plan, fire_at, now, limits.misfire_grace, schedule.misfire);
    let dropped = caught
        .dropped
        .map(|(due, missed)| Occasion { drop: Some(Drop::Missed), ..occasion(due, now, missed) });
    let occasions = caught.fired.iter().map(|fired| Occasion {
        unthrottled: fired.late,
        ..occasion(fired.due, now, fired.missed)
    });
    let occasions: Vec<Occasion> = dropped.into_iter().chain(occasions).collect();
    let ids = FiringId::several_at(now, occasions.len());
    candidates.extend(
        ids.into_iter()
            .zip(occasions)
            .map(|(id, occasion)| Candidate::new(trigger, id, occasion, limits.max_per_minute)),
    );
    match caught.next {
        Some(due) => Ok(due.at),
        None if trigger.expires_at.is_some_and(|expires| expires <= now) => Err(Status::Expired),
        None => Err(Status::Finished),
    }
}

/// A due time is named after itself, so that it fires once.
fn occasion(due: Due, now: Timestamp, missed: usize) -> Occasion {
    Occasion {
        due_at: due.at,
        missed,
        last: due.last,
        ..Occasion::now(now, due.at.to_string(), Value::Null)
    }
}

/// Forgets what is older than anybody wants to know, for ever.
pub async fn forget(db: PgPool, clock: Clock, retention: Duration) {
    const LOOK: Duration = Duration::from_secs(30);
    // Whatever clocks say, a minute is over by then.
    const MINUTES: Duration = Duration::from_secs(24 * 60 * 60);
    loop {
        sleep(LOOK).await;
        let now = clock.now();
        if let Ok(before) = now.checked_sub(retention) {
            while is_more(store::history::forget(&db, before).await) {}
        }
        if let Ok(before) = now.checked_sub(MINUTES) {
            while is_more(store::history::forget_minutes(&db, before).await) {}
        }
    }
}

fn is_more(forgotten: Result<bool>) -> bool {
    forgotten.unwrap_or_else(|error| {
        warn!(%error, "cannot forget old firings, trying again");
        false
    })
}
