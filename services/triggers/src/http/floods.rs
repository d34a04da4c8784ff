use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use jiff::Timestamp;

use crate::ids::TriggerId;

/// How many throttled deliveries of a trigger are put on record each minute. Those beyond say nothing
/// new, and a flood must not fill the database.
const MOST_ON_RECORD: u32 = 100;

/// How many were throttled in the minute that is now.
#[derive(Default)]
pub struct Floods(Mutex<(i64, HashMap<TriggerId, u32>)>);

impl Floods {
    /// Whether enough of them are on record.
    pub fn is_on(&self, id: TriggerId, now: Timestamp) -> bool {
        self.of(now, |counts| counts.get(&id).is_some_and(|count| *count >= MOST_ON_RECORD))
    }

    pub fn count(&self, id: TriggerId, now: Timestamp) {
        self.of(now, |counts| *counts.entry(id).or_default() += 1);
    }

    fn of<T>(&self, now: Timestamp, look: impl FnOnce(&mut HashMap<TriggerId, u32>) -> T) -> T {
        let mut floods = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let minute = now.as_second().div_euclid(60);
        if floods.0 != minute {
            *floods = (minute, HashMap::new());
        }
        look(&mut floods.1)
    }
}

#[test]
fn a_flood_is_on_record_for_a_minute() {
    let (floods, one, other) = (Floods::default(), TriggerId::new(), TriggerId::new());
    let now = "2026-01-01T00:00:10Z".parse().unwrap();
    (0..MOST_ON_RECORD).for_each(|_| floods.count(one, now));
    assert!(floods.is_on(one, now) && !floods.is_on(other, now));
    assert!(!floods.is_on(one, "2026-01-01T00:01:00Z".parse().unwrap()));
}
