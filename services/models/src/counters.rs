//! Counters of a tenant in memory: what the scripts keep in Redis, and by the same rules.
//!
//! They are what Redis is filled with after a loss, and what a process decides by when it has to
//! do without Redis. The scripts are tested against them.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::{
    limit::{Check, Governance, Measure, Window, Worst, counter},
    moment::Moment,
    request::{Past, Row},
};

/// A request of the first instant and one of the last of 60 seconds lie in 61 seconds of the clock.
pub const MINUTE: i64 = 61;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Counters {
    pub live: BTreeMap<String, i64>,
    /// By second.
    pub minute: BTreeMap<String, BTreeMap<i64, i64>>,
    pub day: BTreeMap<String, i64>,
    pub month: BTreeMap<String, i64>,
    pub budgets: BTreeMap<String, Balance>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Balance {
    pub spent: i64,
    pub held: i64,
}

/// Why a call has to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocked {
    /// Which of the checks.
    pub check: usize,
    pub used: i64,
    /// When there will be room for sure; zero: nobody knows.
    pub retry_ms: i64,
}

impl Counters {
    /// Counts what is on record.
    pub fn of(governance: &Governance, past: &Past, now: &Moment) -> Counters {
        let mut counters = Counters::default();
        for budget in &past.budgets {
            let purse = Balance { spent: budget.spent_micros, held: 0 };
            counters.budgets.insert(budget.id.to_string(), purse);
        }
        for (window, sum) in past.sums() {
            for (name, scope, key, _) in governance.governing(&sum.subject) {
                if name.window() == window {
                    let amount = sum.amount(name.measure());
                    let counter = counter(name, scope, key);
                    counters.add(window, &counter, sum.second, amount);
                }
            }
        }
        for row in &past.running {
            let began = Moment::of(row.started_at);
            for check in row.checks(governance) {
                if check.window.counts(&began, now) {
                    counters.add(check.window, &check.counter, began.second(), check.need);
                }
            }
        }
        counters
    }

    /// Reserves what the checks need, or says what is in the way.
    pub fn admit(&mut self, checks: &[Check], second: i64) -> Vec<Blocked> {
        let mut blocked = Vec::new();
        for (index, check) in checks.iter().enumerate() {
            let used = self.used(check.window, &check.counter, second);
            if used + check.need > check.limit {
                let retry_ms = match check.window {
                    Window::Minute => self.room_in(check, used, second),
                    _ => 0,
                };
                blocked.push(Blocked { check: index, used, retry_ms });
            }
        }
        if blocked.is_empty() {
            for check in checks {
                self.add(check.window, &check.counter, second, check.need);
            }
        }
        blocked
    }

    /// Replaces what was reserved in `second` by what it was.
    pub fn settle(&mut self, checks: &[Check], second: i64, actual: Worst, now: i64) {
        for check in checks {
            let real = actual.of(check.measure) - check.need;
            match (check.window, check.measure) {
                (Window::Live, _) => self.add(Window::Live, &check.counter, second, -1),
                (Window::Budget, _) => {
                    let purse = self.budgets.entry(check.counter.clone()).or_default();
                    purse.held -= check.need;
                    purse.spent += actual.micros;
                }
                (Window::Minute, Measure::Calls) => (),
                (Window::Minute, _) if second <= now - MINUTE => (),
                (window, _) => self.add(window, &check.counter, second, real),
            }
        }
    }

    pub fn used(&self, window: Window, counter: &str, second: i64) -> i64 {
        match window {
            Window::Live => self.live.get(counter).copied().unwrap_or_default(),
            Window::Day => self.day.get(counter).copied().unwrap_or_default(),
            Window::Month => self.month.get(counter).copied().unwrap_or_default(),
            Window::Budget => {
                let Balance { spent, held } =
                    self.budgets.get(counter).copied().unwrap_or_default();
                spent + held
            }
            Window::Minute => match self.minute.get(counter) {
                Some(seconds) => {
                    seconds.range(second - MINUTE + 1..).map(|(_, amount)| amount).sum()
                }
                None => 0,
            },
        }
    }

    /// Milliseconds until enough of the minute has passed.
    fn room_in(&self, check: &Check, used: i64, second: i64) -> i64 {
        let mut left = used;
        for (then, amount) in self
            .minute
            .get(&check.counter)
            .into_iter()
            .flat_map(|seconds| seconds.range(second - MINUTE + 1..))
        {
            left -= amount;
            if left + check.need <= check.limit {
                return (then + MINUTE - second) * 1000;
            }
        }
        MINUTE * 1000
    }

    fn add(&mut self, window: Window, counter: &str, second: i64, amount: i64) {
        let counter = counter.to_owned();
        match window {
            Window::Live => *self.live.entry(counter).or_default() += amount,
            Window::Day => *self.day.entry(counter).or_default() += amount,
            Window::Month => *self.month.entry(counter).or_default() += amount,
            Window::Budget => self.budgets.entry(counter).or_default().held += amount,
            Window::Minute => {
                *self.minute.entry(counter).or_default().entry(second).or_default() += amount;
            }
        }
    }
}

impl Window {
    /// When everybody begins anew, where they do together.
    pub fn ends(self, now: &Moment) -> Option<Timestamp> {
        match self {
            Window::Day => Some(now.day_ends()),
            Window::Month => Some(now.month_ends()),
            Window::Live | Window::Minute | Window::Budget => None,
        }
    }

    /// Whether what began then still counts now.
    pub fn counts(self, began: &Moment, now: &Moment) -> bool {
        match self {
            Window::Live | Window::Budget => true,
            Window::Minute => began.second() > now.second() - MINUTE,
            Window::Day => began.day == now.day,
            Window::Month => began.month == now.month,
        }
    }
}

impl Row {
    /// What this request holds, by today's rules.
    pub fn checks(&self, governance: &Governance) -> Vec<Check> {
        // A budget is never removed, so a request that holds some of one finds it.
        let budget = self.budget_id.and_then(|id| governance.budget(Some(id)).ok().flatten());
        governance.checks(&self.subject(), self.worst(), budget)
    }
}

#[cfg(test)]
mod tests;
