use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures::{FutureExt as _, future::BoxFuture};
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use tonic::{Status, body::Body};

use super::{call::Call, weight::Weight};
use crate::Place;

/// The rest of an answer, which is still part of its call: in the same span, counted
/// until its last byte, and ended in time.
pub struct CallBody {
    inner: Body,
    call: Call,
    end: Option<BoxFuture<'static, Status>>,

    /// Given back with the last byte.
    _room: Option<(Place, Weight)>,
}

impl CallBody {
    pub fn new(
        inner: Body,
        call: Call,
        end: Option<BoxFuture<'static, Status>>,
        room: Option<(Place, Weight)>,
    ) -> CallBody {
        CallBody { inner, call, end, _room: room }
    }

    /// Ends the answer with a failure.
    fn fail(&mut self, status: &Status) -> Frame<<Body as http_body::Body>::Data> {
        self.inner = Body::empty();
        self.end = None;
        let mut trailers = HeaderMap::new();
        // Only a message that is no header value at all could fail, and ours are plain text.
        let _ = status.add_header(&mut trailers);
        self.call.finish(&mut trailers);
        Frame::trailers(trailers)
    }
}

impl http_body::Body for CallBody {
    type Data = <Body as http_body::Body>::Data;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Status>>> {
        let this = &mut *self;
        let poll = || Pin::new(&mut this.inner).poll_frame(context);
        let polled = this.call.scope(|| catch_unwind(AssertUnwindSafe(poll)));
        let Ok(polled) = polled else {
            let status = this.call.panicked();
            return Poll::Ready(Some(Ok(this.fail(&status))));
        };
        if polled.is_pending()
            && let Some(end) = &mut this.end
        {
            let status = ready!(end.poll_unpin(context));
            return Poll::Ready(Some(Ok(this.fail(&status))));
        }
        polled.map_ok(|mut frame| {
            if let Some(trailers) = frame.trailers_mut() {
                this.call.finish(trailers);
            }
            frame
        })
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
