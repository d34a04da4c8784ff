//! Commits what running turns have to say, and publishes it afterwards.
//!
//! A flusher takes whatever is pending for its sessions, commits it in one round trip,
//! publishes it, and looks again; while one commit is under way the next batch grows. So
//! an idle server shows a delta one commit after it arrived, and a loaded one pays for
//! hundreds of deltas with one commit. Nobody sees what a crash could take back.

mod commit;
mod shard;
#[cfg(test)]
mod tests;

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
    time::Duration,
};

use sqlx::PgPool;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    bus::Bus,
    ids::{ReplicaId, SessionId},
    pending::{Owner, Pending},
    store::turns::{Claim, Interrupt},
};
use shard::Shard;

/// Two flushers whose batches overlapped would wait for each other's rows, so each
/// session belongs to one.
#[derive(Clone)]
pub struct Flusher {
    shards: Arc<[Arc<Shard>]>,
}

/// Why a session's writes stopped. It stays so: the writer is to be dropped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Stopped {
    /// Somebody else owns the session now. Touch nothing.
    #[error("the session was taken over")]
    Lost,
    /// Postgres refuses what this session wants to store.
    #[error("the database refused the data: {0}")]
    Refused(String),
}

/// What the owner of a session learns from writing for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Signal {
    GoOn,
    /// Somebody wants this turn stopped.
    Interrupt(Interrupt),
    /// Writing is over; `flush` says why.
    Stopped,
}

impl Flusher {
    /// Starts `shards` flushers that run until `done`, which comes after the last turn. A commit that
    /// takes longer than `silence` is tried again on another connection.
    pub fn start(
        db: &PgPool,
        bus: &Bus,
        replica: ReplicaId,
        shards: usize,
        silence: Duration,
        done: &CancellationToken,
    ) -> Flusher {
        let start = |_| Shard::start(db.clone(), bus.clone(), replica, silence, done.clone());
        Flusher { shards: (0..shards.max(1)).map(start).collect() }
    }

    /// Stops a turn that runs here.
    pub fn interrupt(&self, session_id: SessionId, interrupt: Interrupt) {
        self.shard(session_id).interrupt(session_id, interrupt);
    }

    fn shard(&self, session_id: SessionId) -> &Arc<Shard> {
        let mut hasher = DefaultHasher::new();
        session_id.hash(&mut hasher);
        &self.shards[hasher.finish() as usize % self.shards.len()]
    }

    /// The way to write for a session this replica has claimed.
    pub fn writer(&self, claim: &Claim) -> Writer {
        let shard = self.shard(claim.session_id).clone();
        let owner = Owner::from(claim);
        let signals = shard.open(owner.clone());
        Writer { shard, owner, signals }
    }
}

/// What one running turn writes through.
pub struct Writer {
    shard: Arc<Shard>,
    owner: Owner,
    signals: watch::Receiver<Signal>,
}

impl Writer {
    /// Adds to what is pending. Returns how much waits.
    pub fn add(&self, add: impl FnOnce(&mut Pending)) -> usize {
        self.shard.add(self.owner.session_id, add)
    }

    /// Has what is pending committed soon. Apart from `add`, so that what belongs together
    /// costs one commit.
    pub fn send(&self) {
        self.shard.send(self.owner.session_id);
    }

    /// Returns when everything added so far is committed.
    pub async fn flush(&self) -> Result<(), Stopped> {
        self.shard.flush(self.owner.session_id).await
    }

    /// The last event of the session that is committed, if that is known for sure.
    pub fn reached(&self) -> Option<i64> {
        self.shard.reached(self.owner.session_id)
    }

    /// Drops what Postgres refused, so that the end of the turn can still be told.
    pub fn discard(&self) {
        self.shard.discard(self.owner.session_id);
    }

    /// What the last flush found out.
    pub fn signals(&self) -> watch::Receiver<Signal> {
        self.signals.clone()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shard.close(&self.owner);
    }
}
