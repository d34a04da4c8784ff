//! What is counted about turns.

use std::sync::{Arc, LazyLock};

use opentelemetry::{KeyValue, global, metrics::Counter};

use crate::{host::Host, turn::Ending};

static ENDED: LazyLock<Counter<u64>> = LazyLock::new(|| {
    global::meter("session")
        .u64_counter("session.turns.ended")
        .with_description("Turns that ended here, by how")
        .build()
});

/// A turn ended, and that is stored. `reason`: as in `TurnFailed.reason`, which is one of few, or
/// `timeout`; empty where there is none.
pub fn ended(ending: &Ending, reason: &str) {
    let status = match ending {
        Ending::Completed => "completed",
        Ending::Cancelled => "cancelled",
        Ending::Failed => "failed",
        Ending::Broken { .. } => "broken",
    };
    ENDED.add(1, &[KeyValue::new("status", status), KeyValue::new("reason", reason.to_owned())]);
}

/// Shows how busy this process is, for as long as it is there.
pub fn observe(host: &Arc<Host>) {
    let meter = global::meter("session");
    type Count = fn(&Host) -> usize;
    let gauges: [(&str, &str, Count); 3] = [
        ("session.turns.running", "Turns that run here", |host| host.places.running()),
        ("session.turns.most", "How many turns may run here at once", |host| host.config.max_turns),
        ("session.turns.ready", "Sessions that waited for a worker at the last look", |host| {
            host.places.ready()
        }),
    ];
    for (name, description, count) in gauges {
        let host = Arc::downgrade(host);
        meter
            .u64_observable_gauge(name)
            .with_description(description)
            .with_callback(move |gauge| {
                if let Some(host) = host.upgrade() {
                    gauge.observe(count(&host) as u64, &[] as &[KeyValue]);
                }
            })
            .build();
    }
}
