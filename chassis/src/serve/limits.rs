use std::sync::Arc;

use proto::error::v1::Reason;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;
use tonic_types::ErrorDetails;

use crate::status::{RETRY, with_details};

/// Refuses what would only wait: a caller that is told to come back does
/// better than one that times out.
pub struct Limits {
    requests: Arc<Semaphore>,
    streams: Arc<Semaphore>,
}

/// Room for one call.
pub struct Room {
    /// Given back when the answer begins.
    pub request: OwnedSemaphorePermit,

    /// Given back when the answer ends.
    pub stream: OwnedSemaphorePermit,
}

impl Limits {
    pub fn new(args: &super::Args) -> Limits {
        Limits {
            requests: Arc::new(Semaphore::new(args.max_requests)),
            streams: Arc::new(Semaphore::new(args.max_streams)),
        }
    }

    pub fn room(&self) -> Result<Room, Status> {
        let take = |semaphore: &Arc<Semaphore>| semaphore.clone().try_acquire_owned();
        match (take(&self.requests), take(&self.streams)) {
            (Ok(request), Ok(stream)) => Ok(Room { request, stream }),
            _ => Err(overloaded()),
        }
    }
}

fn overloaded() -> Status {
    let message = "this server is doing as much as it may".to_owned();
    let details = ErrorDetails::with_retry_info(Some(RETRY));
    with_details(Reason::Overloaded, message, vec![], details)
}
