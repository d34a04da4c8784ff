//! Between the clock and protobuf.

use jiff::Timestamp;

pub fn to_proto(time: Timestamp) -> pbjson_types::Timestamp {
    pbjson_types::Timestamp { seconds: time.as_second(), nanos: time.subsec_nanosecond() }
}

pub fn from_proto(time: pbjson_types::Timestamp) -> Option<Timestamp> {
    Timestamp::new(time.seconds, time.nanos).ok()
}
