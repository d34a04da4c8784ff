use std::{sync::Arc, time::Instant};

use opentelemetry::{
    KeyValue, global,
    metrics::{Counter, Histogram, UpDownCounter},
};
use tonic::Code;

/// What is counted about calls.
pub struct Metrics {
    requests: Counter<u64>,
    duration: Histogram<f64>,
    in_flight: UpDownCounter<i64>,
}

/// Seconds, from a read by key to a long stream.
const BUCKETS: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 600.0];

impl Metrics {
    pub fn new() -> Metrics {
        let meter = global::meter("chassis");
        Metrics {
            requests: meter
                .u64_counter("grpc.server.requests")
                .with_description("Calls that ended, by method and code")
                .build(),
            duration: meter
                .f64_histogram("grpc.server.duration")
                .with_description("How long calls took to their last byte")
                .with_unit("s")
                .with_boundaries(BUCKETS.to_vec())
                .build(),
            in_flight: meter
                .i64_up_down_counter("grpc.server.in_flight")
                .with_description("Calls that have not ended")
                .build(),
        }
    }

    pub fn begin(self: Arc<Self>, method: &str) -> Measured {
        let method = KeyValue::new("method", method.to_owned());
        self.in_flight.add(1, std::slice::from_ref(&method));
        Measured { metrics: self, method, begun: Instant::now(), code: Code::Cancelled }
    }
}

/// One call, counted when it is dropped.
pub struct Measured {
    metrics: Arc<Metrics>,
    method: KeyValue,
    begun: Instant,

    /// How the call ended. One that did not was abandoned by its caller.
    pub code: Code,
}

impl Drop for Measured {
    fn drop(&mut self) {
        self.metrics.in_flight.add(-1, std::slice::from_ref(&self.method));
        let labels = [self.method.clone(), KeyValue::new("code", format!("{:?}", self.code))];
        self.metrics.requests.add(1, &labels);
        self.metrics.duration.record(self.begun.elapsed().as_secs_f64(), &labels);
    }
}
