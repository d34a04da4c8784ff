//! What a request takes in memory, from its first byte until its answer begins.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
};

use http_body::{Frame, SizeHint};
use tonic::{Status, body::Body};

use crate::{Place, Places, Tenant, overloaded};

const FULL: &str = "this server holds as much of large requests as it may";

/// What every request may have: that of as many as may wait is little.
const LIGHT: usize = 64 * 1024;

/// Room is counted in pieces of so many bytes.
const PIECE: usize = 1024;

/// How many times as large as it came a message can be that was compressed: deflate knows no better.
const DEFLATED: usize = 1032;

/// Room for everything that requests bring beyond a little.
pub struct Scales {
    room: Arc<Places>,
    /// Of one call at most so much is in memory at a time: a message of the largest size.
    most: usize,
}

/// What one request weighs, until this is dropped.
pub struct Weight(Arc<Mutex<Option<Load>>>);

struct Load {
    room: Arc<Places>,
    owner: Option<Tenant>,
    most: usize,
    /// How much each byte may become.
    times: usize,
    bytes: usize,
    pieces: usize,
    place: Option<Place>,
}

struct Weighed {
    inner: Body,
    load: Arc<Mutex<Option<Load>>>,
}

impl Scales {
    pub fn new(args: &super::Args) -> Scales {
        let room = Arc::new(Places::shared(args.max_request_bytes / PIECE));
        Scales { room, most: args.max_message_bytes }
    }

    /// An owner has a part of the room, and who has none is not bounded by one.
    pub fn weight(&self, owner: Option<Tenant>, compressed: bool) -> Weight {
        let times = if compressed { DEFLATED } else { 1 };
        let room = self.room.clone();
        let load = Load { room, owner, most: self.most, times, bytes: 0, pieces: 0, place: None };
        Weight(Arc::new(Mutex::new(Some(load))))
    }
}

impl Weight {
    /// The same body, of which every byte counts as it arrives.
    pub fn of(&self, body: Body) -> Body {
        Body::new(Weighed { inner: body, load: self.0.clone() })
    }
}

impl Drop for Weight {
    fn drop(&mut self) {
        // What still arrives, of a stream in both directions, is read piece by piece.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl Load {
    fn add(&mut self, bytes: usize) -> Result<(), Status> {
        let bytes = bytes.saturating_mul(self.times);
        self.bytes = self.bytes.saturating_add(bytes).min(self.most);
        let pieces = self.bytes.saturating_sub(LIGHT).div_ceil(PIECE);
        let more = u32::try_from(pieces - self.pieces).unwrap_or(u32::MAX);
        if more == 0 {
            return Ok(());
        }
        let taken = match &self.owner {
            Some(owner) => self.room.try_take_many(owner, more),
            None => self.room.try_enter_many(more),
        };
        let taken = taken.ok_or_else(|| overloaded(FULL))?;
        self.pieces = pieces;
        match &mut self.place {
            Some(place) => place.merge(taken),
            none => *none = Some(taken),
        }
        Ok(())
    }
}

impl http_body::Body for Weighed {
    type Data = <Body as http_body::Body>::Data;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Status>>> {
        let polled = ready!(Pin::new(&mut self.inner).poll_frame(context));
        if let Some(Ok(frame)) = &polled
            && let Some(data) = frame.data_ref()
            && let Some(load) = &mut *self.load.lock().unwrap_or_else(PoisonError::into_inner)
        {
            load.add(data.len())?;
        }
        Poll::Ready(polled)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
