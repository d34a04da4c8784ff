//! What waits in this process to be delivered, and in which order. Decides and touches nothing.

use std::collections::{HashMap, VecDeque};

use tokio::time::Instant;

use crate::{
    firing::Pending,
    ids::{FiringId, TriggerId},
};

/// How many firings wait in this process as they are.
pub const BACKLOG: usize = 2_000;

/// How many of one trigger do. They go one after the other, so more of them would make nothing
/// faster, and would be in the way of everybody else's: half of a backlog is then of so many triggers
/// that every place is taken, and not of one that is slow.
const OF_ONE: usize = 16;

/// Of how many more it is known that they come next. What they are is read when they do.
const KNOWN: usize = 20_000;

/// Firings of the same trigger go one after the other, so that their turns have their order.
#[derive(Default)]
pub struct Lines {
    of: HashMap<TriggerId, VecDeque<Held>>,
    waiting: usize,
    known: usize,
}

pub struct Held {
    pub id: FiringId,
    pub until: Instant,
    /// Nothing: it is in the database and not here.
    pub pending: Option<Box<Pending>>,
}

impl Lines {
    /// Lets a firing wait behind those of its trigger, or leaves it to whoever looks after its lease.
    /// `true`: it is the first of a line that nobody serves yet.
    pub fn push(&mut self, pending: Pending, until: Instant) -> bool {
        let (id, trigger_id) = (pending.id, pending.trigger_id);
        let before = self.of.get(&trigger_id).map_or(0, VecDeque::len);
        let pending = (before < OF_ONE && self.waiting < BACKLOG).then(|| Box::new(pending));
        match pending {
            Some(_) => self.waiting += 1,
            None if self.known < KNOWN => self.known += 1,
            None => return false,
        }
        let is_new = !self.of.contains_key(&trigger_id);
        self.of.entry(trigger_id).or_default().push_back(Held { id, until, pending });
        is_new
    }

    /// Who is next in a line. Nobody: the line is gone.
    pub fn next(&mut self, id: TriggerId) -> Option<Held> {
        let held = self.of.get_mut(&id).and_then(VecDeque::pop_front);
        match &held {
            Some(Held { pending: Some(_), .. }) => self.waiting -= 1,
            Some(Held { pending: None, .. }) => self.known -= 1,
            None => drop(self.of.remove(&id)),
        }
        held
    }

    /// How many more may wait as they are.
    pub fn room(&self) -> usize {
        BACKLOG - self.waiting
    }

    /// Triggers of which so much waits that more would only wait.
    pub fn busy(&self) -> Vec<TriggerId> {
        let busy = self.of.iter().filter(|(_, line)| line.len() >= OF_ONE);
        busy.map(|(id, _)| *id).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.of.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use crate::{firing::Route, schedule::Overlap, trigger::TargetSession};

    use super::*;

    fn firing(trigger_id: TriggerId) -> Pending {
        Pending {
            id: FiringId::new(),
            tenant: "acme".parse().unwrap(),
            trigger_id,
            subject: "ann".into(),
            envelope: vec![0; 100],
            route: Route {
                session: TargetSession::New,
                agent: String::new(),
                workspace_id: String::new(),
                title: String::new(),
                overlap: Overlap::Queue,
            },
            attempts: 0,
        }
    }

    #[tokio::test]
    async fn a_flood_of_one_trigger_takes_no_room_from_others_and_keeps_its_order() {
        let (mut lines, until) = (Lines::default(), Instant::now());
        let (one, other) = (TriggerId::new(), TriggerId::new());
        let mut sent = Vec::new();
        for number in 0..BACKLOG {
            let firing = firing(one);
            sent.push(firing.id);
            assert_eq!(lines.push(firing, until), number == 0, "one task serves a line");
        }
        assert_eq!(lines.room(), BACKLOG - OF_ONE);
        assert!(lines.push(firing(other), until));
        assert_eq!(lines.busy(), [one]);
        assert!(lines.next(other).unwrap().pending.is_some());
        assert!(lines.next(other).is_none());

        // What comes while the line is served goes behind what is only known.
        let (first, rest) = sent.split_at(OF_ONE + 1);
        let next =
            |lines: &mut Lines| lines.next(one).map(|held| (held.id, held.pending.is_some()));
        for (index, id) in first.iter().enumerate() {
            assert_eq!(next(&mut lines), Some((*id, index < OF_ONE)));
        }
        let late = firing(one);
        let expected: Vec<_> = rest.iter().copied().chain([late.id]).collect();
        assert!(!lines.push(late, until));
        let served: Vec<_> = std::iter::from_fn(|| next(&mut lines)).map(|(id, _)| id).collect();
        assert_eq!(served, expected);
        assert_eq!((lines.room(), lines.known), (BACKLOG, 0));
        assert!(lines.is_empty());
    }

    #[tokio::test]
    async fn whatever_fires_memory_is_bounded() {
        let (mut lines, until) = (Lines::default(), Instant::now());
        let triggers: Vec<TriggerId> = (0..1_000).map(|_| TriggerId::new()).collect();
        for _ in 0..30 {
            for id in &triggers {
                lines.push(firing(*id), until);
            }
        }
        assert_eq!((lines.room(), lines.known), (0, KNOWN));
        let held: usize = lines.of.values().map(VecDeque::len).sum();
        assert_eq!(held, BACKLOG + KNOWN);
    }
}
