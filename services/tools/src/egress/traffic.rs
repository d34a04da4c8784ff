use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Instant, Sleep, sleep},
};

use super::ledger::Meter;

/// How long a connection may carry nothing.
const IDLE: Duration = Duration::from_secs(120);

/// A connection to a host that was granted: counted, and ended when nothing happens on it or
/// the call has used up what it may use.
pub struct Counted {
    stream: TcpStream,
    meter: Meter,
    idle: Pin<Box<Sleep>>,
}

impl Counted {
    pub fn new(stream: TcpStream, meter: Meter) -> Counted {
        Counted { stream, meter, idle: Box::pin(sleep(IDLE)) }
    }

    fn happened(&mut self) {
        self.idle.as_mut().reset(Instant::now() + IDLE);
    }

    /// Both directions ask, and whichever asked last is woken.
    fn poll_idle(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        self.idle.as_mut().poll(context).map(|()| io::ErrorKind::TimedOut.into())
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        match Pin::new(&mut this.stream).poll_read(context, buffer) {
            Poll::Pending => Poll::Ready(Err(ready!(this.poll_idle(context)))),
            Poll::Ready(read) => {
                this.happened();
                read?;
                let read = buffer.filled().len() - before;
                Poll::Ready(this.meter.received(read).map_err(io::Error::other))
            }
        }
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        match Pin::new(&mut this.stream).poll_write(context, bytes) {
            Poll::Pending => Poll::Ready(Err(ready!(this.poll_idle(context)))),
            Poll::Ready(written) => {
                this.happened();
                let written = written?;
                this.meter.sent(written).map_err(io::Error::other)?;
                Poll::Ready(Ok(written))
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}
