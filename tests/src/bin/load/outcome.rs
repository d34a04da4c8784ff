//! What is printed: a Markdown table that is readable as it is.

use std::{collections::BTreeMap, time::Duration};

use local::Service;

use crate::stage::Usage;

/// How the calls of a profile did.
pub struct Outcome {
    pub count: u64,
    /// In a second.
    pub rate: f64,
    /// How long half, 95 and 99 of a hundred took at most.
    pub quantiles: [Duration; 3],
    /// What went wrong, and how often.
    pub errors: BTreeMap<String, u64>,
}

impl Outcome {
    /// Whoever was answered well may have been promised too much: what was not done is an error
    /// too.
    pub fn came_to(&mut self, done: u64) {
        let failed: u64 = self.errors.values().sum();
        let lost = self.count.saturating_sub(failed).saturating_sub(done);
        if lost > 0 {
            self.errors.insert("answered well, and came to nothing".to_owned(), lost);
        }
    }
}

pub struct Row {
    name: String,
    outcome: Outcome,
    /// Of all profiles that ran at the same time, if this is the first of them.
    used: Option<Vec<Usage>>,
}

impl Row {
    pub fn new(name: &str, outcome: Outcome, used: Option<Vec<Usage>>) -> Row {
        Row { name: name.to_owned(), outcome, used }
    }

    /// Calls that failed, and whether there were none at all.
    pub fn failures(&self) -> Vec<String> {
        let name = &self.name;
        let errors = self.outcome.errors.iter();
        let mut failures: Vec<_> =
            errors.map(|(error, count)| format!("{name}: {count} times {error}")).collect();
        if self.outcome.count == 0 {
            failures.push(format!("{name}: no call was made"));
        }
        failures
    }

    fn cells(&self) -> Vec<String> {
        let Outcome { count, rate, quantiles, errors } = &self.outcome;
        let mut cells = vec![self.name.clone(), count.to_string(), format!("{rate:.0}")];
        cells.extend(quantiles.iter().map(|time| format!("{:.1}", time.as_secs_f64() * 1000.0)));
        cells.push(errors.values().sum::<u64>().to_string());
        for service in Service::ALL {
            let used = self.used.iter().flatten().find(|usage| usage.service == service);
            cells.push(used.map_or(String::new(), |usage| {
                let mib = usage.bytes as f64 / (1024.0 * 1024.0);
                format!("{:.0} % {mib:.0} MiB", usage.cores * 100.0)
            }));
        }
        cells
    }
}

pub fn table(rows: &[Row]) -> String {
    let mut header: Vec<String> =
        ["profile", "calls", "per second", "p50 ms", "p95 ms", "p99 ms", "errors"]
            .map(str::to_owned)
            .into();
    header.extend(Service::ALL.map(|service| format!("{service} cpu, memory")));
    let cells: Vec<Vec<String>> = rows.iter().map(Row::cells).collect();
    let width = |column: usize| {
        let cells = cells.iter().chain([&header]).map(|line| line[column].chars().count());
        cells.max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let line = |cells: &[String]| {
        let padded = cells.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        format!("| {} |", padded.collect::<Vec<_>>().join(" | "))
    };
    let rule = widths.iter().enumerate().map(|(column, width)| {
        let dashes = "-".repeat(width + 1);
        if column == 0 { format!("{dashes}-") } else { format!("{dashes}:") }
    });
    let mut lines = vec![line(&header), format!("|{}|", rule.collect::<Vec<_>>().join("|"))];
    lines.extend(cells.iter().map(|cells| line(cells)));
    lines.join("\n")
}
