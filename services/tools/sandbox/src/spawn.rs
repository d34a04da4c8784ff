use std::{
    collections::BTreeSet,
    fs::Permissions,
    io::{self, PipeReader},
    net::TcpListener,
    os::{
        fd::OwnedFd,
        unix::{
            fs::{PermissionsExt as _, chown},
            net::UnixStream as StdUnixStream,
        },
    },
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, OnceLock},
    time::Duration,
};

use nix::{
    fcntl::{AT_FDCWD, RenameFlags, renameat2},
    libc,
    unistd::geteuid,
};
use tokio::{net::unix::pipe, process::Command, time::timeout};

use crate::{
    cgroup::{Cgroup, Place},
    child::{Child, Connected},
    control::Control,
    omitted::LEFT_OUT,
    profile::{Profile, Program},
    protocol::{Errand, Outside, Request, Status},
    report::{Layer, Report},
    streams::{Input, Output, Streams, Terminal},
};

/// How long a sandbox may take to stand, or to fall. It takes milliseconds.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The host user that commands run as when the service is root.
const NOBODY: u32 = 65_534;

/// Starts commands in sandboxes.
#[derive(Debug, Clone)]
pub struct Sandbox {
    init: PathBuf,
    /// Where control groups can be made, looked for once.
    place: Arc<OnceLock<Result<Place, String>>>,
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
        Sandbox { init: init.into(), place: Arc::default() }
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
        let (control, theirs) = StdUnixStream::pair()?;
        let Pipes { ours, stdout, stderr } = Pipes::new(streams)?;
        let cgroup = self.create_cgroup(profile);
        let outside = Outside {
            cgroup: cgroup.as_ref().map(Cgroup::doors).map_err(Clone::clone),
            omitted: profile.omitted.clone(),
        };
        let process = Command::new(&self.init)
            .arg(serde_json::to_string(&Errand::Supervise(outside)).map_err(io::Error::from)?)
            .current_dir(workspace)
            .env_clear()
            .stdin(OwnedFd::from(theirs))
            .stdout(stdout)
            .stderr(stderr)
            .kill_on_drop(true)
            .spawn()?;

        let mut control = Control::new(control)?;
        let request = Request { profile: profile.clone(), program: program.clone(), streams };
        let mut proxy = None;
        let standing = timeout(PATIENCE, async {
            control.send(&request).await?;
            match control.status().await? {
                Some(Status::Listening) => {
                    proxy = control.take_given().map(TcpListener::from);
                    control.status().await
                }
                status => Ok(status),
            }
        });
        match standing.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))? {
            Some(Status::Applied(report)) => {
                let connected = connect(streams, ours, control.take_given())?;
                let cgroup = cgroup.ok().filter(|_| report.has(Layer::Cgroup));
                let mut child =
                    Child::new(report, connected, control, process, cgroup, &profile.limits);
                child.proxy = proxy;
                Ok(child)
            }
            Some(Status::Refused(report)) => {
                let missing = report.missing().difference(&profile.optional).copied().collect();
                Err(Error::Refused { missing, report })
            }
            Some(Status::Broken(problem)) => Err(Error::Broken(problem)),
            Some(status) => Err(Error::Broken(format!("unexpected {status:?}"))),
            None => Err(Error::Broken("sandbox-init ended without a word".into())),
        }
    }

    fn create_cgroup(&self, profile: &Profile) -> Result<Cgroup, String> {
        if profile.omitted.contains(Layer::Cgroup) {
            return Err(LEFT_OUT.into());
        }
        let place = self.place.get_or_init(Place::find).as_ref().map_err(Clone::clone)?;
        Cgroup::create(place, &profile.limits).map_err(|error| format!("cannot make one: {error}"))
    }
}

/// The pipes that `sandbox-init` is started with, as its output and error and so the command's.
struct Pipes {
    ours: Vec<PipeReader>,
    stdout: Stdio,
    stderr: Stdio,
}

impl Pipes {
    fn new(streams: Streams) -> io::Result<Pipes> {
        match streams {
            Streams::Merged => {
                let (ours, writer) = io::pipe()?;
                let stdout = writer.try_clone()?.into();
                Ok(Pipes { ours: vec![ours], stdout, stderr: writer.into() })
            }
            Streams::Piped => {
                let ((output, stdout), (errors, stderr)) = (io::pipe()?, io::pipe()?);
                let ours = vec![output, errors];
                Ok(Pipes { ours, stdout: stdout.into(), stderr: stderr.into() })
            }
            Streams::Terminal(_) => {
                Ok(Pipes { ours: Vec::new(), stdout: Stdio::null(), stderr: Stdio::null() })
            }
        }
    }
}

/// Puts our ends together: the pipes, and what `sandbox-init` has handed over.
fn connect(
    streams: Streams,
    pipes: Vec<PipeReader>,
    given: Option<OwnedFd>,
) -> Result<Connected, Error> {
    let missing = || Error::Broken("sandbox-init has handed nothing over".into());
    if let Streams::Terminal(_) = streams {
        let terminal = Terminal::new(given.ok_or_else(missing)?)?;
        return Ok(Connected {
            output: Output::Terminal(terminal.clone()),
            errors: None,
            input: Some(Input::Terminal(terminal.clone())),
            terminal: Some(terminal),
        });
    }
    let pipes = pipes.into_iter().map(|pipe| pipe::Receiver::from_owned_fd(pipe.into()));
    let mut pipes = pipes.map(|pipe| pipe.map(Output::Pipe));
    Ok(Connected {
        output: pipes.next().ok_or_else(missing)??,
        errors: pipes.next().transpose()?,
        input: given.map(Input::pipe).transpose()?,
        terminal: None,
    })
}

/// Makes a directory that a sandbox can work in, if it is not there: private, and when we are
/// root, owned by nobody in particular, because commands run as the owner of their workspace.
///
/// It appears with its owner or not at all, so that no command can run as root in between.
pub fn create_workspace(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let new = tempfile::Builder::new()
        .prefix(".new-")
        .permissions(Permissions::from_mode(0o700))
        .tempdir_in(parent)?;
    if geteuid().is_root() {
        match chown(new.path(), Some(NOBODY), Some(NOBODY)) {
            // Root of a container that has no other users, or no right to become one. The
            // report of the user namespace says who commands really are.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EPERM)) => (),
            done => done?,
        }
    }
    match renameat2(AT_FDCWD, new.path(), AT_FDCWD, path, RenameFlags::RENAME_NOREPLACE) {
        Ok(()) => {
            // What would be cleaned up has moved.
            let _ = new.keep();
            Ok(())
        }
        Err(nix::Error::EEXIST) if path.is_dir() => Ok(()),
        Err(error) => Err(error.into()),
    }
}
