use std::{collections::HashMap, mem, sync::Arc, time::Duration};

use chassis::database::Own;
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
    passing::{is_about_data, took_too_long},
    store::{
        events,
        flush::{self, Answer, Batch},
        turns::Interrupt,
    },
};

/// How long to wait for Postgres to come back, or for a row that somebody holds.
const AWAY: Duration = Duration::from_millis(200);
const LOCKED: Duration = Duration::from_millis(2);

/// How often one session's flush may take too long or be cancelled before that is its data's fault:
/// a server in trouble does this to any of them, and what was said would be lost.
const LATE: u32 = 3;

/// Commits what a shard's sessions have to say.
pub struct Committer {
    shard: Arc<Shard>,
    db: PgPool,
    bus: Bus,
    replica: ReplicaId,
    connection: Own,
}

impl Committer {
    pub fn new(
        shard: Arc<Shard>,
        db: PgPool,
        bus: Bus,
        replica: ReplicaId,
        silence: Duration,
    ) -> Committer {
        let connection = Own::new(db.clone(), silence);
        Committer { shard, db, bus, replica, connection }
    }

    pub async fn run(mut self) {
        let mut carried = Vec::new();
        loop {
            let mut flights = mem::take(&mut carried);
            match flights.is_empty() {
                true => self.shard.worked().await,
                false => sleep(LOCKED).await,
            }
            flights.extend(self.shard.take());
            if !flights.is_empty() {
                carried = self.commit(flights).await;
            }
        }
    }

    /// Commits the flights and returns those whose rows somebody else holds right now.
    async fn commit(&mut self, flights: Vec<Flight>) -> Vec<Flight> {
        let mut carried = Vec::new();
        let mut batches = vec![flights];
        while let Some(mut flights) = batches.pop() {
            let result = match batch(self.replica, &flights) {
                Ok(batch) => {
                    let flush = async |db: &mut _| flush::flush(db, self.replica, &batch).await;
                    self.connection.run(flush).await
                }
                Err(error) => Err(sqlx::Error::Encode(Box::new(error))),
            };
            match result {
                Ok(answers) => {
                    let missing = self.settle(flights, answers);
                    if !missing.is_empty() {
                        carried.extend(self.examine(missing).await);
                    }
                }
                // Bad data must not poison the batch: halve it until the one session is found.
                Err(error) if is_about_data(&error) && flights.len() > 1 => {
                    let half = flights.split_off(flights.len() / 2);
                    batches.extend([flights, half]);
                }
                // Others of the batch do not wait for it.
                Err(error)
                    if took_too_long(&error) && flights.iter().all(|flight| flight.late < LATE) =>
                {
                    warn!(%error, sessions = flights.len(), "a commit took too long, trying again");
                    flights.iter_mut().for_each(|flight| flight.late += 1);
                    sleep(AWAY).await;
                    batches.insert(0, flights);
                }
                Err(error) if is_about_data(&error) => {
                    for Flight { owner, .. } in flights {
                        error!(%error, session.id = %owner.session_id, "the data of session {} was refused", owner.session_id);
                        self.shard.stop(&owner, Stopped::Refused(error.to_string()));
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

    /// Publishes what was committed and returns the flights that were not.
    fn settle(&self, flights: Vec<Flight>, answers: Vec<Answer>) -> Vec<Flight> {
        // By lease and not by session: a writer may have left a flush of an earlier epoch.
        let mut answers: HashMap<_, _> =
            answers.into_iter().map(|answer| (answer.lease, answer)).collect();
        let mut missing = Vec::new();
        for (lease, flight) in (0..).zip(flights) {
            let Some(answer) = answers.remove(&lease) else {
                missing.push(flight);
                continue;
            };
            self.show_children(&flight);
            let mut committed =
                flight.pending.into_events(&flight.owner, answer.base, self.replica);
            let reached = answer.base + committed.len() as i64 - 1;
            for row in answer.told.0.into_iter().chain(answer.fired.map(|fired| fired.0)) {
                match events::Row::into_event(row) {
                    Ok(event) => committed.push(event),
                    Err(error) => error!(%error, "cannot read the event that was just written"),
                }
            }
            self.bus.post(answer.mail);
            self.bus.publish(
                &flight.owner.tenant,
                flight.owner.session_id,
                committed,
                answer.ready,
            );
            let interrupt = answer.interrupt_turn.map(|turn_id| Interrupt {
                turn_id,
                subject: answer.interrupt_by.unwrap_or_default(),
                reason: answer.interrupt_reason.unwrap_or_default(),
            });
            self.shard.committed(&flight.owner, Some(reached), interrupt);
        }
        missing
    }

    /// Tells workers of the children that were made with what was committed.
    fn show_children(&self, flight: &Flight) {
        for child in flight.pending.children() {
            self.bus.publish(&flight.owner.tenant, child, vec![], true);
        }
    }

    /// Finds out why flights were not written: held (again later), committed before, or lost.
    async fn examine(&self, missing: Vec<Flight>) -> Vec<Flight> {
        let ids: Vec<_> = missing.iter().map(|flight| flight.owner.session_id).collect();
        let states = match flush::states(&self.db, &ids).await {
            Ok(states) => states,
            Err(error) => {
                warn!(%error, "cannot tell why a flush was not written, trying again");
                return missing;
            }
        };
        let states: HashMap<_, _> =
            states.into_iter().map(|state| (state.session_id, state)).collect();
        let mut held = Vec::new();
        for flight in missing {
            let owner = &flight.owner;
            match states.get(&owner.session_id) {
                Some(state)
                    if state.epoch == owner.epoch
                        && state.flush_no == owner.flush_no
                        && state.owner == Some(self.replica) =>
                {
                    held.push(flight);
                }
                // The connection broke after the commit. Readers find the events by the poll.
                Some(state)
                    if state.epoch == owner.epoch && state.flush_no == owner.flush_no + 1 =>
                {
                    self.show_children(&flight);
                    self.bus.publish(
                        &owner.tenant,
                        owner.session_id,
                        vec![],
                        flight.pending.lets_go(),
                    );
                    self.shard.committed(owner, None, None);
                }
                _ => {
                    warn!(session.id = %owner.session_id, "session {} was taken over", owner.session_id);
                    self.shard.stop(owner, Stopped::Lost);
                }
            }
        }
        held
    }
}

fn batch(replica: ReplicaId, flights: &[Flight]) -> Result<Batch<'_>, serde_json::Error> {
    let mut batch = Batch::new(replica);
    for (lease, flight) in flights.iter().enumerate() {
        flight.pending.write(&mut batch, lease, &flight.owner)?;
    }
    Ok(batch)
}
