use std::{
    collections::HashMap,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use proto::event::v1::RareIds;
use sqlx::PgPool;
use tokio::{
    sync::{Notify, oneshot, watch},
    time::sleep,
};
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use super::{Signal, Stopped};
use crate::{
    bus::Bus,
    ids::{ReplicaId, SessionId, TurnId},
    pending::{Owner, Pending},
    store::{
        events,
        flush::{self, Answer, Batch},
        turns::{Stamp, Trace},
    },
};

/// Bounds one commit, so that one session's flood does not delay all others.
const SESSIONS_PER_BATCH: usize = 256;
const BYTES_PER_BATCH: usize = 4 * 1024 * 1024;

/// How long to wait for Postgres to come back, or for a row that somebody holds.
const AWAY: Duration = Duration::from_millis(200);
const LOCKED: Duration = Duration::from_millis(2);

/// The sessions of one flusher.
pub struct Shard {
    slots: Mutex<HashMap<SessionId, Slot>>,
    work: Notify,
}

struct Slot {
    owner: Owner,
    pending: Pending,
    /// How many flushes were begun, and how many of them are committed.
    taken: u64,
    committed: u64,
    waiting: Vec<(u64, oneshot::Sender<Result<(), Stopped>>)>,
    stopped: Option<Stopped>,
    signals: watch::Sender<Signal>,
}

/// What was taken from a slot and is on its way.
struct Flight {
    owner: Owner,
    pending: Pending,
}

impl Shard {
    pub fn start(db: PgPool, bus: Bus, replica: ReplicaId, done: CancellationToken) -> Arc<Shard> {
        let shard = Arc::new(Shard { slots: Mutex::default(), work: Notify::new() });
        tokio::spawn(done.run_until_cancelled_owned(run(shard.clone(), db, bus, replica)));
        shard
    }

    pub fn open(&self, owner: Owner) -> watch::Receiver<Signal> {
        let (signals, receiver) = watch::channel(Signal::GoOn);
        let slot = Slot {
            pending: Pending::default(),
            taken: 0,
            committed: 0,
            waiting: vec![],
            stopped: None,
            signals,
            owner,
        };
        self.slots().insert(slot.owner.session_id, slot);
        receiver
    }

    pub fn close(&self, owner: &Owner) {
        let mut slots = self.slots();
        if slots.get(&owner.session_id).is_some_and(|slot| slot.owner.epoch == owner.epoch) {
            slots.remove(&owner.session_id);
        }
    }

    pub fn add(&self, id: SessionId, add: impl FnOnce(&mut Pending)) -> usize {
        let mut slots = self.slots();
        let Some(slot) = slots.get_mut(&id) else { return 0 };
        if slot.stopped.is_some() {
            return 0;
        }
        add(&mut slot.pending);
        self.work.notify_one();
        slot.pending.bytes()
    }

    pub fn discard(&self, id: SessionId) {
        if let Some(slot) = self.slots().get_mut(&id)
            && let Some(Stopped::Refused(_)) = slot.stopped
        {
            slot.stopped = None;
            slot.pending = Pending::default();
        }
    }

    pub async fn flush(&self, id: SessionId) -> Result<(), Stopped> {
        let answer = {
            let mut slots = self.slots();
            let Some(slot) = slots.get_mut(&id) else { return Err(Stopped::Lost) };
            if let Some(stopped) = &slot.stopped {
                return Err(stopped.clone());
            }
            let last = slot.taken + u64::from(!slot.pending.is_empty());
            if slot.committed >= last {
                return Ok(());
            }
            let (told, answer) = oneshot::channel();
            slot.waiting.push((last, told));
            answer
        };
        self.work.notify_one();
        answer.await.unwrap_or(Err(Stopped::Lost))
    }

    /// Takes what is pending, of each session at most one flush at a time.
    fn take(&self) -> Vec<Flight> {
        let mut bytes = 0;
        let mut flights = Vec::new();
        for slot in self.slots().values_mut() {
            if flights.len() == SESSIONS_PER_BATCH || bytes > BYTES_PER_BATCH {
                self.work.notify_one();
                break;
            }
            if slot.pending.is_empty() || slot.taken > slot.committed || slot.stopped.is_some() {
                continue;
            }
            let pending = mem::take(&mut slot.pending);
            bytes += pending.bytes();
            slot.taken += 1;
            flights.push(Flight { owner: slot.owner.clone(), pending });
        }
        flights
    }

    fn committed(&self, owner: &Owner, interrupt_turn: Option<TurnId>) {
        let mut slots = self.slots();
        let Some(slot) = slots.get_mut(&owner.session_id) else { return };
        if slot.owner.epoch != owner.epoch {
            return;
        }
        slot.committed += 1;
        slot.owner.flush_no += 1;
        let committed = slot.committed;
        for (_, told) in slot.waiting.extract_if(.., |(last, _)| *last <= committed) {
            let _ = told.send(Ok(()));
        }
        if let Some(turn_id) = interrupt_turn {
            slot.signals.send_replace(Signal::Interrupt(turn_id));
        }
        if !slot.pending.is_empty() {
            self.work.notify_one();
        }
    }

    fn stop(&self, owner: &Owner, stopped: Stopped) {
        let mut slots = self.slots();
        let Some(slot) = slots.get_mut(&owner.session_id) else { return };
        if slot.owner.epoch != owner.epoch {
            return;
        }
        slot.committed = slot.taken;
        slot.stopped = Some(stopped.clone());
        slot.signals.send_replace(Signal::Stopped);
        for (_, told) in slot.waiting.drain(..) {
            let _ = told.send(Err(stopped.clone()));
        }
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<SessionId, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn run(shard: Arc<Shard>, db: PgPool, bus: Bus, replica: ReplicaId) {
    let mut carried = Vec::new();
    loop {
        let mut flights = mem::take(&mut carried);
        match flights.is_empty() {
            true => shard.work.notified().await,
            false => sleep(LOCKED).await,
        }
        flights.extend(shard.take());
        if !flights.is_empty() {
            carried = commit(&shard, &db, &bus, replica, flights).await;
        }
    }
}

/// Commits the flights and returns those whose rows somebody else holds right now.
async fn commit(
    shard: &Shard,
    db: &PgPool,
    bus: &Bus,
    replica: ReplicaId,
    flights: Vec<Flight>,
) -> Vec<Flight> {
    let mut carried = Vec::new();
    let mut batches = vec![flights];
    while let Some(mut flights) = batches.pop() {
        let result = match batch(replica, &flights) {
            Ok(batch) => flush::flush(db, replica, &batch).await,
            Err(error) => Err(sqlx::Error::Encode(Box::new(error))),
        };
        match result {
            Ok(answers) => {
                let missing = settle(shard, bus, replica, flights, answers);
                if !missing.is_empty() {
                    carried.extend(examine(shard, db, bus, replica, missing).await);
                }
            }
            // Bad data must not poison the batch: halve it until the one session is found.
            Err(error) if is_about_data(&error) && flights.len() > 1 => {
                let half = flights.split_off(flights.len() / 2);
                batches.extend([flights, half]);
            }
            Err(error) if is_about_data(&error) => {
                for Flight { owner, .. } in flights {
                    error!(%error, session.id = %owner.session_id, "the data of session {} was refused", owner.session_id);
                    shard.stop(&owner, Stopped::Refused(error.to_string()));
                }
            }
            // The same flush again: its number tells whether it was already there.
            Err(error) => {
                warn!(%error, sessions = flights.len(), "cannot commit, trying again");
                sleep(AWAY).await;
                batches.push(flights);
            }
        }
    }
    carried
}

fn batch(replica: ReplicaId, flights: &[Flight]) -> Result<Batch, serde_json::Error> {
    let ids = RareIds::default();
    let stamp = Stamp { runtime_id: replica, trace: Trace::default(), ids };
    let mut batch = Batch {
        stamp,
        leases: vec![],
        events: vec![],
        messages: vec![],
        parts: vec![],
        prompts: vec![],
        turns: vec![],
        sums: vec![],
    };
    for (lease, flight) in flights.iter().enumerate() {
        flight.pending.write(&mut batch, lease, &flight.owner)?;
    }
    Ok(batch)
}

/// Publishes what was committed and returns the flights that were not.
fn settle(
    shard: &Shard,
    bus: &Bus,
    replica: ReplicaId,
    flights: Vec<Flight>,
    answers: Vec<Answer>,
) -> Vec<Flight> {
    let mut answers: HashMap<_, _> =
        answers.into_iter().map(|answer| (answer.session_id, answer)).collect();
    let mut missing = Vec::new();
    for flight in flights {
        let Some(answer) = answers.remove(&flight.owner.session_id) else {
            missing.push(flight);
            continue;
        };
        let mut committed = flight.pending.into_events(&flight.owner, answer.base, replica);
        if let Some(fired) = answer.fired {
            match events::Row::into_event(fired.0) {
                Ok(event) => committed.push(event),
                Err(error) => error!(%error, "cannot read the event that was just written"),
            }
        }
        bus.publish(flight.owner.session_id, committed, answer.next_turn.is_some());
        shard.committed(&flight.owner, answer.interrupt_turn);
    }
    missing
}

/// Finds out why flights were not written: held (again later), committed before, or lost.
async fn examine(
    shard: &Shard,
    db: &PgPool,
    bus: &Bus,
    replica: ReplicaId,
    missing: Vec<Flight>,
) -> Vec<Flight> {
    let ids: Vec<_> = missing.iter().map(|flight| flight.owner.session_id).collect();
    let states = match flush::states(db, &ids).await {
        Ok(states) => states,
        Err(error) => {
            warn!(%error, "cannot tell why a flush was not written, trying again");
            return missing;
        }
    };
    let states: HashMap<_, _> = states.into_iter().map(|state| (state.session_id, state)).collect();
    let mut held = Vec::new();
    for flight in missing {
        let owner = &flight.owner;
        match states.get(&owner.session_id) {
            Some(state)
                if state.epoch == owner.epoch
                    && state.flush_no == owner.flush_no
                    && state.owner == Some(replica) =>
            {
                held.push(flight);
            }
            // The connection broke after the commit. Readers find the events by the poll.
            Some(state) if state.epoch == owner.epoch && state.flush_no == owner.flush_no + 1 => {
                bus.publish(owner.session_id, vec![], flight.pending.ends());
                shard.committed(owner, None);
            }
            _ => {
                warn!(session.id = %owner.session_id, "session {} was taken over", owner.session_id);
                shard.stop(owner, Stopped::Lost);
            }
        }
    }
    held
}

/// Whether Postgres objects to what we store, so that asking again cannot help. Passing are
/// 08, a broken connection; 40, a conflict; 53, no resources; 55, a lock; 57, a server that stops.
fn is_about_data(error: &sqlx::Error) -> bool {
    const PASSING: [&str; 5] = ["08", "40", "53", "55", "57"];
    match error {
        sqlx::Error::Encode(_) => true,
        sqlx::Error::Database(error) => {
            error.code().is_some_and(|code| !PASSING.iter().any(|class| code.starts_with(class)))
        }
        _ => false,
    }
}
