//! Who is dead. No I/O and no clock of its own.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use crate::{ids::ReplicaId, store::replicas::Peer};

/// Watches the counters of other replicas.
///
/// A peer is judged dead only by a replica that has itself written its heartbeat during a
/// full lease and saw the peer's counter unchanged all the while. So after an outage
/// of Postgres nobody is judged by what could not be written during it.
#[derive(Debug)]
pub struct Judge {
    lease: Duration,
    seen: HashMap<ReplicaId, (i64, Instant)>,
    last: Option<Instant>,
}

impl Judge {
    pub fn new(lease: Duration) -> Judge {
        Judge { lease, seen: HashMap::new(), last: None }
    }

    /// Takes what a heartbeat of ours has just found; returns who has been silent for a lease.
    pub fn observe(&mut self, now: Instant, peers: &[Peer]) -> Vec<Peer> {
        // Between two heartbeats that are far apart we cannot know who was silent.
        if self.last.is_some_and(|last| now - last > self.lease / 2) {
            self.seen.clear();
        }
        self.last = Some(now);
        self.seen.retain(|id, _| peers.iter().any(|peer| peer.id == *id));
        let mut silent = Vec::new();
        for peer in peers.iter().filter(|peer| !peer.dead) {
            let (counter, since) = self.seen.entry(peer.id).or_insert((peer.counter, now));
            if *counter != peer.counter {
                (*counter, *since) = (peer.counter, now);
            } else if now - *since >= self.lease {
                silent.push(*peer);
            }
        }
        silent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(10);

    fn peer(id: ReplicaId, counter: i64) -> Peer {
        Peer { id, counter, dead: false, owns: true }
    }

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn who_counts_is_alive_and_who_does_not_is_dead_after_a_lease() {
        let (start, alive, dead) = (Instant::now(), ReplicaId::new(), ReplicaId::new());
        let mut judge = Judge::new(LEASE);
        for second in (0..10).step_by(2) {
            let peers = [peer(alive, second as i64), peer(dead, 7)];
            assert_eq!(judge.observe(after(start, second), &peers), []);
        }
        let peers = [peer(alive, 10), peer(dead, 7)];
        assert_eq!(judge.observe(after(start, 10), &peers), [peer(dead, 7)]);
    }

    #[test]
    fn nobody_is_judged_by_a_time_in_which_we_could_not_count_ourselves() {
        let (start, other) = (Instant::now(), ReplicaId::new());
        let mut judge = Judge::new(LEASE);
        judge.observe(start, &[peer(other, 1)]);
        judge.observe(after(start, 2), &[peer(other, 1)]);
        // Postgres was away for a minute.
        assert_eq!(judge.observe(after(start, 62), &[peer(other, 1)]), []);
        assert_eq!(judge.observe(after(start, 64), &[peer(other, 1)]), []);
        assert_eq!(judge.observe(after(start, 66), &[peer(other, 2)]), []);
    }
}
