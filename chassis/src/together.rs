//! What is written within one moment leaves together.
//!
//! A call is written in pieces: first its headers, and its message when the connection has room for
//! it; so is an answer, whose end is a piece too. Who sends the first alone wakes the other side up
//! for something that it cannot work on, and on few cores has it run before the rest is sent.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, Waker, ready},
    thread::panicking,
};

use futures::future::BoxFuture;
use hyper::rt::{Read, ReadBufCursor, Write};
use tokio::task::yield_now;

/// What is larger is not copied to wait for company.
const LARGE: usize = 64 * 1024;

/// How much room a connection keeps on which nothing is written.
const KEPT: usize = 4 * 1024;

pub struct Together<T: Write + Unpin> {
    inner: T,
    written: Vec<u8>,
    /// How much of it the other side was sent.
    sent: usize,
    moment: Moment,
}

/// When what is written leaves.
enum Moment {
    /// Nobody wants it to yet.
    None,
    /// When everybody who could write had their turn.
    Begun(BoxFuture<'static, ()>),
    Over,
}

impl<T: Write + Unpin> Together<T> {
    pub fn new(inner: T) -> Together<T> {
        Together { inner, written: Vec::new(), sent: 0, moment: Moment::None }
    }

    fn poll_rest(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Moment::None = self.moment {
            self.moment = Moment::Begun(Box::pin(yield_now()));
        }
        if let Moment::Begun(moment) = &mut self.moment {
            ready!(moment.as_mut().poll(context));
            self.moment = Moment::Over;
        }
        Poll::Ready(())
    }

    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = self.written.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match ready!(Pin::new(&mut self.inner).poll_write(context, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                sent => self.sent += sent,
            }
        }
        self.written.clear();
        self.written.shrink_to(KEPT);
        (self.sent, self.moment) = (0, Moment::None);
        Poll::Ready(Ok(()))
    }
}

impl<T: Write + Unpin> Write for Together<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let length = pieces.iter().map(|piece| piece.len()).sum::<usize>();
        if this.written.len() + length > LARGE {
            ready!(this.poll_send(context))?;
        }
        if length > LARGE {
            return Pin::new(&mut this.inner).poll_write_vectored(context, pieces);
        }
        for piece in pieces {
            this.written.extend_from_slice(piece);
        }
        Poll::Ready(Ok(length))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.written.is_empty() {
            ready!(this.poll_rest(context));
            ready!(this.poll_send(context))?;
        }
        Pin::new(&mut this.inner).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_send(context))?;
        Pin::new(&mut this.inner).poll_shutdown(context)
    }
}

impl<T: Read + Write + Unpin> Read for Together<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

/// What nobody flushed leaves too, as far as it can at once: the last that TLS writes to a server is
/// why it refuses it.
impl<T: Write + Unpin> Drop for Together<T> {
    fn drop(&mut self) {
        // A second panic would end the process.
        if !panicking() {
            let _ = self.poll_send(&mut Context::from_waker(Waker::noop()));
        }
    }
}

#[cfg(test)]
mod tests;
