use std::{collections::HashMap, mem, sync::Arc, time::Duration};

use sqlx::PgPool;
use tokio::time::sleep;
use tracing::{error, warn};

use super::{
    Stopped,
    shard::{Flight, Shard},
};
use crate::{
    bus::Bus,
    ids::ReplicaId,
    store::{
        events,
        flush::{self, Answer, Batch},
        turns::Interrupt,
    },
};

/// How long to wait for Postgres to come back, or for a row that somebody holds.
const AWAY: Duration = Duration::from_millis(200);
const LOCKED: Duration = Duration::from_millis(2);

/// Commits what the shard's sessions have to say, for ever.
pub async fn run(shard: Arc<Shard>, db: PgPool, bus: Bus, replica: ReplicaId) {
    let mut carried = Vec::new();
    loop {
        let mut flights = mem::take(&mut carried);
        match flights.is_empty() {
            true => shard.worked().await,
            false => sleep(LOCKED).await,
        }
        flights.extend(shard.take());
        if !flights.is_empty() {
            carried = commit(&shard, &db, &bus, replica, flights).await;
        }
    }
}

/// Commits the flights and returns those whose rows somebody else holds right now.
async fn commit(
    shard: &Shard,
    db: &PgPool,
    bus: &Bus,
    replica: ReplicaId,
    flights: Vec<Flight>,
) -> Vec<Flight> {
    let mut carried = Vec::new();
    let mut batches = vec![flights];
    while let Some(mut flights) = batches.pop() {
        let result = match batch(replica, &flights) {
            Ok(batch) => flush::flush(db, replica, &batch).await,
            Err(error) => Err(sqlx::Error::Encode(Box::new(error))),
        };
        match result {
            Ok(answers) => {
                let missing = settle(shard, bus, replica, flights, answers);
                if !missing.is_empty() {
                    carried.extend(examine(shard, db, bus, replica, missing).await);
                }
            }
            // Bad data must not poison the batch: halve it until the one session is found.
            Err(error) if is_about_data(&error) && flights.len() > 1 => {
                let half = flights.split_off(flights.len() / 2);
                batches.extend([flights, half]);
            }
            Err(error) if is_about_data(&error) => {
                for Flight { owner, .. } in flights {
                    error!(%error, session.id = %owner.session_id, "the data of session {} was refused", owner.session_id);
                    shard.stop(&owner, Stopped::Refused(error.to_string()));
                }
            }
            // The same flush again: its number tells whether it was already there.
            Err(error) => {
                warn!(%error, sessions = flights.len(), "cannot commit, trying again");
                sleep(AWAY).await;
                batches.push(flights);
            }
        }
    }
    carried
}

fn batch(replica: ReplicaId, flights: &[Flight]) -> Result<Batch, serde_json::Error> {
    let mut batch = Batch::new(replica);
    for (lease, flight) in flights.iter().enumerate() {
        flight.pending.write(&mut batch, lease, &flight.owner)?;
    }
    Ok(batch)
}

/// Publishes what was committed and returns the flights that were not.
fn settle(
    shard: &Shard,
    bus: &Bus,
    replica: ReplicaId,
    flights: Vec<Flight>,
    answers: Vec<Answer>,
) -> Vec<Flight> {
    // By lease and not by session: a writer may have left a flush of an earlier epoch.
    let mut answers: HashMap<_, _> =
        answers.into_iter().map(|answer| (answer.lease, answer)).collect();
    let mut missing = Vec::new();
    for (lease, flight) in (0..).zip(flights) {
        let Some(answer) = answers.remove(&lease) else {
            missing.push(flight);
            continue;
        };
        let mut committed = flight.pending.into_events(&flight.owner, answer.base, replica);
        if let Some(fired) = answer.fired {
            match events::Row::into_event(fired.0) {
                Ok(event) => committed.push(event),
                Err(error) => error!(%error, "cannot read the event that was just written"),
            }
        }
        bus.publish(&flight.owner.tenant, flight.owner.session_id, committed, answer.ready);
        let interrupt = answer.interrupt_turn.map(|turn_id| Interrupt {
            turn_id,
            subject: answer.interrupt_by.unwrap_or_default(),
            reason: answer.interrupt_reason.unwrap_or_default(),
        });
        shard.committed(&flight.owner, interrupt);
    }
    missing
}

/// Finds out why flights were not written: held (again later), committed before, or lost.
async fn examine(
    shard: &Shard,
    db: &PgPool,
    bus: &Bus,
    replica: ReplicaId,
    missing: Vec<Flight>,
) -> Vec<Flight> {
    let ids: Vec<_> = missing.iter().map(|flight| flight.owner.session_id).collect();
    let states = match flush::states(db, &ids).await {
        Ok(states) => states,
        Err(error) => {
            warn!(%error, "cannot tell why a flush was not written, trying again");
            return missing;
        }
    };
    let states: HashMap<_, _> = states.into_iter().map(|state| (state.session_id, state)).collect();
    let mut held = Vec::new();
    for flight in missing {
        let owner = &flight.owner;
        match states.get(&owner.session_id) {
            Some(state)
                if state.epoch == owner.epoch
                    && state.flush_no == owner.flush_no
                    && state.owner == Some(replica) =>
            {
                held.push(flight);
            }
            // The connection broke after the commit. Readers find the events by the poll.
            Some(state) if state.epoch == owner.epoch && state.flush_no == owner.flush_no + 1 => {
                bus.publish(&owner.tenant, owner.session_id, vec![], flight.pending.lets_go());
                shard.committed(owner, None);
            }
            _ => {
                warn!(session.id = %owner.session_id, "session {} was taken over", owner.session_id);
                shard.stop(owner, Stopped::Lost);
            }
        }
    }
    held
}

/// Whether Postgres objects to what we store, so that asking again cannot help. Passing are
/// 08, a broken connection; 25, a server that only reads, as after a failover; 28, a password that
/// was changed; 40, a conflict; 53, no resources; 55, a lock; 57, a server that stops; 58, a disk.
/// A batch that takes too long (57014) is like one that is wrong: smaller ones may pass.
fn is_about_data(error: &sqlx::Error) -> bool {
    const PASSING: [&str; 8] = ["08", "25", "28", "40", "53", "55", "57", "58"];
    match error {
        sqlx::Error::Encode(_) => true,
        sqlx::Error::Database(error) => {
            let passing = |code: &str| PASSING.iter().any(|class| code.starts_with(class));
            error.code().is_some_and(|code| code == "57014" || !passing(&code))
        }
        _ => false,
    }
}
