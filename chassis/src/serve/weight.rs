//! What a request takes in memory, from its first byte until its answer ends: whoever answers may look
//! at the question until then.

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

/// A message comes behind so many bytes.
const HEAD: usize = 5;

/// Room is counted in pieces of so many bytes.
const PIECE: usize = 1024;

/// How many times as large as it came a message can be that was compressed: deflate knows no better.
const DEFLATED: usize = 1032;

/// Room for everything that requests bring beyond a little.
pub struct Scales {
    room: Arc<Places>,
    /// What was compressed may not be larger than this when it is read.
    most: usize,
}

/// What one request weighs, until this is dropped: as much as the largest of its messages, because those
/// of a stream are dealt with one by one.
pub struct Weight(Arc<Mutex<Option<Load>>>);

struct Load {
    room: Arc<Places>,
    owner: Option<Tenant>,
    most: usize,
    message: Message,
    pieces: usize,
    place: Option<Place>,
}

/// The message that is arriving.
#[derive(Default)]
struct Message {
    /// What is there of what stands before it: whether it was compressed, and its length.
    head: Vec<u8>,
    bytes: usize,
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
    pub fn weight(&self, owner: Option<Tenant>) -> Weight {
        let (room, message) = (self.room.clone(), Message::default());
        let load = Load { room, owner, most: self.most, message, pieces: 0, place: None };
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
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl Load {
    fn add(&mut self, mut data: &[u8]) -> Result<(), Status> {
        while !data.is_empty() {
            data = self.message.take(data);
            self.weigh()?;
        }
        Ok(())
    }

    fn weigh(&mut self) -> Result<(), Status> {
        let bytes = self.message.weight(self.most);
        let pieces = bytes.saturating_sub(LIGHT).div_ceil(PIECE);
        let more = u32::try_from(pieces.saturating_sub(self.pieces)).unwrap_or(u32::MAX);
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

impl Message {
    /// Takes what belongs to it, and leaves the rest for the next one.
    fn take<'data>(&mut self, data: &'data [u8]) -> &'data [u8] {
        if self.is_whole() {
            *self = Message::default();
        }
        let (head, data) = data.split_at(data.len().min(HEAD - self.head.len()));
        self.head.extend_from_slice(head);
        let (own, rest) = data.split_at(data.len().min(self.length() - self.bytes));
        self.bytes += own.len();
        rest
    }

    fn is_whole(&self) -> bool {
        self.head.len() == HEAD && self.bytes == self.length()
    }

    fn length(&self) -> usize {
        let length = self.head.get(1..HEAD).and_then(|length| length.try_into().ok());
        length.map_or(0, |length| u32::from_be_bytes(length) as usize)
    }

    /// How large it may be when it is read.
    fn weight(&self, most: usize) -> usize {
        match self.head.first() {
            Some(0) | None => self.bytes,
            Some(_) => self.bytes.saturating_mul(DEFLATED).min(most.max(self.bytes)),
        }
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
            load.add(data)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_weigh_the_same_in_any_pieces() {
        let message = |flag: u8, length: usize| {
            let head = u32::try_from(length).unwrap().to_be_bytes();
            [vec![flag], head.to_vec(), vec![7; length]].concat()
        };
        let body =
            [message(0, 100_000), message(0, 0), message(1, 100), message(0, 150_000)].concat();
        for size in [1, 4, 5, 6, 16_384, body.len()] {
            let room = Arc::new(Places::shared(1024));
            let scales = Scales { room: room.clone(), most: 4 * 1024 * 1024 };
            let weight = scales.weight(None);
            for piece in body.chunks(size) {
                weight.0.lock().unwrap().as_mut().unwrap().add(piece).unwrap();
            }
            // The largest of them, without what each may have.
            assert_eq!(room.taken(), (150_000 - LIGHT).div_ceil(PIECE), "in pieces of {size}");
            drop(weight);
            assert_eq!(room.taken(), 0);
        }
    }

    #[test]
    fn a_message_is_as_large_as_it_can_be_and_no_larger_than_one_may_be() {
        let room = Arc::new(Places::shared(8192));
        let scales = Scales { room: room.clone(), most: 1024 * 1024 };
        let weight = scales.weight(None);
        let message = [&[1, 0, 0, 0x40, 0][..], &[7; 0x4000]].concat();
        weight.0.lock().unwrap().as_mut().unwrap().add(&message).unwrap();
        assert_eq!(room.taken(), (1024 * 1024 - LIGHT).div_ceil(PIECE));
    }
}
