//! Processes that outlive the call that started them.
//!
//! A process is a child of this server and ends with it. What is known of it is a row, which
//! others read and which only its own server changes while that lives.

mod hosting;
mod journal;
mod run;
mod talk;
mod told;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use chassis::Tenant;
use proto::tools::v1 as pb;
use sandbox::{Signal, Size, Streams};
use sha2::{Digest as _, Sha256};
use sqlx::PgPool;
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot},
    time::{Instant, sleep},
};

pub use journal::{Journal, stretch_at};
pub use told::stream_name;

use crate::{
    call::{HostId, ProcessId, SessionId, WorkspaceId},
    error::{Error, Result},
    execute::Executor,
    store::processes::{self, Admitted, Key, Most, NewProcess, Row},
};
use run::Process;

/// How many may follow one process at a time.
const MOST_READERS: usize = 16;

/// How many orders may wait for a process that is busy.
const BACKLOG: usize = 16;

/// How long the end of a process is waited for that somebody else has to end.
const PATIENCE: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(100);

/// What operators allow.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub most: Most,
    /// How many run on this server.
    pub here: usize,
    /// How long one may run.
    pub life: Duration,
}

#[derive(Clone)]
pub struct Processes(Arc<Inner>);

struct Inner {
    db: PgPool,
    executor: Arc<Executor>,
    host_id: HostId,
    limits: Limits,
    room: Arc<Semaphore>,
    running: Mutex<HashMap<ProcessId, Arc<Running>>>,
    /// Told of every fact that was put into the outbox here.
    news: Notify,
}

/// A process of this server, as others reach it.
pub struct Running {
    pub journal: Arc<Journal>,
    tenant: Tenant,
    orders: mpsc::Sender<Order>,
    readers: Arc<Semaphore>,
}

/// What somebody wants of a process that runs.
pub enum Order {
    Write { data: Vec<u8>, close: bool, subject: String, answer: Answer },
    Resize { size: Size, subject: String, answer: Answer },
    Signal { signal: Signal, name: &'static str, subject: String, answer: Answer },
    Terminate { reason: String },
}

pub type Answer = oneshot::Sender<Result<()>>;

/// What a caller wants to be started.
#[derive(Debug)]
pub struct Wanted {
    pub tenant: Tenant,
    pub session_id: SessionId,
    pub workspace_id: WorkspaceId,
    pub request_id: String,
    pub command: String,
    pub streams: Streams,
}

impl Wanted {
    /// The same for requests that ask for the same.
    fn digest(&self) -> String {
        let asked = format!("{}\0{:?}\0{}", self.workspace_id, self.streams, self.command);
        format!("{:x}", Sha256::digest(asked))
    }
}

impl Processes {
    pub fn new(db: PgPool, executor: Arc<Executor>, limits: Limits) -> Processes {
        Processes(Arc::new(Inner {
            db,
            executor,
            host_id: HostId::new(),
            limits,
            room: Arc::new(Semaphore::new(limits.here)),
            running: Mutex::default(),
            news: Notify::new(),
        }))
    }

    /// Told of every fact that was put into the outbox by this server.
    pub fn news(&self) -> &Notify {
        &self.0.news
    }

    /// Starts a process, or finds the one that the same request started. Returns once it runs,
    /// or is known not to.
    pub async fn start(&self, wanted: Wanted) -> Result<Row> {
        let inner = &self.0;
        inner.executor.check_tier()?;
        let room = inner.room.clone().try_acquire_owned().map_err(|_| Error::Overloaded)?;
        let key = Key {
            tenant: wanted.tenant.clone(),
            session_id: wanted.session_id,
            process_id: ProcessId::new(),
            host_id: inner.host_id,
        };
        let new = NewProcess {
            key: &key,
            workspace_id: wanted.workspace_id,
            request_id: &wanted.request_id,
            request_digest: &wanted.digest(),
            command: &wanted.command,
            pty: wanted.streams.terminal().is_some(),
        };
        // Shows that we live before there is a row that says so.
        processes::beat(&inner.db, inner.host_id, hosting::LEASE).await?;
        let journal = Arc::new(Journal::new(inner.executor.outputs.folder())?);
        let id = match processes::start(&inner.db, &new, inner.limits.most).await? {
            Admitted::New => key.process_id,
            Admitted::Repeated(id) => return self.get(&wanted.tenant, id).await,
        };
        // From here on the process is on its own: whoever asked for it may be gone.
        let (started, standing) = oneshot::channel();
        tokio::spawn(self.clone().launch(key, wanted, journal, room, started));
        let (tenant, row) = standing.await.map_err(|_| Error::ProcessNotFound(id))??;
        Ok(self.live(&tenant, row))
    }

    async fn launch(
        self,
        key: Key,
        wanted: Wanted,
        journal: Arc<Journal>,
        room: OwnedSemaphorePermit,
        started: oneshot::Sender<Result<(Tenant, Row)>>,
    ) {
        let (tenant, id) = (key.tenant.clone(), key.process_id);
        let row = match self.get(&tenant, id).await {
            Ok(row) => row,
            // Nobody can speak for a row that cannot be read; it is found when we are gone.
            Err(error) => return drop(started.send(Err(error))),
        };
        let (orders, arriving) = mpsc::channel(BACKLOG);
        let running = Arc::new(Running {
            journal: journal.clone(),
            tenant: tenant.clone(),
            orders,
            readers: Arc::new(Semaphore::new(MOST_READERS)),
        });
        self.running().insert(id, running);
        let process = Process::new(self.clone(), key, row, wanted, journal);
        process.run(arriving, started).await;
        self.running().remove(&id);
        drop(room);
    }

    /// A process of this tenant, as it is known by now.
    pub async fn get(&self, tenant: &Tenant, id: ProcessId) -> Result<Row> {
        let row = processes::get(&self.0.db, tenant, id).await?;
        Ok(self.live(tenant, row.ok_or(Error::ProcessNotFound(id))?))
    }

    pub async fn list(
        &self,
        tenant: &Tenant,
        session_id: SessionId,
        before: i64,
        limit: i64,
    ) -> Result<Vec<Row>> {
        let rows = processes::list(&self.0.db, tenant, session_id, before, limit).await?;
        Ok(rows.into_iter().map(|row| self.live(tenant, row)).collect())
    }

    /// What runs here is known better than its row says.
    fn live(&self, tenant: &Tenant, mut row: Row) -> Row {
        if let Some(running) = self.find(tenant, row.process_id)
            && row.is_running()
        {
            let total = running.journal.state().total;
            row.output_bytes = row.output_bytes.max(total.try_into().unwrap_or(i64::MAX));
        }
        row
    }

    /// A process that runs here.
    pub fn find(&self, tenant: &Tenant, id: ProcessId) -> Option<Arc<Running>> {
        self.running().get(&id).filter(|running| running.tenant == *tenant).cloned()
    }

    /// Gives an order to a process that must be running, and here.
    pub async fn order(
        &self,
        tenant: &Tenant,
        id: ProcessId,
        order: impl FnOnce(Answer) -> Order,
    ) -> Result<()> {
        let Some(running) = self.find(tenant, id) else {
            let row = self.get(tenant, id).await?;
            return Err(match row.is_running() {
                true => Error::Elsewhere(id),
                false => Error::ProcessOver { id, status: row.status },
            });
        };
        let (answer, answered) = oneshot::channel();
        let over = || Error::ProcessOver { id, status: "over".into() };
        running.orders.send(order(answer)).await.map_err(|_| over())?;
        answered.await.map_err(|_| over())?
    }

    /// Ends a process, wherever it runs, and returns what became of it.
    pub async fn terminate(&self, tenant: &Tenant, id: ProcessId, reason: &str) -> Result<Row> {
        let row = self.get(tenant, id).await?;
        if !row.is_running() {
            return Ok(row);
        }
        match self.find(tenant, id) {
            Some(running) => running.terminate(reason).await,
            None => processes::stop(&self.0.db, tenant, id, reason).await?,
        }
        let begun = Instant::now();
        loop {
            match self.get(tenant, id).await {
                Ok(row) if !row.is_running() => return Ok(row),
                Ok(_) if begun.elapsed() < PATIENCE => sleep(LOOK).await,
                Ok(_) => return Err(Error::Elsewhere(id)),
                Err(error) => return Err(error),
            }
        }
    }

    /// Ends all processes of a session that is over for good.
    pub async fn end_session(&self, tenant: &Tenant, session_id: SessionId) -> Result<()> {
        processes::end_session(&self.0.db, tenant, session_id).await?;
        self.look().await
    }

    /// Ends all processes of a workspace, and returns when none is left.
    pub async fn end_workspace(&self, tenant: &Tenant, workspace_id: WorkspaceId) -> Result<()> {
        let (db, reason) = (&self.0.db, "its workspace was deleted");
        let begun = Instant::now();
        loop {
            processes::stop_workspace(db, tenant, workspace_id, reason).await?;
            self.look().await?;
            if processes::running_in(db, tenant, workspace_id).await? == 0 {
                return Ok(());
            }
            if begun.elapsed() > PATIENCE {
                return Err(Error::Overloaded);
            }
            sleep(LOOK).await;
        }
    }

    fn running(&self) -> MutexGuard<'_, HashMap<ProcessId, Arc<Running>>> {
        self.0.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Running {
    /// The right to follow it, which is given to a few.
    pub fn reader(&self) -> Result<OwnedSemaphorePermit> {
        self.readers.clone().try_acquire_owned().map_err(|_| Error::Overloaded)
    }

    async fn terminate(&self, reason: &str) {
        // One that ends meanwhile does not hear it, and need not.
        let _ = self.orders.send(Order::Terminate { reason: reason.to_owned() }).await;
    }
}

impl From<Row> for pb::Process {
    fn from(row: Row) -> pb::Process {
        use pb::process::Status;
        let status = match row.status.as_str() {
            "running" => Status::Running,
            "completed" => Status::Completed,
            "failed" => Status::Failed,
            "terminated" => Status::Terminated,
            _ => Status::Lost,
        };
        let time = |time: jiff_sqlx::Timestamp| {
            let time = time.to_jiff();
            let (seconds, nanos) = (time.as_second(), time.subsec_nanosecond());
            pbjson_types::Timestamp { seconds, nanos }
        };
        pb::Process {
            process_id: row.process_id.to_string(),
            session_id: row.session_id.to_string(),
            workspace_id: row.workspace_id.to_string(),
            command: row.command,
            status: status.into(),
            exit_code: row.exit_code,
            signal: row.signal,
            output_bytes: row.output_bytes,
            start_time: Some(time(row.start_time)),
            end_time: row.end_time.map(time),
            pty: row.pty,
            reason: row.reason,
            kept_bytes: row.kept_bytes,
            output_ref: row.output_ref,
        }
    }
}
