//! The names of things.

use jiff::Timestamp;
use uuid::{NoContext, Uuid};

chassis::id!(TriggerId, "trg");
chassis::id!(FiringId, "fire");
chassis::id!(SecretId, "sec");

impl FiringId {
    /// A new id that sorts by when the firing was, by the clock of the service.
    pub fn at(time: Timestamp) -> FiringId {
        FiringId::from_uuid(Uuid::new_v7(stamp(time)))
    }

    /// Some that belong together, in the order in which they are to be delivered.
    pub fn several_at(time: Timestamp, count: usize) -> Vec<FiringId> {
        let mut ids: Vec<FiringId> = (0..count).map(|_| FiringId::at(time)).collect();
        ids.sort();
        ids
    }

    /// All firings before `time` have smaller ids.
    pub fn first_at(time: Timestamp) -> FiringId {
        let millis = u64::try_from(time.as_millisecond()).unwrap_or(0);
        FiringId::from_uuid(Uuid::from_u64_pair(millis << 16, 0))
    }
}

fn stamp(time: Timestamp) -> uuid::Timestamp {
    let seconds = u64::try_from(time.as_second()).unwrap_or(0);
    let nanos = u32::try_from(time.subsec_nanosecond()).unwrap_or(0);
    uuid::Timestamp::from_unix(NoContext, seconds, nanos)
}

#[test]
fn firings_sort_by_time() {
    let time = |text: &str| text.parse::<Timestamp>().unwrap();
    let (early, late) = (time("2026-01-01T00:00:00Z"), time("2026-01-01T00:00:00.001Z"));
    assert!(FiringId::at(early) < FiringId::at(late));
    assert!(FiringId::first_at(early) < FiringId::at(early));
    assert!(FiringId::at(early) < FiringId::first_at(late));
}
