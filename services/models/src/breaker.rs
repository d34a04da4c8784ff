//! A circuit breaker: who fails again and again is left alone for a while, and then tried
//! by one request before all others come back. Without a clock: whoever asks says the time.

use std::time::Duration;

/// Time since some beginning.
pub type Moment = Duration;

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Breaker {
    Closed {
        /// In a row.
        failures: u32,
    },
    Open {
        until: Moment,
        /// How often it was opened in a row.
        times: u32,
    },
    /// One request is under way that decides.
    HalfOpen { since: Moment, times: u32 },
}

/// What a breaker looks like from outside.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum State {
    #[default]
    Closed,
    Open,
    HalfOpen,
}

/// The right to try. Its holder says how it went.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Permit {
    /// When a request that decides began; `None` for one among many.
    probe: Option<Moment>,
}

impl Permit {
    /// Whether how it goes says if others may follow.
    pub fn decides(self) -> bool {
        self.probe.is_some()
    }
}

/// One failure is chance, and so may be two.
const FAILURES: u32 = 5;

const FIRST_REST: Duration = Duration::from_secs(5);
const LONGEST_REST: Duration = Duration::from_secs(60);

impl Default for Breaker {
    fn default() -> Breaker {
        Breaker::Closed { failures: 0 }
    }
}

impl Breaker {
    pub fn state(&self, now: Moment) -> State {
        match *self {
            Breaker::Closed { .. } => State::Closed,
            Breaker::Open { until, .. } if now < until => State::Open,
            Breaker::Open { .. } | Breaker::HalfOpen { .. } => State::HalfOpen,
        }
    }

    /// How long nobody is let through, if nobody is.
    pub fn rest(&self, now: Moment) -> Option<Duration> {
        match *self {
            Breaker::Closed { .. } => None,
            Breaker::Open { until, .. } => until.checked_sub(now).filter(|rest| !rest.is_zero()),
            Breaker::HalfOpen { .. } => Some(FIRST_REST),
        }
    }

    /// Lets a request through, or does not.
    pub fn begin(&mut self, now: Moment) -> Option<Permit> {
        match *self {
            Breaker::Closed { .. } => Some(Permit { probe: None }),
            Breaker::Open { until, times } if now >= until => {
                *self = Breaker::HalfOpen { since: now, times };
                Some(Permit { probe: Some(now) })
            }
            Breaker::Open { .. } | Breaker::HalfOpen { .. } => None,
        }
    }

    pub fn succeeded(&mut self, permit: Permit) {
        match *self {
            Breaker::Closed { .. } => *self = Breaker::default(),
            Breaker::HalfOpen { since, .. } if permit.probe == Some(since) => {
                *self = Breaker::default();
            }
            // It began before the trouble and says nothing about now.
            Breaker::Open { .. } | Breaker::HalfOpen { .. } => (),
        }
    }

    pub fn failed(&mut self, permit: Permit, now: Moment) {
        match *self {
            Breaker::Closed { failures } if failures + 1 < FAILURES => {
                *self = Breaker::Closed { failures: failures + 1 };
            }
            Breaker::Closed { .. } => *self = Breaker::Open { until: now + FIRST_REST, times: 1 },
            Breaker::HalfOpen { since, times } if permit.probe == Some(since) => {
                let rest = FIRST_REST * 2_u32.saturating_pow(times.min(8));
                let until = now + rest.min(LONGEST_REST);
                *self = Breaker::Open { until, times: times + 1 };
            }
            Breaker::Open { .. } | Breaker::HalfOpen { .. } => (),
        }
    }

    /// The request was given up, and nobody knows how it would have gone.
    pub fn abandoned(&mut self, permit: Permit) {
        if let Breaker::HalfOpen { since, times } = *self
            && permit.probe == Some(since)
        {
            *self = Breaker::Open { until: since, times };
        }
    }
}

impl State {
    pub fn as_str(self) -> &'static str {
        match self {
            State::Closed => "closed",
            State::Open => "open",
            State::HalfOpen => "half_open",
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn who_keeps_failing_rests_longer_each_time() {
        let (mut breaker, mut now) = (Breaker::default(), Duration::ZERO);
        for _ in 0..FAILURES {
            assert_eq!(breaker.state(now), State::Closed);
            let permit = breaker.begin(now).unwrap();
            breaker.failed(permit, now);
        }
        for rest in [5, 10, 20, 40, 60, 60] {
            assert_eq!((breaker.state(now), breaker.begin(now)), (State::Open, None));
            assert_eq!(breaker.rest(now), Some(SECOND * rest));
            now += SECOND * rest;
            assert_eq!(breaker.state(now), State::HalfOpen);
            let probe = breaker.begin(now).unwrap();
            assert_eq!(breaker.begin(now), None);
            breaker.failed(probe, now);
        }
        now += LONGEST_REST;
        let probe = breaker.begin(now).unwrap();
        breaker.abandoned(probe);
        let probe = breaker.begin(now).unwrap();
        breaker.succeeded(probe);
        assert_eq!(breaker, Breaker::default());
    }

    #[derive(Debug, Clone)]
    enum Act {
        Begin,
        Succeed(usize),
        Fail(usize),
        Abandon(usize),
        Wait(u64),
    }

    fn act() -> impl Strategy<Value = Act> {
        prop_oneof![
            4 => Just(Act::Begin),
            1 => any::<usize>().prop_map(Act::Succeed),
            4 => any::<usize>().prop_map(Act::Fail),
            1 => any::<usize>().prop_map(Act::Abandon),
            2 => (0_u64..20_000).prop_map(Act::Wait),
        ]
    }

    proptest! {
        /// However requests overlap: never two that decide at once, never one before the
        /// rest is over, and whoever is left alone is tried again some day.
        #[test]
        fn one_request_decides_and_nobody_rests_forever(acts in prop::collection::vec(act(), 0..200)) {
            let (mut breaker, mut now) = (Breaker::default(), Duration::ZERO);
            let mut under_way: Vec<Permit> = Vec::new();
            for act in acts {
                let take = |list: &mut Vec<Permit>, index: usize| {
                    (!list.is_empty()).then(|| list.swap_remove(index % list.len()))
                };
                match act {
                    Act::Begin => {
                        let rest = breaker.rest(now);
                        let permit = breaker.begin(now);
                        prop_assert_eq!(permit.is_none(), rest.is_some());
                        under_way.extend(permit);
                    }
                    Act::Succeed(index) => {
                        let Some(permit) = take(&mut under_way, index) else { continue };
                        breaker.succeeded(permit);
                    }
                    Act::Fail(index) => {
                        let Some(permit) = take(&mut under_way, index) else { continue };
                        breaker.failed(permit, now);
                    }
                    Act::Abandon(index) => {
                        let Some(permit) = take(&mut under_way, index) else { continue };
                        breaker.abandoned(permit);
                    }
                    Act::Wait(milliseconds) => now += Duration::from_millis(milliseconds),
                }
                let deciding = under_way.iter().filter(|permit| permit.probe.is_some()).count();
                prop_assert!(deciding <= 1);
                prop_assert_eq!(deciding == 1, matches!(breaker, Breaker::HalfOpen { .. }));
            }
            for permit in under_way {
                breaker.abandoned(permit);
            }
            prop_assert!(breaker.begin(now + LONGEST_REST).is_some());
        }
    }
}
