//! How much a server may say. Decides and touches nothing.

use std::time::Instant;

/// A server may begin with this many messages at once.
const AT_ONCE: f64 = 1_000.0;

/// And may go on with this many every second.
const PER_SECOND: f64 = 100.0;

/// Counts messages against a limit that comes back with time.
#[derive(Debug)]
pub struct Allowance {
    left: f64,
    since: Instant,
}

impl Allowance {
    pub fn new(now: Instant) -> Allowance {
        Allowance { left: AT_ONCE, since: now }
    }

    /// Whether one more message is fine.
    pub fn take(&mut self, now: Instant) -> bool {
        let gained = now.saturating_duration_since(self.since).as_secs_f64() * PER_SECOND;
        self.left = (self.left + gained).min(AT_ONCE) - 1.0;
        self.since = now;
        self.left >= 0.0
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_flood_is_noticed_and_talk_is_not() {
        let start = Instant::now();
        let mut allowance = Allowance::new(start);
        assert!((0..1_000).all(|_| allowance.take(start)));
        assert!(!allowance.take(start));

        let mut allowance = Allowance::new(start);
        let second = |number: u64| start + Duration::from_millis(number * 10);
        assert!((0..10_000).all(|number| allowance.take(second(number))));
    }
}
