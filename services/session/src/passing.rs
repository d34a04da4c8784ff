//! Which failures of other services and of Postgres pass, and how long to wait for that.

use std::{error::Error as _, iter, time::Duration};

use proto::error::v1::Reason;
use tokio::time::{Instant, sleep};
use tonic::{Code, Status, TimeoutExpired};
use tonic_types::StatusExt as _;
use tracing::warn;

use crate::{host::Host, turn};

/// How long the first pause is before the tools service is asked again; each is twice as long as
/// the one before, up to the longest.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// How often somebody is asked who is there and has no room.
const ATTEMPTS: u32 = 5;

/// Something that the tools service is asked for until somebody is there to answer.
///
/// A replica that stops refuses what comes, and one that has a disk takes its workspaces along until
/// it is back. A turn in that moment is not worth failing for.
pub struct Asked {
    attempt: u32,
    /// Since when nobody answers. Calls may take long, and none of that is waiting.
    away: Option<Instant>,
    patience: Duration,
}

impl Asked {
    pub fn new(host: &Host) -> Asked {
        Asked { attempt: 1, away: None, patience: host.config.tools_patience }
    }

    /// Whether to ask again, after a pause, because nobody was there to answer. Who lets a deadline
    /// pass is there.
    pub async fn is_worth_another<T>(&mut self, answer: &Result<T, Status>) -> bool {
        let Err(status) = answer else { return false };
        let doubled = PAUSE.saturating_mul(2_u32.saturating_pow(self.attempt - 1));
        let pause = doubled.min(LONGEST_PAUSE);
        let goes_on = match reason(status) {
            Some(Reason::Overloaded) => self.attempt < ATTEMPTS,
            _ => self.away.get_or_insert_with(Instant::now).elapsed() + pause < self.patience,
        };
        if is_late(status) || !is_passing(status) || !goes_on {
            return false;
        }
        warn!(%status, "the tools service does not answer, trying again");
        sleep(pause).await;
        self.attempt += 1;
        true
    }
}

/// How long a step rests before it is tried again because the tools service, or the replica of it that
/// has the workspace, was away: all of its attempts together wait as long as a call would.
pub fn rest(host: &Host, attempt: u32, attempts: u32) -> Duration {
    let all: Duration = (1..attempts.max(2)).map(turn::backoff).sum();
    host.config.tools_patience.mul_f64(turn::backoff(attempt).div_duration_f64(all))
}

/// Whether time ran out, here or there. A connection that ends under a call cancels it too, but that
/// is the transport's word and has another source.
fn is_late(status: &Status) -> bool {
    let mut sources = iter::successors(status.source(), |&error| error.source());
    match status.code() {
        Code::DeadlineExceeded => true,
        Code::Cancelled => {
            status.source().is_none() || sources.any(|error| error.is::<TimeoutExpired>())
        }
        _ => false,
    }
}

fn reason(status: &Status) -> Option<Reason> {
    let details = status.get_error_details();
    details.error_info().and_then(|info| Reason::from_str_name(&info.reason))
}

/// Whether a failure of another service says that the same call may work a moment later, or
/// elsewhere.
pub fn is_passing(status: &Status) -> bool {
    match reason(status) {
        Some(
            Reason::DependencyUnavailable
            | Reason::Stopping
            | Reason::Overloaded
            | Reason::DeadlineExceeded,
        ) => true,
        Some(_) => false,
        // A broken connection has no reason of ours. What the transport says has a source and any
        // code; a server that goes away in peace is INTERNAL.
        None => {
            status.source().is_some()
                || matches!(status.code(), Code::Unavailable | Code::Unknown | Code::Cancelled)
        }
    }
}

/// Whether Postgres objects to what it is to store, so that asking again cannot help. Passing are
/// 08, a broken connection; 25, a server that only reads, as after a failover; 28, a password that
/// was changed; 40, a conflict; 53, no resources; 55, a lock; 57, a server that stops; 58, a disk.
/// A batch that takes too long is like one that is wrong: smaller ones may pass.
pub fn is_about_data(error: &sqlx::Error) -> bool {
    const PASSING: [&str; 8] = ["08", "25", "28", "40", "53", "55", "57", "58"];
    match error {
        sqlx::Error::Encode(_) => true,
        sqlx::Error::Database(cause) => {
            let passing = |code: &str| PASSING.iter().any(|class| code.starts_with(class));
            took_too_long(error) || cause.code().is_some_and(|code| !passing(&code))
        }
        _ => false,
    }
}

/// Whether the statement took too long, or somebody cancelled it.
pub fn took_too_long(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.is_some_and(|code| code == "57014")
}

/// Whether what is stored cannot be read: Postgres objects, takes too long, or says what nobody
/// understands. Asking again hardly helps.
pub fn is_about_reading(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Decode(_) | sqlx::Error::ColumnDecode { .. })
        || is_about_data(error)
}
