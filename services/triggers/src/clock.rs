//! What time it is.

use std::{fs, path::PathBuf};

use jiff::Timestamp;
use tracing::{error, warn};

/// The clock that schedules go by. Leases and pauses between attempts do not: they are
/// measured by the clock of the database, which nobody moves.
#[derive(Debug, Clone, Default)]
pub enum Clock {
    #[default]
    System,

    /// Stands still at what a file says. Tests let a year pass this way.
    File(PathBuf),
}

impl Clock {
    pub fn new(file: Option<PathBuf>) -> Clock {
        match file {
            None => Clock::System,
            Some(path) => {
                warn!(path = %path.display(), "time is what {} says: this is for tests only", path.display());
                Clock::File(path)
            }
        }
    }

    /// To the millisecond, which is as exact as anything here gets.
    pub fn now(&self) -> Timestamp {
        let now = match self {
            Clock::System => Timestamp::now(),
            Clock::File(path) => read(path),
        };
        Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now)
    }

    /// Whether waiting brings the time nearer.
    pub fn runs(&self) -> bool {
        matches!(self, Clock::System)
    }
}

/// A file that cannot be read is a clock that has not begun: nothing is due.
fn read(path: &PathBuf) -> Timestamp {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.trim().parse().unwrap_or_else(|problem| {
        error!(%problem, path = %path.display(), "{} is no clock", path.display());
        Timestamp::UNIX_EPOCH
    })
}
