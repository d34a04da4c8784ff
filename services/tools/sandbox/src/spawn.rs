use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use nix::unistd::Pid;

use crate::{
    child::Child,
    pool::Pool,
    prepared::Workshop,
    profile::{Profile, Program},
    protocol::Request,
    report::{Layer, Report},
    streams::Streams,
    workspace::{Workspace, create_workspace},
};

/// Starts commands in sandboxes.
#[derive(Debug, Clone)]
pub struct Sandbox {
    workshop: Arc<Workshop>,
    pool: Arc<Pool>,
}

/// Why a command was not run, or its end is not known.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("this machine lacks sandbox layers that are demanded: {}", names(missing))]
    Refused { missing: BTreeSet<Layer>, report: Report },

    #[error("the sandbox could not be built: {0}")]
    Broken(String),

    #[error("the command could not be started: {0}")]
    NotStarted(String),

    #[error("cannot run sandbox-init")]
    Init(#[from] io::Error),
}

fn names(layers: &BTreeSet<Layer>) -> String {
    layers.iter().map(|layer| layer.name()).collect::<Vec<_>>().join(", ")
}

impl Sandbox {
    /// `init` is the path of the program `sandbox-init`.
    pub fn new(init: impl Into<PathBuf>) -> Sandbox {
        let workshop = Arc::new(Workshop::new(init.into()));
        Sandbox { workshop, pool: Arc::new(Pool::new(0)) }
    }

    /// Keeps so many sandboxes prepared from the first spawn on, until the last clone is dropped.
    /// Each is two processes that sleep.
    pub fn keep_prepared(self, count: usize) -> Sandbox {
        Sandbox { pool: Arc::new(Pool::new(count)), ..self }
    }

    /// The host's pids of the supervisors of sandboxes that are prepared, in the order in which
    /// they will be used.
    pub fn prepared(&self) -> Vec<Pid> {
        self.pool.supervisors()
    }

    /// Finds out what this machine can give, by building a sandbox with whatever there is.
    pub async fn probe(&self) -> Result<Report, Error> {
        let folder = tempfile::tempdir()?;
        let workspace = folder.path().join("workspace");
        create_workspace(&workspace)?;
        let everything_is_optional = Profile { optional: Layer::ALL.into(), ..Profile::default() };
        let mut child =
            self.spawn(&everything_is_optional, &workspace, &Program::new("true", &[])).await?;
        child.wait().await?;
        Ok(child.report)
    }

    /// Runs a program in a sandbox whose only lasting directory is `workspace`.
    ///
    /// Returns once the sandbox stands. It has no input, and standard output and error arrive in
    /// one stream, in the order in which they were written.
    pub async fn spawn(
        &self,
        profile: &Profile,
        workspace: &Path,
        program: &Program,
    ) -> Result<Child, Error> {
        self.spawn_with(profile, workspace, program, Streams::Merged).await
    }

    /// The same with a choice of what the program reads from and writes to.
    pub async fn spawn_with(
        &self,
        profile: &Profile,
        workspace: &Path,
        program: &Program,
        streams: Streams,
    ) -> Result<Child, Error> {
        let workspace = Workspace::open(workspace)?;
        let request = Request { profile: profile.clone(), program: program.clone(), streams };
        let child = self.start(&request, &workspace).await;
        self.pool.refill(&self.workshop);
        child
    }

    async fn start(&self, request: &Request, workspace: &Workspace) -> Result<Child, Error> {
        if let Some(prepared) = self.pool.take(workspace.owner, &request.profile)
            && let Ok(child) = prepared.run(request, workspace).await
        {
            return Ok(child);
        }
        // What was prepared may have been killed, or prepared when the machine had less to give.
        // The command has not run, and what is begun now is the machine's last word.
        self.workshop.begin(workspace, &request.profile)?.run(request, workspace).await
    }
}
