//! Removes what sessions that are gone have said and their logs, a piece at a time.

use std::time::Duration;

use sqlx::PgPool;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::{error::Result, store};

/// How many rows one transaction removes: small enough to take no time worth noticing.
const PIECE: i32 = 5_000;

/// How many pieces are removed at a time. Most sessions are one; the rest of a long one waits
/// for the next time, so that nobody who deletes waits for it.
const PIECES: usize = 10;

/// How often somebody looks for what deletions left over.
const SWEEP: Duration = Duration::from_secs(10);

/// Removes what deletions left over, until `stop`.
pub async fn run(db: PgPool, stop: CancellationToken) {
    let mut ticks = interval(SWEEP);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        if let Err(error) = some(&db).await {
            warn!(%error, "cannot remove what is left of deleted sessions, trying again");
        }
    }
}

/// Removes as much as may be removed in one go.
pub async fn some(db: &PgPool) -> Result<()> {
    for _ in 0..PIECES {
        if !store::admin::purge(db, PIECE).await? {
            break;
        }
    }
    Ok(())
}
