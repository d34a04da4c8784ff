//! Sandboxes that are prepared before anybody asks for them, so that whoever does need not wait
//! for what is the same every time.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
    time::Duration,
};

use nix::unistd::Pid;
use tokio::{task::spawn_blocking, time::sleep};

use crate::{
    prepared::{Prepared, Workshop},
    profile::Profile,
    workspace::Owner,
};

/// How long one that was taken is not replaced: when a process joins a control group the kernel
/// lets none be born for a while, and a short command should have ended by then.
const PAUSE: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub struct Pool {
    size: usize,
    /// Who they are prepared for: the owner of the first workspace, because as a rule it is the
    /// owner of all.
    owner: OnceLock<Option<Owner>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    ready: VecDeque<Prepared>,
    /// Whether somebody is about to fill it.
    filling: bool,
}

impl Pool {
    pub fn new(size: usize) -> Pool {
        Pool { size, owner: OnceLock::new(), state: Mutex::default() }
    }

    /// The supervisors of those that wait.
    pub fn supervisors(&self) -> Vec<Pid> {
        self.state().ready.iter().filter_map(Prepared::supervisor).collect()
    }

    /// One that fits and is alive, with the limits that are asked for. It is never given back.
    pub fn take(&self, owner: Option<Owner>, profile: &Profile) -> Option<Prepared> {
        if *self.owner.get_or_init(|| owner) != owner || !profile.omitted.is_nothing() {
            return None;
        }
        let next = || self.state().ready.pop_front();
        while let Some(mut prepared) = next() {
            if prepared.is_alive() && prepared.limit(&profile.limits).is_ok() {
                return Some(prepared);
            }
        }
        None
    }

    /// Sees to it that what was taken is replaced, in a while and one after the other. What cannot
    /// be prepared then is tried again after the next that is taken.
    pub fn refill(self: &Arc<Pool>, workshop: &Arc<Workshop>) {
        let Some(owner) = self.owner.get().copied() else { return };
        let mut state = self.state();
        if !state.filling && state.ready.len() < self.size {
            state.filling = true;
            let (pool, workshop) = (Arc::downgrade(self), workshop.clone());
            tokio::spawn(async move {
                sleep(PAUSE).await;
                spawn_blocking(move || while add(&pool, workshop.prepare(owner)) {});
            });
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether another one is wanted.
fn add(pool: &Weak<Pool>, prepared: io::Result<Prepared>) -> bool {
    let Some(pool) = pool.upgrade() else { return false };
    let mut state = pool.state();
    let failed = prepared.is_err();
    state.ready.extend(prepared);
    state.filling = !failed && state.ready.len() < pool.size;
    state.filling
}
