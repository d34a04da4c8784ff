use std::{
    io::{self, PipeReader, PipeWriter},
    net::TcpListener,
    os::{
        fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::net::UnixStream as StdUnixStream,
    },
    path::{Path, PathBuf},
    process::Stdio,
    sync::OnceLock,
    time::Duration,
};

use nix::unistd::Pid;
use tokio::{
    net::unix::pipe,
    process::{self, Command},
    time::timeout,
};

use crate::{
    cgroup::{Cgroup, Place},
    child::{self, Child, Connected},
    control::Control,
    omitted::{LEFT_OUT, Omitted},
    profile::{Limits, Profile},
    protocol::{Errand, Outside, Request, Status},
    report::Layer,
    spawn::Error,
    streams::{Input, Output, Streams, Terminal},
    workspace::{Owner, Workspace},
};

/// How long a sandbox may take to stand, or to fall. It takes milliseconds.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// What it takes to begin a sandbox.
#[derive(Debug)]
pub struct Workshop {
    init: PathBuf,
    /// Where control groups can be made, looked for once.
    place: OnceLock<Result<Place, String>>,
}

impl Workshop {
    pub fn new(init: PathBuf) -> Workshop {
        Workshop { init, place: OnceLock::new() }
    }

    /// Begins a sandbox that nobody has asked for yet.
    pub fn prepare(&self, owner: Option<Owner>) -> io::Result<Prepared> {
        let cgroup = match self.place().map(Cgroup::create) {
            Ok(Ok(cgroup)) => Ok(cgroup),
            Ok(Err(error)) if is_final(&error) => Err(not_made(error)),
            // To be without one by bad luck is nothing to keep: a new sandbox may do better.
            Ok(Err(error)) => return Err(error),
            Err(problem) => Err(problem),
        };
        self.start(Path::new("/"), owner, Omitted::default(), cgroup)
    }

    /// Begins a sandbox for a profile and a workspace, in it and with its limits from the start.
    pub fn begin(&self, workspace: &Workspace, profile: &Profile) -> io::Result<Prepared> {
        let cgroup = match profile.omitted.contains(Layer::Cgroup) {
            true => Err(LEFT_OUT.into()),
            false => self.place().and_then(|place| {
                let mut cgroup = Cgroup::create(place).map_err(not_made)?;
                cgroup.limit(&profile.limits).map_err(not_made)?;
                Ok(cgroup)
            }),
        };
        // By its number: the name may lead elsewhere by now.
        let place = format!("/proc/self/fd/{}", workspace.directory.as_raw_fd());
        self.start(Path::new(&place), workspace.owner, profile.omitted.clone(), cgroup)
    }

    fn place(&self) -> Result<&Place, String> {
        self.place.get_or_init(Place::find).as_ref().map_err(Clone::clone)
    }

    fn start(
        &self,
        place: &Path,
        owner: Option<Owner>,
        omitted: Omitted,
        cgroup: Result<Cgroup, String>,
    ) -> io::Result<Prepared> {
        let doors = cgroup.as_ref().map(Cgroup::doors).map_err(Clone::clone);
        let errand = Errand::Supervise(Outside { cgroup: doors, owner, omitted });
        let (control, theirs) = StdUnixStream::pair()?;
        let control = Control::new(control)?;
        let process = Command::new(&self.init)
            .arg(serde_json::to_string(&errand)?)
            .current_dir(place)
            .env_clear()
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        Ok(Prepared { control, process, cgroup })
    }
}

fn not_made(error: io::Error) -> String {
    format!("cannot make one: {error}")
}

/// Whether the machine will not give a control group later, either.
fn is_final(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

/// A sandbox that stands as far as it can without a request, or will in a moment: `sandbox-init`
/// waits for one. It is used once; dropping it ends it.
#[derive(Debug)]
pub struct Prepared {
    /// The supervisor ends the sandbox when this is closed.
    control: Control,
    process: process::Child,
    cgroup: Result<Cgroup, String>,
}

impl Prepared {
    pub fn supervisor(&self) -> Option<Pid> {
        child::pid(&self.process)
    }

    pub fn is_alive(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(None))
    }

    /// Gives it the limits of a request. It has none before.
    pub fn limit(&mut self, limits: &Limits) -> io::Result<()> {
        match &mut self.cgroup {
            Ok(cgroup) => cgroup.limit(limits),
            Err(_) => Ok(()),
        }
    }

    /// Has the rest of it put up, and the command started. As long as this has not succeeded, the
    /// command has not run and will not.
    pub async fn run(mut self, request: &Request, workspace: &Workspace) -> Result<Child, Error> {
        let pipes = Pipes::new(request.streams)?;
        let mut proxy = None;
        let standing = timeout(PATIENCE, async {
            let control = &mut self.control;
            control.send_with(request, &pipes.files(workspace)).await?;
            match control.status().await? {
                Some(Status::Listening) => {
                    proxy = control.take_given().map(TcpListener::from);
                    control.status().await
                }
                status => Ok(status),
            }
        });
        let profile = &request.profile;
        match standing.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))? {
            Some(Status::Applied(report)) => {
                let connected = connect(request.streams, pipes.ours, self.control.take_given())?;
                let cgroup = self.cgroup.ok().filter(|_| report.has(Layer::Cgroup));
                let (control, process) = (self.control, self.process);
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
}

/// The pipes that the command writes to: none, one for all, or one each for output and errors.
struct Pipes {
    ours: Vec<PipeReader>,
    theirs: Vec<PipeWriter>,
}

impl Pipes {
    fn new(streams: Streams) -> io::Result<Pipes> {
        let count = match streams {
            Streams::Terminal(_) => 0,
            Streams::Merged => 1,
            Streams::Piped => 2,
        };
        let pipes = (0..count).map(|_| io::pipe()).collect::<io::Result<Vec<_>>>()?;
        let (ours, theirs) = pipes.into_iter().unzip();
        Ok(Pipes { ours, theirs })
    }

    /// What comes along with a request.
    fn files<'a>(&'a self, workspace: &'a Workspace) -> Vec<BorrowedFd<'a>> {
        let pipes = self.theirs.iter().map(PipeWriter::as_fd);
        [workspace.directory.as_fd()].into_iter().chain(pipes).collect()
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
