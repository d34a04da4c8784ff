use std::{
    ffi::CString,
    ops::Deref,
    path::Path,
    sync::{Arc, Condvar, Mutex, MutexGuard},
};

use super::Directory;
use crate::files::ignored::Ignored;

/// A part of a walk that one thread can do alone.
pub enum Job {
    /// To list a directory, by the path of its parent below the start of the walk, which it
    /// shares with its siblings, and its name.
    Directory(Arc<Path>, CString, Option<Arc<Ignored>>),

    /// To visit some files of an open directory.
    Files(Arc<Directory>, Vec<CString>),
}

/// What is left to do. A walk is over when nothing waits and nobody works, because only those
/// who work add more.
pub struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    waiting: Vec<Job>,
    working: usize,
    closed: bool,
}

impl Queue {
    pub fn new(first: Job) -> Queue {
        let state = State { waiting: vec![first], working: 0, closed: false };
        Queue { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Waits for a job, the latest first; `None` when the walk is over.
    pub fn take(&self) -> Option<Taken<'_>> {
        let mut state = self.lock();
        loop {
            if state.closed {
                return None;
            }
            if let Some(job) = state.waiting.pop() {
                state.working += 1;
                return Some(Taken { job, queue: self });
            }
            if state.working == 0 {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }

    pub fn add(&self, jobs: Vec<Job>) {
        if !jobs.is_empty() {
            self.lock().waiting.extend(jobs);
            self.changed.notify_all();
        }
    }

    /// Ends the walk early.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// A job that is being done until this is dropped, also by a panic.
pub struct Taken<'a> {
    job: Job,
    queue: &'a Queue,
}

impl Deref for Taken<'_> {
    type Target = Job;

    fn deref(&self) -> &Job {
        &self.job
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.working -= 1;
        if state.working == 0 {
            self.queue.changed.notify_all();
        }
    }
}
