use std::{
    io,
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::net::UnixStream as StdUnixStream,
    },
};

use serde::Serialize;
use tokio::{
    io::{AsyncWriteExt as _, Interest},
    net::UnixStream,
};

use crate::protocol::{self, Status, encode};

/// The service's end of the control socket.
#[derive(Debug)]
pub struct Control {
    socket: UnixStream,
    heard: Vec<u8>,
    /// What came along with messages.
    given: Vec<OwnedFd>,
}

impl Control {
    pub fn new(socket: StdUnixStream) -> io::Result<Control> {
        socket.set_nonblocking(true)?;
        let socket = UnixStream::from_std(socket)?;
        Ok(Control { socket, heard: Vec::new(), given: Vec::new() })
    }

    pub async fn send(&mut self, message: &impl Serialize) -> io::Result<()> {
        self.socket.write_all(&encode(message)?).await
    }

    /// The same with files that come along.
    pub async fn send_with(
        &mut self,
        message: &impl Serialize,
        files: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let line = encode(message)?;
        let send = || protocol::send(&self.socket, &line, files);
        let sent = self.socket.async_io(Interest::WRITABLE, send).await?;
        self.socket.write_all(&line[sent..]).await
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
            let (socket, heard, given) = (&self.socket, &mut self.heard, &mut self.given);
            let receive = || protocol::receive(socket, heard, given);
            match socket.try_io(Interest::READABLE, receive) {
                Ok(0) => return Ok(None),
                Ok(_) => (),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => (),
                // What is left of a conversation whose other end was killed.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// What came along with the last message.
    pub fn take_given(&mut self) -> Option<OwnedFd> {
        self.given.pop()
    }
}
