use std::{
    panic::AssertUnwindSafe,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use chassis::{Place, Places, Tenant};
use futures::FutureExt as _;
use proto::event::v1::{Payload, SandboxViolation};
use sandbox::{Profile, Report, Sandbox, Tier};
use sqlx::PgPool;
use tokio::{sync::mpsc, time::sleep};
use tracing::{Instrument as _, Span, error, info, warn};

use crate::{
    after::after,
    call::{Call, WorkspaceId},
    catalog::{Catalog, Effect, Run},
    egress::Gateway,
    error::{Error, Result},
    evaluate::evaluate,
    facts::{self, Answer, Facts},
    hooks::Hooks,
    mcp::Servers,
    outcome::{Failure, Kind, Outcome},
    outputs::Outputs,
    policies::{Policies, Policy},
    redact::Redactor,
    store,
    workspaces::{Entered, Workspaces},
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
    /// Our own tools.
    pub catalog: Arc<Catalog>,
    pub servers: Arc<Servers>,
    pub sandbox: Sandbox,

    /// Directories of the host that sandboxes may read.
    pub read_only: Vec<PathBuf>,

    /// What the machine can give, found out once at the start.
    pub machine: Report,
    pub minimum_tier: Tier,
    pub workspaces: Arc<Workspaces>,
    pub outputs: Arc<Outputs>,
    pub gateway: Gateway,
    pub redactor: Redactor,
    pub policies: Policies,
    pub hooks: Hooks,
    pub room: Places,
}

impl Executor {
    /// The tools of a workspace.
    pub async fn catalog_of(
        &self,
        tenant: &Tenant,
        id: WorkspaceId,
        make: bool,
    ) -> Result<Arc<Catalog>> {
        Ok(Arc::new(self.servers.catalog(tenant, id, make).await?))
    }

    /// A catalogue with the tool that is called in it, if there is such a tool. Nobody but MCP
    /// servers is asked, and those only about what is not ours.
    pub async fn catalog_for(&self, call: &Call) -> Result<Arc<Catalog>> {
        if self.catalog.is_built_in(&call.tool) {
            return Ok(self.catalog.clone());
        }
        let found = self.servers.catalog_for(&call.tenant, call.workspace_id, &call.tool);
        Ok(Arc::new(found.await?))
    }

    /// Whether a call can be run here and now.
    pub fn prepare(&self, tenant: &Tenant) -> Result<Place> {
        self.check_tier()?;
        self.room.try_take(tenant).ok_or(Error::Overloaded)
    }

    /// Whether anything may run on this machine.
    pub fn check_tier(&self) -> Result<()> {
        let (tier, minimum_tier) = (self.machine.tier(), self.minimum_tier);
        if tier > minimum_tier {
            let (missing, may_lack) = (self.machine.missing(), minimum_tier.may_lack());
            let names: Vec<_> = missing.difference(&may_lack).map(|layer| layer.name()).collect();
            return Err(Error::SandboxUnavailable { tier, minimum_tier, missing: names.join(" ") });
        }
        Ok(())
    }

    /// Runs a call that has been admitted and answers with what happens. When the answers are
    /// dropped or the session gets another owner, the call and everything it started is stopped.
    pub fn start(
        self: Arc<Self>,
        db: PgPool,
        room: Place,
        call: Call,
        policy: Arc<Policy>,
        terms: Terms,
    ) -> mpsc::Receiver<Answer> {
        let (sender, answers) = mpsc::channel(BACKLOG);
        let running = async move {
            let facts = Facts::new(&call, sender);
            let id = call.tool_call_id;
            tokio::select! {
                outcome = self.run(&call, &policy, terms, &facts) => facts.end(outcome).await,
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
    async fn run(&self, call: &Call, policy: &Policy, terms: Terms, facts: &Facts<'_>) -> Outcome {
        let begun = Instant::now();
        let running = self.decide_and_run(call, policy, terms, facts);
        let finished = AssertUnwindSafe(running).catch_unwind();
        let mut outcome = finished.await.unwrap_or_else(|_| {
            error!(tool_call.id = %call.tool_call_id, "tool {} panicked", call.tool);
            Failure::new(Kind::Failed, "the tool crashed; this is our fault").into()
        });
        outcome.metadata.duration = begun.elapsed();
        outcome
    }

    async fn decide_and_run(
        &self,
        call: &Call,
        policy: &Policy,
        terms: Terms,
        facts: &Facts<'_>,
    ) -> Outcome {
        // What the caller heard from `Evaluate` is on its record, but proves nothing here. Only
        // a refusal is news: the call came unasked, or something changed since.
        let catalog = match self.catalog_for(call).await {
            Ok(catalog) => catalog,
            Err(error) => {
                error!(%error, "the tools of workspace {} cannot be found", call.workspace_id);
                let text = "the tool cannot be looked up; this is our fault, and nothing was done";
                return Failure::new(Kind::Failed, text).into();
            }
        };
        let evaluation = evaluate(&catalog, call);
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
        let entered = match self.workspaces.enter(&call.tenant, call.workspace_id).await {
            Ok(entered) => entered,
            Err(error) => {
                return Failure::new(Kind::Failed, shut(call.workspace_id, &error)).into();
            }
        };
        let mut profile = Profile::at_least(self.minimum_tier);
        profile.read_only = self.read_only.clone();
        let run = Run {
            sandbox: &self.sandbox,
            profile: &profile,
            workspace: &entered.path,
            entered: &entered,
            outputs: &self.outputs,
            gateway: &self.gateway,
            redactor: &self.redactor,
            patience: terms.patience,
            facts,
        };
        let running = tool.run(permit.input.clone(), run);
        let outcome = match permit.entry.about.effect {
            Effect::Reads => running.await,
            Effect::Asks | Effect::Delegates | Effect::Changes | Effect::Destroys => {
                within_quota(&entered, running, facts).await
            }
        };
        after(&self.hooks, policy, call, &permit.input, outcome, facts).await
    }
}

/// Runs what may fill a workspace, for as long as there is room.
async fn within_quota(
    entered: &Arc<Entered>,
    running: impl Future<Output = Outcome>,
    facts: &Facts<'_>,
) -> Outcome {
    let before = match entered.admit().await {
        Ok(before) => before,
        Err(error) => return overflowed(facts, &error).await.into(),
    };
    let outcome = tokio::select! {
        outcome = running => outcome,
        error = entered.overflow(before) => overflowed(facts, &error).await.into(),
    };
    entered.forget_used();
    outcome
}

/// Why nobody gets into a workspace, for people and models.
pub fn shut(id: WorkspaceId, error: &Error) -> String {
    match error {
        Error::WorkspaceBusy(_) | Error::WorkspaceNotFound(_) | Error::WorkspaceFull { .. } => {
            error.to_string()
        }
        error => {
            error!(%error, workspace.id = %id, "workspace cannot be opened");
            "the workspace cannot be opened; this is our fault".into()
        }
    }
}

/// The workspace is full or gone, which ends whatever runs in it.
async fn overflowed(facts: &Facts<'_>, error: &Error) -> Failure {
    if let Error::WorkspaceNotFound(_) = error {
        return Failure::new(Kind::Aborted, "the workspace was deleted");
    }
    let (layer, detail) = (facts::WORKSPACE.into(), error.to_string());
    facts.note(Payload::SandboxViolation(SandboxViolation { layer, detail })).await;
    Failure::new(Kind::Sandbox, format!("{error}; delete something first"))
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
    use crate::{
        egress::Addresses,
        hooks::{Commands, Http},
        mcp::Connector,
        secrets::Secrets,
        workspaces::Limits,
    };

    fn executor(machine: Report, minimum_tier: Tier) -> Executor {
        let db = PgPool::connect_lazy("postgres://nobody@127.0.0.1:1/nothing").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let limits = Limits { bytes: 0, files: 0 };
        let workspaces = Workspaces::new(db.clone(), folder.path().into(), limits, 1, None);
        let workspaces = Arc::new(workspaces);
        let outputs = Outputs::open(db.clone(), folder.path(), 0, Duration::ZERO).unwrap();
        let gateway = Gateway::new(Addresses::default(), 0).unwrap();
        let connector = Connector {
            sandbox: Sandbox::new("sandbox-init"),
            minimum_tier,
            read_only: vec![],
            workspaces: workspaces.clone(),
            secrets: Secrets::default(),
            redactor: Redactor::default(),
            outward: gateway.outward().clone(),
        };
        let commands = Commands {
            sandbox: Sandbox::new("sandbox-init"),
            minimum_tier,
            workspaces: workspaces.clone(),
            redactor: Redactor::default(),
            room: Places::new(1, 1),
        };
        let http = Http::new(gateway.outward().clone(), None).unwrap();
        let policies = Policies::new(db.clone());
        let servers = Servers::new(db, connector, Catalog::default(), Duration::ZERO, 1);
        Executor {
            servers: Arc::new(servers),
            read_only: vec![],
            outputs: Arc::new(outputs),
            gateway,
            redactor: Redactor::default(),
            policies,
            hooks: Hooks { http, commands },
            catalog: Arc::new(Catalog::built_in(None).unwrap()),
            sandbox: Sandbox::new("sandbox-init"),
            machine,
            minimum_tier,
            workspaces,
            room: Places::new(1, 1),
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
        let acme = "acme".parse().unwrap();
        let weak = executor(machine_without(Layer::Proc), Tier::A);
        let status = Status::from(weak.prepare(&acme).unwrap_err());
        assert_eq!(
            status.message(),
            "this machine's sandbox is of tier B, A is demanded; it lacks proc"
        );
        assert!(executor(machine_without(Layer::Proc), Tier::B).prepare(&acme).is_ok());
        assert!(executor(machine_without(Layer::Seccomp), Tier::C).prepare(&acme).is_err());
    }

    #[tokio::test]
    async fn a_machine_runs_only_so_much() {
        let acme = "acme".parse().unwrap();
        let busy = executor(machine_without(Layer::Proc), Tier::B);
        let room = busy.prepare(&acme).unwrap();
        assert!(matches!(busy.prepare(&acme), Err(Error::Overloaded)));
        drop(room);
        assert!(busy.prepare(&acme).is_ok());
    }
}
