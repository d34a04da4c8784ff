//! Whether a server is of use to anybody.

use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicUsize, Ordering},
};

use tokio::time::Instant;

/// Whether anybody uses a server.
#[derive(Debug)]
pub struct Activity {
    calls: AtomicUsize,
    used: Mutex<Instant>,
}

/// A call that runs.
pub struct Busy<'a>(&'a Activity);

impl Activity {
    pub fn new() -> Activity {
        Activity { calls: AtomicUsize::new(0), used: Mutex::new(Instant::now()) }
    }

    pub fn begin(&self) -> Busy<'_> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        Busy(self)
    }

    pub fn touch(&self) {
        *lock(&self.used) = Instant::now();
    }

    /// Since when nobody uses it. `None`: a call runs.
    pub fn unused_since(&self) -> Option<Instant> {
        let used = *lock(&self.used);
        (self.calls.load(Ordering::Relaxed) == 0).then_some(used)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.touch();
        self.0.calls.fetch_sub(1, Ordering::Relaxed);
    }
}

pub fn lock(instant: &Mutex<Instant>) -> MutexGuard<'_, Instant> {
    instant.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
