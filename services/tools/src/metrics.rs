//! What is counted about tools.

use std::{path::Path, sync::Arc};

use opentelemetry::{KeyValue, global};
use rustix::fs::{StatVfs, statvfs};
use sandbox::Tier;

use crate::execute::Executor;

/// Shows what sandboxes are worth here and how many calls run, for as long as `executor` is there.
pub fn observe(executor: &Arc<Executor>) {
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
            Box::new(|executor| executor.room.taken() as u64),
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

/// Shows how large the disk of workspaces is, and how much of it nobody uses.
pub fn observe_disk(folder: &Path) {
    let meter = global::meter("tools");
    type Bytes = fn(&StatVfs) -> u64;
    let gauges: [(&str, &str, Bytes); 2] = [
        ("tools.disk.bytes", "How large the disk of workspaces is", |disk| {
            disk.f_blocks * disk.f_frsize
        }),
        ("tools.disk.free_bytes", "How much of the disk of workspaces is free for us", |disk| {
            disk.f_bavail * disk.f_frsize
        }),
    ];
    for (name, description, bytes) in gauges {
        let folder = folder.to_owned();
        meter
            .u64_observable_gauge(name)
            .with_description(description)
            .with_callback(move |gauge| {
                if let Ok(disk) = statvfs(&folder) {
                    gauge.observe(bytes(&disk), &[] as &[KeyValue]);
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
