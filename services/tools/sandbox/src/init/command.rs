use std::{
    collections::BTreeMap,
    env,
    ffi::{CString, NulError},
    fs::File,
    io::{self, PipeReader, Read as _},
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
    path::{Path, PathBuf},
    time::Duration,
};

use nix::{
    errno::Errno,
    fcntl::OFlag,
    libc::{self, SIGRTMIN},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawn},
    sys::{
        resource::{UsageWho, getrusage},
        signal::{SigSet, Signal, kill, killpg},
        signalfd::{SfdFlags, SignalFd},
        stat::Mode,
        time::TimeValLike as _,
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::{Pid, setsid},
};

use super::{root::WORKSPACE, terminal::Terminal};
use crate::{
    protocol::{Order, Request, Status},
    streams::Streams,
};

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What the command's standard streams are. Where nothing is said of output and error they are
/// ours, which the service has connected.
pub enum Connection {
    Nothing,
    Pipe(PipeReader),
    /// The line is held until the command has opened it by its name: a terminal that nobody has
    /// open hangs up.
    Terminal {
        name: CString,
        _line: File,
    },
}

/// Makes what the command reads from, and the end that the service is to write to.
pub fn connect(
    request: &Request,
    terminal: Option<Terminal>,
) -> io::Result<(Connection, Option<OwnedFd>)> {
    if let Some(terminal) = terminal {
        let name = terminal.name().into();
        let connection = Connection::Terminal { name, _line: terminal.line };
        return Ok((connection, Some(terminal.controller)));
    }
    match request.streams {
        Streams::Piped => {
            let (reader, writer) = io::pipe()?;
            Ok((Connection::Pipe(reader), Some(writer.into())))
        }
        Streams::Merged | Streams::Terminal(_) => Ok((Connection::Nothing, None)),
    }
}

/// Starts the command and waits for it. What it leaves running ends with us.
pub fn run(request: &Request, private_root: bool, connection: Connection) -> Status {
    let started = start(request, private_root, connection);
    match started.and_then(|(command, children)| attend(command, &children)) {
        Ok(status) => status,
        Err(error) => Status::NotStarted(format!("{}: {error}", request.program.path)),
    }
}

/// The command leads a session of its own, away from any terminal but the one that it is given,
/// so that nothing can be typed into another.
fn start(
    request: &Request,
    private_root: bool,
    connection: Connection,
) -> io::Result<(Pid, SignalFd)> {
    setsid()?;
    let mask = SigSet::from(Signal::SIGCHLD);
    mask.thread_block()?;
    let children = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC)?;

    let home = if private_root { WORKSPACE.into() } else { env::current_dir()? };
    env::set_current_dir(&home)?;
    let environment = environment(request, private_root, &home);
    let path = environment.get("PATH").map_or(PATH, |path| path.as_str());
    let program = find(&request.program.path, path);
    let arguments = [&request.program.path].into_iter().chain(&request.program.args);
    let arguments = arguments.map(|argument| CString::new(argument.as_str()));
    let variables = environment.iter().map(|(name, value)| CString::new(format!("{name}={value}")));

    let mut attributes = PosixSpawnAttr::init()?;
    attributes.set_sigmask(&SigSet::empty())?;
    // What we ignore, as every program of this language does, and what whoever started the service
    // ignores, such as `nohup`: a shell cannot trap what was ignored before it began.
    attributes.set_sigdefault(&SigSet::all())?;
    attributes.set_flags(
        PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK
            | PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF
            | PosixSpawnFlags::from_bits_retain(libc::POSIX_SPAWN_SETSID.into()),
    )?;
    let command = posix_spawn(
        &program,
        &file_actions(&connection)?,
        &attributes,
        &arguments.collect::<Result<Vec<_>, NulError>>()?,
        &variables.collect::<Result<Vec<_>, NulError>>()?,
    )?;
    Ok((command, children))
}

fn file_actions(connection: &Connection) -> nix::Result<PosixSpawnFileActions> {
    let mut actions = PosixSpawnFileActions::init()?;
    match connection {
        Connection::Nothing => {
            actions.add_open(0, "/dev/null", OFlag::O_RDONLY, Mode::empty())?;
        }
        Connection::Pipe(reader) => actions.add_dup2(reader.as_raw_fd(), 0)?,
        // Who leads a session and opens a terminal that nobody has is controlled by it.
        Connection::Terminal { name, _line: _ } => {
            actions.add_open(0, name.as_c_str(), OFlag::O_RDWR, Mode::empty())?;
            actions.add_dup2(0, 1)?;
            actions.add_dup2(0, 2)?;
        }
    }
    Ok(actions)
}

fn environment(request: &Request, private_root: bool, home: &Path) -> BTreeMap<String, String> {
    let home = home.to_string_lossy().into_owned();
    let terminal = match request.streams {
        Streams::Terminal(_) => "xterm-256color",
        Streams::Merged | Streams::Piped => "dumb",
    };
    let mut environment = BTreeMap::from([
        ("PATH".into(), PATH.into()),
        ("HOME".into(), home.clone()),
        ("LANG".into(), "C.UTF-8".into()),
        ("TERM".into(), terminal.into()),
    ]);
    environment.extend(request.profile.env.clone());
    if !private_root {
        environment.insert("TMPDIR".into(), home);
    }
    environment
}

/// Looks a program up as a shell would. One that is nowhere is its name, which cannot be started.
fn find(program: &str, path: &str) -> PathBuf {
    if program.contains('/') {
        return program.into();
    }
    let places = env::split_paths(path).map(|directory| directory.join(program));
    places.into_iter().find(|place| place.is_file()).unwrap_or_else(|| program.into())
}

/// Passes signals on and collects every process that ends, until the command does: pid 1
/// inherits all orphans.
fn attend(command: Pid, children: &SignalFd) -> io::Result<Status> {
    let mut socket = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut heard = Vec::new();
    loop {
        if let Some(status) = reap(command)? {
            return Ok(status);
        }
        let mut files = [
            PollFd::new(socket.as_fd(), PollFlags::POLLIN),
            PollFd::new(children.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut files, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => (),
            Err(error) => return Err(error.into()),
        }
        let [order, child] = files.map(|file| file.revents().unwrap_or(PollFlags::empty()));
        if !child.is_empty() {
            children.read_signal()?;
        }
        if !order.is_empty() {
            obey(command, &mut socket, &mut heard)?;
        }
    }
}

/// A signal goes to everything that the command has started in its own group, as one from a
/// terminal does. The command is not collected yet, so that the number is still its own.
fn obey(command: Pid, socket: &mut File, heard: &mut Vec<u8>) -> io::Result<()> {
    let mut chunk = [0; 1024];
    match socket.read(&mut chunk)? {
        // The service is gone, and the supervisor is about to end us.
        0 => return Err(io::ErrorKind::UnexpectedEof.into()),
        read => heard.extend_from_slice(&chunk[..read]),
    }
    while let Some(end) = heard.iter().position(|byte| *byte == b'\n') {
        let line: Vec<u8> = heard.drain(..=end).collect();
        let Order::Signal(signal) = serde_json::from_slice(&line)?;
        match killpg(command, Signal::from(signal)) {
            // It has ended meanwhile, which `reap` is about to find out.
            Ok(()) | Err(Errno::ESRCH) => (),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// How the command ended, if it has.
fn reap(command: Pid) -> io::Result<Option<Status>> {
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(pid, code)) if pid == command => {
                return Ok(Some(Status::Exited(code)));
            }
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == command => {
                return signaled(signal as i32).map(Some);
            }
            // How nix says that the signal was a real-time one, whose number it does not know.
            Err(Errno::EINVAL) if kill(command, None) == Err(Errno::ESRCH) => {
                return signaled(SIGRTMIN()).map(Some);
            }
            Ok(WaitStatus::StillAlive) => return Ok(None),
            Ok(_) | Err(Errno::EINTR | Errno::EINVAL) => (),
            Err(error) => return Err(error.into()),
        }
    }
}

fn signaled(signal: i32) -> io::Result<Status> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let time = usage.user_time() + usage.system_time();
    let cpu = Duration::from_micros(time.num_microseconds().try_into().unwrap_or(0));
    Ok(Status::Signaled { signal, cpu })
}
