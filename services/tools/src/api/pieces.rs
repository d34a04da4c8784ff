use std::time::Duration;

use tokio::time::{Instant, timeout, timeout_at};
use tonic::{Status, Streaming};

use super::invalid;

/// How long a client may take for its next piece, and for all of them.
const SILENCE: Duration = Duration::from_secs(60);
const LONGEST: Duration = Duration::from_secs(3600);

/// What a client sends in pieces.
pub struct Pieces<T> {
    stream: Streaming<T>,
    end: Instant,
}

impl<T> Pieces<T> {
    pub fn new(stream: Streaming<T>) -> Pieces<T> {
        Pieces { stream, end: Instant::now() + LONGEST }
    }

    pub async fn next(&mut self) -> Result<Option<T>, Status> {
        let late = |problem| Status::from(invalid("data", problem));
        match timeout_at(self.end, timeout(SILENCE, self.stream.message())).await {
            Ok(Ok(received)) => received,
            Ok(Err(_)) => Err(late("did not arrive within 60 seconds")),
            Err(_) => Err(late("did not arrive within an hour")),
        }
    }
}
