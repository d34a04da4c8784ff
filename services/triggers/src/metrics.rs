//! What is counted about firings.

use std::sync::LazyLock;

use jiff::Timestamp;
use opentelemetry::{
    KeyValue, global,
    metrics::{Counter, Histogram},
};

use crate::store::firings::Outcome;

/// Seconds, from a schedule that fires when it is due to one that somebody misses.
const BUCKETS: [f64; 10] = [0.1, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0];

static LATE: LazyLock<Histogram<f64>> = LazyLock::new(|| {
    global::meter("triggers")
        .f64_histogram("triggers.schedule.delay")
        .with_description("How long after their due time schedules fired")
        .with_unit("s")
        .with_boundaries(BUCKETS.to_vec())
        .build()
});

static DELIVERIES: LazyLock<Counter<u64>> = LazyLock::new(|| {
    global::meter("triggers")
        .u64_counter("triggers.deliveries")
        .with_description("Attempts to make a turn of a firing, by what became of them")
        .build()
});

/// A schedule that was due fires.
pub fn fired(due: Timestamp, now: Timestamp) {
    LATE.record(now.duration_since(due).as_secs_f64().max(0.0), &[]);
}

/// An attempt ended; nothing: nobody can tell how.
pub fn delivered(outcome: Option<&Outcome>) {
    let outcome = match outcome {
        Some(Outcome::Submitted { .. }) => "submitted",
        Some(Outcome::Dropped { .. }) => "dropped",
        Some(Outcome::Again { failed: true, .. }) | None => "failed",
        Some(Outcome::Again { failed: false, .. }) => "waits",
    };
    DELIVERIES.add(1, &[KeyValue::new("outcome", outcome)]);
}
