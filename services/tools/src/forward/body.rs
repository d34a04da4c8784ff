//! Requests that were read a little, and answers that come from elsewhere.

use std::{
    borrow::Cow,
    collections::VecDeque,
    future::poll_fn,
    io::Read as _,
    pin::Pin,
    task::{Context, Poll, ready},
};

use flate2::read::GzDecoder;
use http::HeaderMap;
use http_body::{Body as _, Frame, SizeHint};
use tonic::{Status, body::Body, codegen::Bytes};

/// A flag and a length stand before every message.
const PREFIX: usize = 5;

type Piece = Result<Frame<Bytes>, Status>;

/// A request whose first message was read, as if it had not been.
pub struct Replayed {
    read: VecDeque<Piece>,
    rest: Body,
}

impl Replayed {
    /// Reads until the first message is there. Of one that is larger than anybody takes, whoever
    /// answers will say so.
    pub async fn read(mut body: Body, largest: usize) -> Replayed {
        let mut read = VecDeque::new();
        let mut start = Vec::new();
        while !enough(&start, largest) {
            let next = poll_fn(|context| Pin::new(&mut body).poll_frame(context));
            let Some(piece) = next.await else { break };
            match piece.as_ref().ok().and_then(Frame::data_ref) {
                Some(data) => start.extend_from_slice(data),
                None => {
                    read.push_back(piece);
                    break;
                }
            }
            read.push_back(piece);
        }
        Replayed { read, rest: body }
    }

    /// The first message.
    pub fn message(&self, gzip: bool, largest: usize) -> Option<Cow<'_, [u8]>> {
        let mut bytes = Vec::new();
        for piece in &self.read {
            bytes.extend_from_slice(piece.as_ref().ok()?.data_ref()?);
        }
        let length = length(&bytes)?;
        let message = bytes.get(PREFIX..PREFIX + length)?;
        match (bytes[0], gzip) {
            (0, _) => Some(Cow::Owned(message.to_vec())),
            (1, true) => {
                let mut plain = Vec::new();
                GzDecoder::new(message).take(largest as u64).read_to_end(&mut plain).ok()?;
                Some(Cow::Owned(plain))
            }
            _ => None,
        }
    }
}

/// How long the first message is, once that is known.
fn length(start: &[u8]) -> Option<usize> {
    let length: [u8; 4] = start.get(1..PREFIX)?.try_into().ok()?;
    Some(u32::from_be_bytes(length) as usize)
}

fn enough(start: &[u8], largest: usize) -> bool {
    length(start).is_some_and(|length| length > largest || start.len() >= PREFIX + length)
}

impl http_body::Body for Replayed {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match self.read.pop_front() {
            Some(piece) => Poll::Ready(Some(piece)),
            None => Pin::new(&mut self.rest).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.read.is_empty() && self.rest.is_end_stream()
    }
}

/// An answer from elsewhere. When it breaks off, it ends with a reason.
pub struct Relayed {
    answer: Body,
    broken: Option<Status>,
}

impl Relayed {
    pub fn new(answer: Body, broken: Status) -> Relayed {
        Relayed { answer, broken: Some(broken) }
    }
}

impl http_body::Body for Relayed {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.broken.is_none() {
            return Poll::Ready(None);
        }
        let piece = ready!(Pin::new(&mut self.answer).poll_frame(context));
        Poll::Ready(match piece {
            Some(Err(error)) => {
                tracing::warn!(%error, "an answer of another replica broke off");
                let mut trailers = HeaderMap::new();
                if let Some(broken) = self.broken.take() {
                    // Only a message that is no header value at all could fail.
                    let _ = broken.add_header(&mut trailers);
                }
                Some(Ok(Frame::trailers(trailers)))
            }
            piece => piece,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.broken.is_none() || self.answer.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.answer.size_hint()
    }
}
