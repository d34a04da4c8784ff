//! What is counted about tools.

use std::sync::Arc;

use opentelemetry::{KeyValue, global};
use sandbox::Tier;

use crate::execute::Executor;

/// Shows what sandboxes are worth here and how many calls run, for as long as `executor` is there.
pub fn observe(executor: &Arc<Executor>, most: usize) {
    let meter = global::meter("tools");
    type Count = Box<dyn Fn(&Executor) -> u64 + Send + Sync>;
    let gauges: [(&str, &str, Count); 3] = [
        (
            "tools.sandbox.tier",
            "The tier of sandboxes here: 1 is A, 4 is D",
            Box::new(|executor| number(executor.machine.tier())),
        ),
        (
            "tools.sandbox.minimum_tier",
            "The worst tier that is good enough: 1 is A, 4 is D",
            Box::new(|executor| number(executor.minimum_tier)),
        ),
        (
            "tools.executions.running",
            "Calls of tools that run here",
            Box::new(move |executor| (most - executor.room.available_permits().min(most)) as u64),
        ),
    ];
    for (name, description, count) in gauges {
        let executor = Arc::downgrade(executor);
        meter
            .u64_observable_gauge(name)
            .with_description(description)
            .with_callback(move |gauge| {
                if let Some(executor) = executor.upgrade() {
                    gauge.observe(count(&executor), &[] as &[KeyValue]);
                }
            })
            .build();
    }
}

fn number(tier: Tier) -> u64 {
    match tier {
        Tier::A => 1,
        Tier::B => 2,
        Tier::C => 3,
        Tier::D => 4,
    }
}
