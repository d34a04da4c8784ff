//! The one fire path. Whatever fires a trigger becomes a [`Candidate`], is stored with the verdict
//! on it, and is then delivered or on record as dropped.

use chassis::database::Own;
use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::error;

use crate::{
    clock::Clock,
    config::Limits,
    deliver::Deliverer,
    error::{Error, Result},
    firing::{Candidate, Drop, Occasion, Pending, Receipt},
    ids::FiringId,
    store,
    trigger::{Status, Trigger},
};

/// How many firings are stored in one statement, and how many may wait for that.
const AT_ONCE: usize = 256;
const WAITING: usize = 4_096;

/// Takes in what fires one by one: deliveries, and people who want a trigger to fire.
#[derive(Clone)]
pub struct Fire {
    pub clock: Clock,
    pub limits: Limits,
    intake: mpsc::Sender<Arrival>,
}

struct Arrival {
    candidate: Candidate,
    answer: oneshot::Sender<Result<Receipt>>,
}

impl Fire {
    pub fn start(
        db: Own,
        clock: Clock,
        limits: Limits,
        deliverer: Deliverer,
        stop: CancellationToken,
    ) -> Fire {
        let (intake, arrivals) = mpsc::channel(WAITING);
        let fire = Fire { clock, limits, intake };
        tokio::spawn(take_in(
            db,
            fire.clock.clone(),
            fire.limits.clone(),
            deliverer,
            arrivals,
            stop,
        ));
        fire
    }

    /// Stores a firing, durably when this returns, and says what becomes of it. Those that arrive
    /// together are stored together.
    ///
    /// A trigger that is paused or has expired drops it; throttle and quota may; and so does a
    /// delivery that was taken in before.
    pub async fn accept(&self, trigger: &Trigger, mut occasion: Occasion) -> Result<Receipt> {
        occasion.drop = occasion.drop.or(inactive(trigger, occasion.fired_at));
        let id = FiringId::at(occasion.fired_at);
        let candidate = Candidate::new(trigger, id, occasion, self.limits.max_per_minute);
        let (answer, receipt) = oneshot::channel();
        let arrival = Arrival { candidate, answer };
        self.intake.send(arrival).await.map_err(|_| Error::Stopping)?;
        receipt.await.unwrap_or(Err(Error::Stopping))
    }
}

/// Why a trigger does not fire at all.
pub fn inactive(trigger: &Trigger, now: Timestamp) -> Option<Drop> {
    match trigger.status {
        Status::Paused => Some(Drop::Paused),
        Status::Expired | Status::Finished => Some(Drop::Expired),
        Status::Active if trigger.expires_at.is_some_and(|at| now >= at) => Some(Drop::Expired),
        Status::Active => None,
    }
}

/// While one batch is written the next one grows.
async fn take_in(
    mut db: Own,
    clock: Clock,
    limits: Limits,
    deliverer: Deliverer,
    mut arrivals: mpsc::Receiver<Arrival>,
    stop: CancellationToken,
) {
    let mut batch = Vec::with_capacity(AT_ONCE);
    loop {
        let count = tokio::select! {
            count = arrivals.recv_many(&mut batch, AT_ONCE) => count,
            // Whoever still waits hears that their answer is gone.
            () = stop.cancelled() => return,
        };
        if count == 0 {
            return;
        }
        let (candidates, answers): (Vec<_>, Vec<_>) =
            batch.drain(..).map(|arrival| (arrival.candidate, arrival.answer)).unzip();
        let lease = deliverer.lease();
        let (now, quota) = (clock.now(), limits.daily_quota);
        let record =
            async |db: &mut _| store::firings::record(db, &candidates, now, quota, lease).await;
        match db.run(record).await {
            Ok(receipts) => {
                // Handed over first: whoever is answered may send the next one, which goes behind.
                deliverer.hand_over(pending(candidates, &receipts));
                for (answer, receipt) in answers.into_iter().zip(receipts) {
                    let _ = answer.send(Ok(receipt));
                }
            }
            Err(error) => refuse(answers, error),
        }
    }
}

/// Several waited for one statement, and each hears that it failed.
fn refuse(answers: Vec<oneshot::Sender<Result<Receipt>>>, error: Error) {
    let away = matches!(&error, Error::Database(_));
    error!(%error, "cannot store {} firings", answers.len());
    let mut first = Some(error);
    for answer in answers {
        let error = first.take().unwrap_or(match away {
            true => Error::Database(sqlx::Error::PoolTimedOut),
            false => Error::Corrupt("a batch of firings could not be stored"),
        });
        let _ = answer.send(Err(error));
    }
}

/// Those of the candidates that are to be delivered.
pub fn pending(candidates: Vec<Candidate>, receipts: &[Receipt]) -> Vec<Pending> {
    let kept = candidates.into_iter().zip(receipts).filter(|(_, receipt)| receipt.drop.is_none());
    kept.filter_map(|(candidate, _)| {
        Some(Pending {
            id: candidate.id,
            tenant: candidate.tenant,
            trigger_id: candidate.trigger_id,
            subject: candidate.subject,
            envelope: candidate.envelope?,
            route: candidate.route,
            attempts: 0,
        })
    })
    .collect()
}
