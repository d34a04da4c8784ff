//! Which turns belong to tasks and jobs, as far as this replica started them, and what was heard
//! of them. Hints: who hears nothing looks.

use std::{
    collections::{HashMap, HashSet},
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use proto::event::v1::{Event, Payload};
use tokio::{sync::Notify, time::timeout};

use crate::ids::{JobId, RunId, SessionId};

/// How many turns are known at most. Of those that ended elsewhere nobody here may hear.
const MOST: usize = 10_000;

#[derive(Clone, Default)]
pub struct Works(Arc<Inner>);

#[derive(Default)]
struct Inner {
    /// Spares everybody else the lock.
    any: AtomicBool,
    known: Mutex<HashMap<SessionId, Work>>,
    heard: Mutex<Heard>,
    bell: Notify,
}

/// What a turn is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    Task(RunId),
    Item(RunId),
}

/// What is worth a look.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Heard {
    pub tasks: HashSet<RunId>,
    pub items: HashSet<RunId>,
    pub jobs: HashSet<JobId>,
    /// Somebody created a task or wants something of one.
    pub wishes: bool,
    /// Nobody said anything for a while, or for too long.
    pub everything: bool,
}

impl Heard {
    pub fn add(&mut self, more: Heard) {
        self.tasks.extend(more.tasks);
        self.items.extend(more.items);
        self.jobs.extend(more.jobs);
        self.wishes |= more.wishes;
        self.everything |= more.everything;
    }
}

impl Works {
    /// The session's next turn is for this.
    pub fn know(&self, session_id: SessionId, work: Work) {
        let mut known = lock(&self.0.known);
        if known.len() >= MOST {
            known.clear();
        }
        known.insert(session_id, work);
        self.0.any.store(true, Ordering::Release);
    }

    /// Nobody waits for it any more.
    pub fn forget(&self, session_id: SessionId) {
        let mut known = lock(&self.0.known);
        known.remove(&session_id);
        self.0.any.store(!known.is_empty(), Ordering::Release);
    }

    /// These were committed. Costs nothing where nothing was started for tasks and jobs.
    pub fn hear(&self, session_id: SessionId, events: &[Event]) {
        if !self.0.any.load(Ordering::Acquire) {
            return;
        }
        let (over, changed) = (events.iter().any(ends), events.iter().any(changes));
        if !over && !changed {
            return;
        }
        let work = {
            let mut known = lock(&self.0.known);
            let work = known.get(&session_id).copied();
            if over && work.is_some() {
                known.remove(&session_id);
                // Under the lock, or somebody who is known at this moment would not be heard.
                self.0.any.store(!known.is_empty(), Ordering::Release);
            }
            work
        };
        match work {
            Some(Work::Task(id)) => self.note(|heard| heard.tasks.extend([id])),
            Some(Work::Item(id)) if over => self.note(|heard| heard.items.extend([id])),
            Some(Work::Item(_)) | None => {}
        }
    }

    /// There may be items to start.
    pub fn job(&self, id: JobId) {
        self.note(|heard| heard.jobs.extend([id]));
    }

    /// There may be tasks to start, or wishes to deliver.
    pub fn tasks(&self) {
        self.note(|heard| heard.wishes = true);
    }

    /// What was heard since, at once if there is anything; everything when nobody says anything
    /// for so long.
    pub async fn listen(&self, patience: Duration) -> Heard {
        let quiet = timeout(patience, self.0.bell.notified()).await.is_err();
        Heard { everything: quiet, ..self.heard() }
    }

    /// What was heard since.
    pub fn heard(&self) -> Heard {
        mem::take(&mut *lock(&self.0.heard))
    }

    fn note(&self, note: impl FnOnce(&mut Heard)) {
        note(&mut lock(&self.0.heard));
        self.0.bell.notify_one();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn ends(event: &Event) -> bool {
    matches!(event.payload, Some(Payload::TurnCompleted(_) | Payload::TurnFailed(_)))
}

fn changes(event: &Event) -> bool {
    matches!(
        event.payload,
        Some(
            Payload::TurnStarted(_)
                | Payload::ActionRequired(_)
                | Payload::ActionResolved(_)
                | Payload::RunStatus(_)
        )
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{completed, started};

    #[tokio::test]
    async fn only_what_belongs_to_work_is_heard() {
        let (works, patience) = (Works::default(), Duration::from_millis(1));
        let (task, item, other) = (SessionId::new(), SessionId::new(), SessionId::new());
        let (task_run, item_run) = (RunId::new(), RunId::new());
        works.know(task, Work::Task(task_run));
        works.know(item, Work::Item(item_run));
        for session_id in [item, other] {
            works.hear(session_id, &[started()]);
        }
        let nothing = Heard { everything: true, ..Heard::default() };
        assert_eq!(works.listen(patience).await, nothing);

        works.hear(task, &[started()]);
        for session_id in [item, other] {
            works.hear(session_id, &[completed()]);
        }
        let heard = works.listen(patience).await;
        let expected = Heard {
            tasks: HashSet::from([task_run]),
            items: HashSet::from([item_run]),
            ..Heard::default()
        };
        assert_eq!(heard, expected);

        // What is over is forgotten.
        works.hear(item, &[completed()]);
        assert_eq!(works.listen(patience).await, nothing);
    }
}
