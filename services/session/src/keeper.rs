//! Looks after what is written: seals it, lets it grow old, and says of readers that are
//! gone that they are. Any replica may do any of it at any time.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use rand::Rng as _;
use sqlx::PgPool;
use tokio::time::sleep;
use tracing::warn;

use crate::{
    error::{Error, Result},
    host::Host,
    ids::SessionId,
    retention,
    seal::{Seal, digest},
    store::{
        channels,
        events::{self, PAGE_BYTES},
        imports, seals,
        turns::Stamp,
    },
    time,
};

/// How much one look takes on; the next one goes on from there.
const SESSIONS: i64 = 200;

/// How long to rest at least.
const SHORTEST: Duration = Duration::from_millis(10);

/// How many events a seal covers at most, so that nobody holds more of a log at once.
pub const SEALED: i64 = 1000;

/// Looks for ever. The rests differ, so that replicas do not all look at the same moment.
pub async fn run(host: Arc<Host>) {
    loop {
        let rest = host.config.sweep.mul_f64(rand::rng().random_range(0.5..1.5));
        sleep(rest.max(SHORTEST)).await;
        report("say which readers are gone", disconnect(&host).await);
        report("seal what is over", seal(&host).await);
        if let Some(before) = before(host.config.delta_retention) {
            report("join old deltas", join(&host.db, before).await);
        }
        if let Some(before) = before(host.config.log_retention) {
            report("remove old events", expire(&host.db, before).await);
        }
        report("give up imports", imports::drop_old(&host.db).await);
    }
}

fn report(what: &str, result: Result<()>) {
    if let Err(error) = result {
        warn!(%error, "cannot {what}, trying again");
    }
}

/// What is from before this is old; zero is for ever.
fn before(age: Duration) -> Option<Timestamp> {
    (!age.is_zero()).then(|| time::now().checked_sub(age).ok())?
}

/// Readers that a dead replica served are lost.
async fn disconnect(host: &Host) -> Result<()> {
    let stamp = Stamp::of(host.replica);
    for lost in channels::lost(&host.db, SESSIONS).await? {
        let events = channels::disconnect(&host.db, &lost, "lost", &stamp).await?;
        host.bus.publish(&lost.tenant, lost.session_id, events, false);
    }
    Ok(())
}

async fn seal(host: &Host) -> Result<()> {
    for id in seals::unsealed(&host.db, SESSIONS).await? {
        if let Err(error) = seal_session(&host.db, id).await {
            warn!(%error, session.id = %id, "cannot seal session {id}");
        }
    }
    Ok(())
}

/// Seals a session's log up to the last end of a turn.
pub async fn seal_session(db: &PgPool, id: SessionId) -> Result<()> {
    let seals::Head { mut seal, end, turns } = seals::head(db, id).await?;
    let end = end.unwrap_or_default();
    loop {
        let through = seal.as_ref().map_or(0, |(_, through, _)| *through);
        if through >= end {
            break;
        }
        let rows = events::rows(db, id, through, end, SEALED, PAGE_BYTES).await?;
        if rows.iter().zip(through + 1..).any(|(row, sequence)| row.seq != sequence)
            || rows.is_empty()
        {
            return Err(Error::Corrupt("the log has a gap"));
        }
        let ends_turn = rows.last().is_some_and(|row| row.seq == end);
        let digests = rows
            .into_iter()
            .map(|row| Ok(digest(row.into_envelope()?.get())?))
            .collect::<Result<Vec<_>>>()?;
        let next = Seal::next(id.to_string(), seal, &digests);
        if !seals::add(db, id, &next, &digests, ends_turn).await? {
            // Somebody else seals this session.
            return Ok(());
        }
        seal = Some((next.number, next.through_sequence, next.digest));
    }
    seals::mark(db, id, &turns).await
}

pub async fn join(db: &PgPool, before: Timestamp) -> Result<()> {
    for seal in seals::whole(db, before, SESSIONS).await? {
        let (id, first, through) = (seal.session_id, seal.first_seq, seal.through_seq);
        let rows = events::rows(db, id, first - 1, through, SEALED, i64::MAX).await?;
        let joined = retention::join(&rows)?;
        seals::join(db, id, seal.number, &joined).await?;
    }
    Ok(())
}

pub async fn expire(db: &PgPool, before: Timestamp) -> Result<()> {
    for id in seals::old(db, before, SESSIONS).await? {
        while seals::expire(db, id, before).await?.is_some() {}
    }
    Ok(())
}
