use std::{
    panic::AssertUnwindSafe,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::FutureExt as _;
use proto::event::v1::Payload;
use sandbox::{Profile, Report, Sandbox, Tier};
use sqlx::PgPool;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::sleep,
};
use tracing::{Instrument as _, Span, error, info, warn};

use crate::{
    call::Call,
    catalog::{Catalog, Run},
    error::{Error, Result},
    evaluate::evaluate,
    facts::{self, Answer, Facts},
    outcome::{Failure, Kind, Outcome},
    outputs::Outputs,
    redact::Redactor,
    store, workspace,
};

/// How many answers may wait for a slow caller before the tool itself has to.
const BACKLOG: usize = 32;

/// How often a running call looks whether its owner still owns the session.
const FENCE_PERIOD: Duration = Duration::from_secs(1);

/// What the caller says about running a call, beside the call.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// How long it is willing to wait; absent leaves that to the tool.
    pub patience: Option<Duration>,

    /// A person approved of exactly this call.
    pub approved: bool,
}

/// Runs calls.
pub struct Executor {
    pub catalog: Catalog,
    pub sandbox: Sandbox,

    /// What the machine can give, found out once at the start.
    pub machine: Report,
    pub minimum_tier: Tier,
    pub workspaces: PathBuf,
    pub outputs: Arc<Outputs>,
    pub redactor: Redactor,
    pub room: Arc<Semaphore>,
}

impl Executor {
    /// Whether a call can be run here and now.
    pub fn prepare(&self) -> Result<OwnedSemaphorePermit> {
        self.check_tier()?;
        self.room.clone().try_acquire_owned().map_err(|_| Error::Overloaded)
    }

    /// Whether anything may run on this machine.
    pub fn check_tier(&self) -> Result<()> {
        let (tier, minimum_tier) = (self.machine.tier(), self.minimum_tier);
        if tier > minimum_tier {
            let missing = self.machine.missing();
            let names: Vec<_> = missing.iter().map(|layer| layer.name()).collect();
            return Err(Error::SandboxUnavailable { tier, minimum_tier, missing: names.join(" ") });
        }
        Ok(())
    }

    /// Runs a call that has been admitted and answers with what happens. When the answers are
    /// dropped or the session gets another owner, the call and everything it started is stopped.
    pub fn start(
        self: Arc<Self>,
        db: PgPool,
        room: OwnedSemaphorePermit,
        call: Call,
        terms: Terms,
    ) -> mpsc::Receiver<Answer> {
        let (sender, answers) = mpsc::channel(BACKLOG);
        let running = async move {
            let facts = Facts::new(&call, sender);
            let id = call.tool_call_id;
            tokio::select! {
                outcome = self.run(&call, terms, &facts) => facts.end(outcome).await,
                () = facts.abandoned() => info!(tool_call.id = %id, "call {id} was dropped"),
                () = superseded(&db, &call) => {
                    info!(tool_call.id = %id, "call {id} lost its session");
                    let aborted = Failure::new(Kind::Aborted, "the session has another owner");
                    facts.end(aborted.into()).await;
                }
            }
            drop(room);
        };
        tokio::spawn(running.instrument(Span::current()));
        answers
    }

    /// A call always has an outcome, also when the tool panics.
    async fn run(&self, call: &Call, terms: Terms, facts: &Facts<'_>) -> Outcome {
        let begun = Instant::now();
        let finished = AssertUnwindSafe(self.decide_and_run(call, terms, facts)).catch_unwind();
        let mut outcome = finished.await.unwrap_or_else(|_| {
            error!(tool_call.id = %call.tool_call_id, "tool {} panicked", call.tool);
            Failure::new(Kind::Failed, "the tool crashed; this is our fault").into()
        });
        outcome.metadata.duration = begun.elapsed();
        outcome
    }

    async fn decide_and_run(&self, call: &Call, terms: Terms, facts: &Facts<'_>) -> Outcome {
        // What the caller heard from `Evaluate` is on its record, but proves nothing here. Only
        // a refusal is news: the call came unasked, or something changed since.
        let evaluation = evaluate(&self.catalog, call);
        let evaluated = facts::permission_evaluated(call, &evaluation);
        let permit = match evaluation.settle(terms.approved) {
            Ok(permit) => permit,
            Err(failure) => {
                facts.note(Payload::PermissionEvaluated(evaluated)).await;
                return failure.into();
            }
        };
        let Some(tool) = &permit.entry.tool else {
            let text = format!("{} runs in the session service and not here", call.tool);
            return Failure::new(Kind::Failed, text).into();
        };
        let workspace = workspace::open(&self.workspaces, &call.tenant, call.workspace_id).await;
        let workspace = workspace.inspect_err(|error| {
            error!(%error, workspace.id = %call.workspace_id, "workspace cannot be opened");
        });
        let Ok(workspace) = workspace else {
            let text = "the workspace cannot be opened; this is our fault";
            return Failure::new(Kind::Failed, text).into();
        };
        let profile = Profile::at_least(self.minimum_tier);
        let run = Run {
            sandbox: &self.sandbox,
            profile: &profile,
            workspace: &workspace,
            outputs: &self.outputs,
            redactor: &self.redactor,
            patience: terms.patience,
            facts,
        };
        tool.run(permit.input, run).await
    }
}

/// Returns when the session belongs to a later epoch than the call. Its former owner may be
/// unable to hang up: it may be asleep, and believe that all is well.
async fn superseded(db: &PgPool, call: &Call) {
    loop {
        sleep(FENCE_PERIOD).await;
        match store::epoch(db, &call.tenant, call.session_id).await {
            Ok(epoch) if epoch > call.epoch => return,
            Ok(_) => (),
            // Whoever raises epochs needs the same database.
            Err(error) => warn!(%error, "the fence of session {} is out of sight", call.session_id),
        }
    }
}

#[cfg(test)]
mod tests {
    use sandbox::Layer;
    use tonic::Status;

    use super::*;

    fn executor(machine: Report, minimum_tier: Tier) -> Executor {
        let db = PgPool::connect_lazy("postgres://nobody@127.0.0.1:1/nothing").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let outputs = Outputs::open(db, folder.path(), 0, Duration::ZERO).unwrap();
        Executor {
            outputs: Arc::new(outputs),
            redactor: Redactor::default(),
            catalog: Catalog::built_in().unwrap(),
            sandbox: Sandbox::new("sandbox-init"),
            machine,
            minimum_tier,
            workspaces: PathBuf::new(),
            room: Arc::new(Semaphore::new(1)),
        }
    }

    fn machine_without(missing: Layer) -> Report {
        let mut report = Report::default();
        for layer in Layer::ALL.into_iter().filter(|layer| *layer != missing) {
            report.note(layer, Ok::<_, String>(String::new()));
        }
        report
    }

    #[tokio::test]
    async fn a_machine_below_the_minimum_runs_nothing() {
        let weak = executor(machine_without(Layer::Proc), Tier::A);
        let status = Status::from(weak.prepare().unwrap_err());
        assert_eq!(status.message(), "this machine's sandbox is of tier B, A is demanded");
        assert!(executor(machine_without(Layer::Proc), Tier::B).prepare().is_ok());
        assert!(executor(machine_without(Layer::Seccomp), Tier::C).prepare().is_err());
    }

    #[tokio::test]
    async fn a_machine_runs_only_so_much() {
        let busy = executor(machine_without(Layer::Proc), Tier::B);
        let room = busy.prepare().unwrap();
        assert!(matches!(busy.prepare(), Err(Error::Overloaded)));
        drop(room);
        assert!(busy.prepare().is_ok());
    }
}
