//! Writes requests to the ledger, many in one statement.
//!
//! Whatever is pending is committed together, and while one commit is under way the next grows. A
//! row waits a moment for others, so that a short call is one row and its commit does not compete
//! with the call. Nobody waits for a commit; while Postgres is away rows wait here, and once there
//! are too many no further calls are admitted.

use std::{
    collections::HashMap,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use sqlx::PgPool;
use tokio::{
    sync::{Notify, watch},
    time::sleep,
};
use tracing::{error, warn};

use crate::{
    facts::ModelRequestId,
    request::{Row, Status},
    store::requests,
};

/// How many rows one statement writes.
const BATCH: usize = 1_000;

/// How long the first row of a batch waits for company. What a process that dies had not written is
/// in Redis; only what also ended within this time is in neither.
const COMPANY: Duration = Duration::from_millis(20);

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub struct Ledger(Arc<Inner>);

struct Inner {
    pending: Mutex<Pending>,
    work: Notify,
    /// How many of what was pushed are committed for sure.
    committed: watch::Sender<u64>,
    room: usize,
}

#[derive(Default)]
struct Pending {
    rows: HashMap<ModelRequestId, Row>,
    pushed: u64,
}

impl Ledger {
    /// Writes until the process ends. Holds at most `room` rows that are not written yet.
    pub fn start(db: PgPool, room: usize) -> Ledger {
        let ledger = Ledger(Arc::new(Inner {
            pending: Mutex::default(),
            work: Notify::new(),
            committed: watch::Sender::new(0),
            room,
        }));
        tokio::spawn(ledger.clone().run(db));
        ledger
    }

    /// Has a row written soon. The end of a request takes the place of its beginning.
    pub fn push(&self, row: Row) {
        let mut pending = self.pending();
        pending.pushed += 1;
        pending.rows.insert(row.id, row);
        self.0.work.notify_one();
    }

    /// Whether more may be begun. What was begun always finds a place.
    pub fn has_room(&self) -> bool {
        self.pending().rows.len() < self.0.room
    }

    pub fn waiting(&self) -> usize {
        self.pending().rows.len()
    }

    /// Returns when everything pushed so far is committed.
    pub async fn flush(&self) {
        let wanted = self.pending().pushed;
        let mut committed = self.0.committed.subscribe();
        // The sender is ours and does not go away.
        let _ = committed.wait_for(|committed| *committed >= wanted).await;
    }

    async fn run(self, db: PgPool) {
        let mut pause = FIRST_PAUSE;
        loop {
            if self.waiting() == 0 {
                self.0.work.notified().await;
            }
            if self.waiting() < BATCH {
                sleep(COMPANY).await;
            }
            let (batch, through) = self.take();
            if batch.is_empty() {
                continue;
            }
            match requests::write(&db, &batch).await {
                Ok(()) => pause = FIRST_PAUSE,
                Err(problem) if is_refused(&problem) => one_by_one(&db, &batch).await,
                Err(problem) => {
                    warn!(error = %problem, rows = batch.len(), "the ledger cannot be written, trying again");
                    self.put_back(batch);
                    sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    continue;
                }
            }
            if let Some(through) = through {
                self.0.committed.send_replace(through);
            }
        }
    }

    /// What to write next; and, if that is all there is, how much is then written.
    fn take(&self) -> (Vec<Row>, Option<u64>) {
        let mut pending = self.pending();
        if pending.rows.len() <= BATCH {
            let all = mem::take(&mut pending.rows).into_values().collect();
            return (all, Some(pending.pushed));
        }
        let some: Vec<_> = pending.rows.keys().copied().take(BATCH).collect();
        (some.iter().filter_map(|id| pending.rows.remove(id)).collect(), None)
    }

    /// What could not be written waits again, unless it has ended meanwhile.
    fn put_back(&self, batch: Vec<Row>) {
        let mut pending = self.pending();
        for row in batch {
            pending.rows.entry(row.id).or_insert(row);
        }
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.0.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One row that cannot be stored must not keep the others out.
async fn one_by_one(db: &PgPool, batch: &[Row]) {
    for row in batch {
        if let Err(problem) = requests::write(db, std::slice::from_ref(row)).await {
            let ended = row.status != Status::Running;
            error!(error = %problem, request.id = %row.id, ended, cost_micros = row.cost_micros, "a request cannot be stored");
        }
    }
}

/// Whether Postgres calls the data wrong, which trying again would not change.
fn is_refused(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(error) => {
            error.code().is_some_and(|code| code.starts_with("22") || code.starts_with("23"))
        }
        _ => false,
    }
}
