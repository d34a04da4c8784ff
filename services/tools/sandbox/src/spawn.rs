use std::{
    collections::BTreeSet,
    fs::Permissions,
    io,
    os::{
        fd::OwnedFd,
        unix::{
            fs::{PermissionsExt as _, chown},
            net::UnixStream as StdUnixStream,
        },
    },
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use nix::{
    fcntl::{AT_FDCWD, RenameFlags, renameat2},
    libc,
    unistd::geteuid,
};
use tokio::{
    io::{AsyncWriteExt as _, BufReader},
    net::{UnixStream, unix::pipe},
    process::Command,
    time::timeout,
};

use crate::{
    cgroup::{Cgroup, Place},
    child::{Child, read_status},
    omitted::LEFT_OUT,
    profile::{Profile, Program},
    protocol::{Errand, Outside, Request, Status, encode},
    report::{Layer, Report},
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
    /// Returns once the sandbox stands. Standard output and error arrive in one stream, in the
    /// order in which they were written.
    pub async fn spawn(
        &self,
        profile: &Profile,
        workspace: &Path,
        program: &Program,
    ) -> Result<Child, Error> {
        let (control, theirs) = StdUnixStream::pair()?;
        let (output, writer) = io::pipe()?;
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
            .stdout(writer.try_clone()?)
            .stderr(writer)
            .kill_on_drop(true)
            .spawn()?;

        control.set_nonblocking(true)?;
        let mut control = BufReader::new(UnixStream::from_std(control)?);
        let request = Request { profile: profile.clone(), program: program.clone() };
        let standing = timeout(PATIENCE, async {
            control.get_mut().write_all(&encode(&request)?).await?;
            read_status(&mut control).await
        });
        match standing.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))? {
            Some(Status::Applied(report)) => {
                let output = pipe::Receiver::from_owned_fd(output.into())?;
                let cgroup = cgroup.ok().filter(|_| report.has(Layer::Cgroup));
                Ok(Child::new(report, output, control, process, cgroup, &profile.limits))
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
