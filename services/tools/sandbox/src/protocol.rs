//! What travels between the service and `sandbox-init`: an errand on the command line, and over
//! the control socket one line of JSON per message.

use std::{
    io::{self, IoSlice, Read, Write},
    mem::MaybeUninit,
    os::fd::AsFd,
    path::PathBuf,
    time::Duration,
};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    omitted::Omitted,
    profile::{Profile, Program},
    report::Report,
    streams::{Signal, Streams},
};

/// The command line of `sandbox-init`, whose two halves are two processes.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Errand {
    /// Put up what must be put up from outside, then start the other half.
    Supervise(Outside),
    /// Be pid 1 of a sandbox. The report says what the supervisor has put up.
    Init(Report),
}

/// What the supervisor needs to know, which does not listen to the socket.
#[derive(Debug, Serialize, Deserialize)]
pub struct Outside {
    /// The files by which to join the control group that the service has made, or why there is
    /// none.
    pub cgroup: Result<Vec<PathBuf>, String>,
    pub omitted: Omitted,
}

/// From the service, once: what to run, in what, and connected to what.
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

/// Reads the one message that a side sends before it waits for an answer.
pub fn read<T: DeserializeOwned>(socket: impl AsFd) -> io::Result<T> {
    let mut file = std::fs::File::from(socket.as_fd().try_clone_to_owned()?);
    let mut line = Vec::new();
    let mut chunk = [0; 8192];
    while line.last() != Some(&b'\n') {
        match file.read(&mut chunk)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => line.extend_from_slice(&chunk[..read]),
        }
    }
    Ok(serde_json::from_slice(&line)?)
}

pub fn write(socket: impl AsFd, message: &Status) -> io::Result<()> {
    let mut file = std::fs::File::from(socket.as_fd().try_clone_to_owned()?);
    file.write_all(&encode(message)?)
}

/// Writes a message that a descriptor comes along with.
pub fn hand_over(socket: impl AsFd, message: &Status, given: impl AsFd) -> io::Result<()> {
    let line = encode(message)?;
    let given = [given.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(&given)) {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    let sent = sendmsg(&socket, &[IoSlice::new(&line)], &mut ancillary, SendFlags::empty())?;
    let mut file = std::fs::File::from(socket.as_fd().try_clone_to_owned()?);
    file.write_all(&line[sent..])
}
