use http::HeaderMap;
use tonic::Status;

use super::weight::{Scales, Weight};
use crate::{Caller, FORWARDED, Place, Places, Tenant, auth::Kind, overloaded};

const FULL: &str = "this server is doing as much as it may";

/// Refuses what would only wait: a caller that is told to come back does
/// better than one that times out.
pub struct Limits {
    requests: Places,
    streams: Places,
    scales: Scales,
}

/// Room for one call of somebody whom we do not know yet.
pub struct Entry {
    request: Place,
    stream: Place,
}

/// Room for one call.
pub struct Room {
    /// Given back when the answer begins.
    pub request: Place,

    /// Given back when the answer ends.
    pub stream: Place,
    pub weight: Weight,
}

impl Limits {
    pub fn new(args: &super::Args) -> Limits {
        Limits {
            requests: Places::shared(args.max_requests),
            streams: Places::shared(args.max_streams),
            scales: Scales::new(args),
        }
    }

    pub fn enter(&self) -> Result<Entry, Status> {
        match (self.requests.try_enter(), self.streams.try_enter()) {
            (Some(request), Some(stream)) => Ok(Entry { request, stream }),
            _ => Err(overloaded(FULL)),
        }
    }

    /// A call that is never sent to its end costs its caller nothing, so no tenant has all the room.
    pub fn room(&self, entry: Entry, caller: &Caller, headers: &HeaderMap) -> Result<Room, Status> {
        let owner = owner(caller, headers);
        let weight = self.scales.weight(owner.cloned());
        let Entry { request, stream } = entry;
        let places = match owner {
            Some(owner) => {
                self.requests.try_own(request, owner).zip(self.streams.try_own(stream, owner))
            }
            None => Some((request, stream)),
        };
        let (request, stream) = places.ok_or_else(|| overloaded(FULL))?;
        Ok(Room { request, weight, stream })
    }
}

/// Whose part a call takes. Our own services answer for several, unless they only pass a call on.
fn owner<'caller>(caller: &'caller Caller, headers: &HeaderMap) -> Option<&'caller Tenant> {
    let ours = caller.kind == Kind::Service && !headers.contains_key(FORWARDED);
    (!ours).then_some(&caller.tenant)
}
