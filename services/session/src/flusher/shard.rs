use std::{
    collections::{HashMap, VecDeque},
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use sqlx::PgPool;
use tokio::sync::{Notify, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::{Signal, Stopped, commit::Committer};
use crate::{
    bus::Bus,
    ids::{ReplicaId, SessionId},
    pending::{Owner, Pending},
    store::turns::Interrupt,
};

/// Bounds one commit, so that one session's flood does not delay all others.
const SESSIONS_PER_BATCH: usize = 256;
const BYTES_PER_BATCH: usize = 4 * 1024 * 1024;

/// The sessions of one flusher.
pub struct Shard {
    slots: Mutex<Slots>,
    work: Notify,
}

#[derive(Default)]
struct Slots {
    by_session: HashMap<SessionId, Slot>,
    /// Who has something to commit, first come first served: with more sessions than fit
    /// into a batch, those that never stop talking must not keep out the others.
    line: VecDeque<SessionId>,
}

struct Slot {
    owner: Owner,
    pending: Pending,
    in_line: bool,
    /// How many flushes were begun, and how many of them are committed.
    taken: u64,
    committed: u64,
    /// The last event that is committed, if this process saw its commit.
    reached: Option<i64>,
    waiting: Vec<(u64, oneshot::Sender<Result<(), Stopped>>)>,
    stopped: Option<Stopped>,
    signals: watch::Sender<Signal>,
}

/// What was taken from a slot and is on its way.
pub struct Flight {
    pub owner: Owner,
    pub pending: Pending,
    /// How often Postgres took too long for it alone.
    pub late: u32,
}

impl Shard {
    pub fn start(
        db: PgPool,
        bus: Bus,
        replica: ReplicaId,
        silence: Duration,
        done: CancellationToken,
    ) -> Arc<Shard> {
        let shard = Arc::new(Shard { slots: Mutex::default(), work: Notify::new() });
        let committer = Committer::new(shard.clone(), db, bus, replica, silence);
        tokio::spawn(done.run_until_cancelled_owned(committer.run()));
        shard
    }

    /// Returns when there may be something to take.
    pub async fn worked(&self) {
        self.work.notified().await;
    }

    pub fn open(&self, owner: Owner) -> watch::Receiver<Signal> {
        let (signals, receiver) = watch::channel(Signal::GoOn);
        let slot = Slot {
            pending: Pending::default(),
            in_line: false,
            taken: 0,
            committed: 0,
            reached: None,
            waiting: vec![],
            stopped: None,
            signals,
            owner,
        };
        self.slots().by_session.insert(slot.owner.session_id, slot);
        receiver
    }

    pub fn close(&self, owner: &Owner) {
        let slots = &mut self.slots().by_session;
        if slots.get(&owner.session_id).is_some_and(|slot| slot.owner.epoch == owner.epoch) {
            slots.remove(&owner.session_id);
        }
    }

    pub fn add(&self, id: SessionId, add: impl FnOnce(&mut Pending)) -> usize {
        let mut slots = self.slots();
        let Some(slot) = slots.by_session.get_mut(&id) else { return 0 };
        if slot.stopped.is_some() {
            return 0;
        }
        add(&mut slot.pending);
        slot.pending.bytes()
    }

    pub fn send(&self, id: SessionId) {
        self.line_up(&mut self.slots(), id);
    }

    pub fn discard(&self, id: SessionId) {
        if let Some(slot) = self.slots().by_session.get_mut(&id)
            && let Some(Stopped::Refused(_)) = slot.stopped
        {
            slot.stopped = None;
            slot.pending = Pending::default();
        }
    }

    pub async fn flush(&self, id: SessionId) -> Result<(), Stopped> {
        let answer = {
            let mut slots = self.slots();
            let Some(slot) = slots.by_session.get_mut(&id) else { return Err(Stopped::Lost) };
            if let Some(stopped) = &slot.stopped {
                return Err(stopped.clone());
            }
            let last = slot.taken + u64::from(!slot.pending.is_empty());
            if slot.committed >= last {
                return Ok(());
            }
            let (told, answer) = oneshot::channel();
            slot.waiting.push((last, told));
            self.line_up(&mut slots, id);
            answer
        };
        answer.await.unwrap_or(Err(Stopped::Lost))
    }

    /// Takes what is pending, of each session at most one flush at a time.
    pub fn take(&self) -> Vec<Flight> {
        let Slots { by_session, line } = &mut *self.slots();
        let mut bytes = 0;
        let mut flights = Vec::new();
        while flights.len() < SESSIONS_PER_BATCH && bytes <= BYTES_PER_BATCH {
            let Some(id) = line.pop_front() else { return flights };
            let Some(slot) = by_session.get_mut(&id) else { continue };
            slot.in_line = false;
            if !slot.is_due() {
                continue;
            }
            let pending = mem::take(&mut slot.pending);
            bytes += pending.bytes();
            slot.taken += 1;
            flights.push(Flight { owner: slot.owner.clone(), pending, late: 0 });
        }
        self.work.notify_one();
        flights
    }

    /// Puts a session into the line, unless it stands there or has nothing to commit yet.
    fn line_up(&self, slots: &mut Slots, id: SessionId) {
        if let Some(slot) = slots.by_session.get_mut(&id)
            && slot.is_due()
            && !slot.in_line
        {
            slot.in_line = true;
            slots.line.push_back(id);
            self.work.notify_one();
        }
    }

    /// Tells the owner of a turn that somebody wants it stopped.
    pub fn interrupt(&self, id: SessionId, interrupt: Interrupt) {
        if let Some(slot) = self.slots().by_session.get(&id) {
            slot.interrupt(interrupt);
        }
    }

    pub fn reached(&self, id: SessionId) -> Option<i64> {
        self.slots().by_session.get(&id)?.reached
    }

    pub fn committed(&self, owner: &Owner, reached: Option<i64>, interrupt: Option<Interrupt>) {
        let mut slots = self.slots();
        let Some(slot) = slots.by_session.get_mut(&owner.session_id) else { return };
        if slot.owner.epoch != owner.epoch {
            return;
        }
        slot.committed += 1;
        slot.owner.flush_no += 1;
        slot.reached = reached;
        let committed = slot.committed;
        for (_, told) in slot.waiting.extract_if(.., |(last, _)| *last <= committed) {
            let _ = told.send(Ok(()));
        }
        if let Some(interrupt) = interrupt {
            slot.interrupt(interrupt);
        }
        self.line_up(&mut slots, owner.session_id);
    }

    pub fn stop(&self, owner: &Owner, stopped: Stopped) {
        let mut slots = self.slots();
        let Some(slot) = slots.by_session.get_mut(&owner.session_id) else { return };
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

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    /// Once, however often it is found out; and never after the end.
    fn interrupt(&self, interrupt: Interrupt) {
        self.signals.send_if_modified(|signal| {
            let first = *signal == Signal::GoOn;
            if first {
                *signal = Signal::Interrupt(interrupt);
            }
            first
        });
    }

    fn is_due(&self) -> bool {
        !self.pending.is_empty() && self.taken == self.committed && self.stopped.is_none()
    }
}
