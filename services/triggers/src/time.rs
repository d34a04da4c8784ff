//! Between the clock, protobuf and Postgres.

use jiff::Timestamp;

pub fn to_proto(time: Timestamp) -> pbjson_types::Timestamp {
    pbjson_types::Timestamp { seconds: time.as_second(), nanos: time.subsec_nanosecond() }
}

/// To the millisecond, rounded down.
pub fn from_proto(time: &pbjson_types::Timestamp) -> Option<Timestamp> {
    let millis = time.nanos.checked_div(1_000_000)?.checked_mul(1_000_000)?;
    Timestamp::new(time.seconds, millis).ok()
}
