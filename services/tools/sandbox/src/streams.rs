//! What a command's standard streams are connected to.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    sys::signal,
};
use rustix::termios::{Winsize, tcsetwinsize};
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf, unix::AsyncFd},
    net::unix::pipe,
};

/// What a command reads from and writes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Streams {
    /// No input. Output and errors are one stream, in the order in which they were written.
    Merged,
    /// Input, output and errors, each for itself.
    Piped,
    /// A terminal, which is all three.
    Terminal(Size),
}

impl Streams {
    pub fn terminal(self) -> Option<Size> {
        match self {
            Streams::Terminal(size) => Some(size),
            Streams::Merged | Streams::Piped => None,
        }
    }
}

/// The size of a terminal, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    pub rows: u16,
    pub columns: u16,
}

impl Size {
    pub(crate) fn apply(self, terminal: impl AsFd) -> io::Result<()> {
        let size = Winsize { ws_row: self.rows, ws_col: self.columns, ws_xpixel: 0, ws_ypixel: 0 };
        Ok(tcsetwinsize(terminal, size)?)
    }
}

/// The signals that a command can be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Signal {
    Int,
    Term,
    Kill,
    Hup,
    Usr1,
    Usr2,
}

impl From<Signal> for signal::Signal {
    fn from(signal: Signal) -> signal::Signal {
        match signal {
            Signal::Int => signal::Signal::SIGINT,
            Signal::Term => signal::Signal::SIGTERM,
            Signal::Kill => signal::Signal::SIGKILL,
            Signal::Hup => signal::Signal::SIGHUP,
            Signal::Usr1 => signal::Signal::SIGUSR1,
            Signal::Usr2 => signal::Signal::SIGUSR2,
        }
    }
}

/// What a command writes. It ends when nobody is left who could write.
#[derive(Debug)]
pub enum Output {
    Pipe(pipe::Receiver),
    Terminal(Terminal),
}

impl AsyncRead for Output {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Output::Pipe(pipe) => Pin::new(pipe).poll_read(context, buffer),
            Output::Terminal(terminal) => terminal.poll_read(context, buffer),
        }
    }
}

/// What a command reads. Dropping it is the end of it, unless it is a terminal.
#[derive(Debug)]
pub enum Input {
    Pipe(pipe::Sender),
    Terminal(Terminal),
}

/// What is typed to say that nothing more will be (Ctrl-D).
const END_OF_TRANSMISSION: u8 = 4;

impl Input {
    pub(crate) fn pipe(given: OwnedFd) -> io::Result<Input> {
        Ok(Input::Pipe(pipe::Sender::from_owned_fd(given)?))
    }

    /// What to write last, so that whoever reads knows that nothing more will come: at a terminal
    /// what a person would type. Of a pipe the end is that it is dropped.
    pub fn farewell(&self) -> &'static [u8] {
        match self {
            Input::Pipe(_) => &[],
            Input::Terminal(_) => &[END_OF_TRANSMISSION],
        }
    }

    /// Says that nothing more will come, however long it takes until somebody reads that.
    pub async fn close(mut self) -> io::Result<()> {
        self.write_all(self.farewell()).await
    }
}

impl AsyncWrite for Input {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Input::Pipe(pipe) => Pin::new(pipe).poll_write(context, bytes),
            Input::Terminal(terminal) => terminal.poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// The end of a terminal at which a person would sit.
#[derive(Debug, Clone)]
pub struct Terminal(Arc<AsyncFd<OwnedFd>>);

impl Terminal {
    #[expect(deprecated, reason = "unsound for types that close what they have; this one does not")]
    pub(crate) fn new(given: OwnedFd) -> io::Result<Terminal> {
        fcntl(&given, FcntlArg::F_SETFL(OFlag::O_RDWR | OFlag::O_NONBLOCK))?;
        Ok(Terminal(Arc::new(AsyncFd::new(given)?)))
    }

    pub(crate) fn resize(&self, size: Size) -> io::Result<()> {
        size.apply(self.0.get_ref())
    }

    fn poll_read(
        &self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut guard = ready!(self.0.poll_read_ready(context))?;
            let free = buffer.initialize_unfilled();
            match guard.try_io(|line| Ok(nix::unistd::read(line, free)?)) {
                Ok(Ok(read)) => {
                    buffer.advance(read);
                    return Poll::Ready(Ok(()));
                }
                // How Linux says that nobody has the terminal any more.
                Ok(Err(error)) if error.raw_os_error() == Some(Errno::EIO as i32) => {
                    return Poll::Ready(Ok(()));
                }
                Ok(Err(error)) => return Poll::Ready(Err(error)),
                Err(_would_block) => (),
            }
        }
    }

    fn poll_write(&self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.0.poll_write_ready(context))?;
            match guard.try_io(|line| Ok(nix::unistd::write(line, bytes)?)) {
                Ok(written) => return Poll::Ready(written),
                Err(_would_block) => (),
            }
        }
    }
}
