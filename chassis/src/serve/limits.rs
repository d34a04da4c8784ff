use tonic::Status;

use crate::{Caller, Place, Places, auth::Kind, overloaded};

const FULL: &str = "this server is doing as much as it may";

/// Refuses what would only wait: a caller that is told to come back does
/// better than one that times out.
pub struct Limits {
    requests: Places,
    streams: Places,
}

/// Room for one call.
pub struct Room {
    /// Given back when the answer begins.
    pub request: Place,

    /// Given back when the answer ends.
    pub stream: Place,
}

impl Limits {
    pub fn new(args: &super::Args) -> Limits {
        Limits {
            requests: Places::shared(args.max_requests),
            streams: Places::shared(args.max_streams),
        }
    }

    /// For somebody whom we do not know yet.
    pub fn room(&self) -> Result<Room, Status> {
        match (self.requests.try_enter(), self.streams.try_enter()) {
            (Some(request), Some(stream)) => Ok(Room { request, stream }),
            _ => Err(overloaded(FULL)),
        }
    }

    /// A call that is never sent to its end costs its caller nothing, so no tenant has all the room.
    /// Our own services answer for several, unless they only pass a call on.
    pub fn share(&self, room: Room, caller: &Caller, forwarded: bool) -> Result<Room, Status> {
        if caller.kind == Kind::Service && !forwarded {
            return Ok(room);
        }
        let request = self.requests.try_own(room.request, &caller.tenant);
        let stream = self.streams.try_own(room.stream, &caller.tenant);
        match (request, stream) {
            (Some(request), Some(stream)) => Ok(Room { request, stream }),
            _ => Err(overloaded(FULL)),
        }
    }
}
