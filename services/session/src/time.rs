//! Between the clock, Postgres and protobuf.

use jiff::Timestamp;

pub fn to_proto(time: Timestamp) -> pbjson_types::Timestamp {
    pbjson_types::Timestamp { seconds: time.as_second(), nanos: time.subsec_nanosecond() }
}

pub fn from_proto(time: pbjson_types::Timestamp) -> Option<Timestamp> {
    Timestamp::new(time.seconds, time.nanos).ok()
}

/// Now, as precise as Postgres stores it: what is published is what a reload shows.
pub fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now)
}
