//! What travels between the service and `sandbox-init`: an errand on the command line, and over
//! the control socket one line of JSON per message.

use std::{
    io::{self, IoSlice, IoSliceMut, Write},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
    time::Duration,
};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    omitted::Omitted,
    profile::{Profile, Program},
    report::Report,
    streams::{Signal, Streams},
    workspace::Owner,
};

/// How many files come along with a message at most: those of a request.
const MOST_FILES: usize = 3;

/// The command line of `sandbox-init`, whose two halves are two processes.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Errand {
    /// Put up what must be put up from outside, then start the other half.
    Supervise(Outside),
    /// Be pid 1 of a sandbox.
    Init(Inside),
}

/// What the supervisor needs to know, which does not listen to the socket.
#[derive(Debug, Serialize, Deserialize)]
pub struct Outside {
    /// The files by which to join the control group that the service has made, or why there is
    /// none.
    pub cgroup: Result<Vec<PathBuf>, String>,
    /// Who root becomes. Nobody but root becomes somebody else.
    pub owner: Option<Owner>,
    pub omitted: Omitted,
}

/// What the init needs to know before there is a request.
#[derive(Debug, Serialize, Deserialize)]
pub struct Inside {
    /// What the supervisor has put up.
    pub report: Report,
    pub omitted: Omitted,
}

/// From the service, once: what to run, in what, and connected to what. The directory that is
/// the workspace comes along with it, and behind it the pipes for output and errors, as far as
/// there are any: one for both, or one for each.
#[derive(Debug, Serialize, Deserialize)]
pub struct Request {
    pub profile: Profile,
    pub program: Program,
    pub streams: Streams,
}

/// From the service, at any time while the command runs.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    Signal(Signal),
}

/// From `sandbox-init`: `Applied` and then `Exited`, or one of the others alone.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The door for a proxy is open, and comes along with this message. One of the others follows.
    Listening,
    /// The sandbox stands and the command is about to start. What its input is written to comes
    /// along with this message, as a descriptor.
    Applied(Report),
    /// A demanded layer is missing. Nothing ran.
    Refused(Report),
    /// The sandbox could not be built for another reason. Nothing ran.
    Broken(String),
    /// The sandbox stands, but the program could not be started.
    NotStarted(String),
    Exited(i32),
    Signaled {
        signal: i32,
        /// The processor time of all processes that have ended, which tells whether a signal
        /// of the limit's kind was the limit's.
        cpu: Duration,
    },
}

pub fn encode(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

/// Waits for the one message that a side sends before it waits for an answer, and takes the files
/// that come along with it.
pub fn read<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<(T, Vec<OwnedFd>)> {
    let (mut line, mut files) = (Vec::new(), Vec::new());
    while line.last() != Some(&b'\n') {
        match receive(&socket, &mut line, &mut files) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => (),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
            Err(error) => return Err(error),
        }
    }
    Ok((serde_json::from_slice(&line)?, files))
}

/// Takes what there is, or as much of it as fits. Zero bytes are the end.
pub fn receive(
    socket: impl AsFd,
    heard: &mut Vec<u8>,
    files: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut chunk = [0; 8192];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut chunk)];
    let message = recvmsg(&socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    for came in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(given) = came {
            files.extend(given);
        }
    }
    heard.extend_from_slice(&chunk[..message.bytes]);
    Ok(message.bytes)
}

pub fn write(socket: impl AsFd, message: &Status) -> io::Result<()> {
    let mut file = std::fs::File::from(socket.as_fd().try_clone_to_owned()?);
    file.write_all(&encode(message)?)
}

/// Writes a message that a descriptor comes along with.
pub fn hand_over(socket: impl AsFd, message: &Status, given: impl AsFd) -> io::Result<()> {
    let line = encode(message)?;
    let sent = send(&socket, &line, &[given.as_fd()])?;
    let mut file = std::fs::File::from(socket.as_fd().try_clone_to_owned()?);
    file.write_all(&line[sent..])
}

/// Sends as much of a message as there is room for, and all of the files with it.
pub fn send(socket: impl AsFd, line: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    Ok(sendmsg(&socket, &[IoSlice::new(line)], &mut ancillary, SendFlags::NOSIGNAL)?)
}
