use std::{
    io::{self, IoSliceMut},
    mem::MaybeUninit,
    os::{fd::OwnedFd, unix::net::UnixStream as StdUnixStream},
};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde::Serialize;
use tokio::{
    io::{AsyncWriteExt as _, Interest},
    net::UnixStream,
};

use crate::protocol::{Status, encode};

/// The service's end of the control socket.
#[derive(Debug)]
pub struct Control {
    socket: UnixStream,
    heard: Vec<u8>,
    /// What came along with a message.
    given: Option<OwnedFd>,
}

impl Control {
    pub fn new(socket: StdUnixStream) -> io::Result<Control> {
        socket.set_nonblocking(true)?;
        let socket = UnixStream::from_std(socket)?;
        Ok(Control { socket, heard: Vec::new(), given: None })
    }

    pub async fn send(&mut self, message: &impl Serialize) -> io::Result<()> {
        self.socket.write_all(&encode(message)?).await
    }

    /// The next message, or nothing when the other end was killed. Can be given up at any time
    /// without losing one.
    pub async fn status(&mut self) -> io::Result<Option<Status>> {
        loop {
            if let Some(end) = self.heard.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.heard.drain(..=end).collect();
                return Ok(Some(serde_json::from_slice(&line)?));
            }
            self.socket.readable().await?;
            match self.receive() {
                Ok(0) => return Ok(None),
                Ok(_) => (),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => (),
                // What is left of a conversation whose other end was killed.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    pub fn take_given(&mut self) -> Option<OwnedFd> {
        self.given.take()
    }

    fn receive(&mut self) -> io::Result<usize> {
        let mut chunk = [0; 8192];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let message = self.socket.try_io(Interest::READABLE, || {
            let mut parts = [IoSliceMut::new(&mut chunk)];
            Ok(recvmsg(&self.socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?)
        })?;
        for came in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = came {
                self.given = files.last().or(self.given.take());
            }
        }
        self.heard.extend_from_slice(&chunk[..message.bytes]);
        Ok(message.bytes)
    }
}
