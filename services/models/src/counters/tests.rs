use proptest::prelude::*;

use super::*;
use crate::limit::Measure;

pub fn check(window: Window, measure: Measure, need: i64, limit: i64) -> Check {
    let counter = format!("{window:?}-{measure:?}");
    Check { window, counter, measure, need, limit, queue_ms: 0, wait_ms: 0 }
}

/// What can happen to counters.
#[derive(Debug, Clone)]
enum Step {
    Admit {
        need: i64,
    },
    /// One of those under way ends with so much of what it reserved.
    Settle {
        which: usize,
        percent: i64,
    },
    Wait {
        seconds: i64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1_i64..60).prop_map(|need| Step::Admit { need }),
        3 => (any::<usize>(), 0_i64..=100).prop_map(|(which, percent)| Step::Settle { which, percent }),
        1 => (1_i64..40).prop_map(|seconds| Step::Wait { seconds }),
    ];
    prop::collection::vec(step, 1..80)
}

fn checks(need: i64) -> Vec<Check> {
    vec![
        check(Window::Live, Measure::Calls, 1, 3),
        check(Window::Minute, Measure::Calls, 1, 9),
        check(Window::Minute, Measure::Tokens, need.min(100), 100),
        check(Window::Day, Measure::Tokens, need, 400),
        check(Window::Budget, Measure::Micros, need, 300),
    ]
}

proptest! {
    /// However calls come and go, nothing is ever used beyond its limit, and when all of them have
    /// ended nothing is held.
    #[test]
    fn no_limit_is_ever_passed(steps in steps()) {
        let mut counters = Counters::default();
        let (mut second, mut open, mut admitted) = (1_000_000, Vec::new(), Vec::new());
        for step in steps {
            match step {
                Step::Wait { seconds } => second += seconds,
                Step::Admit { need } => {
                    let checks = checks(need);
                    if counters.admit(&checks, second).is_empty() {
                        open.push((checks, second, need));
                        admitted.push(second);
                    }
                }
                Step::Settle { which, percent } if !open.is_empty() => {
                    let (checks, began, need) = open.swap_remove(which % open.len());
                    let took = need * percent / 100;
                    counters.settle(&checks, began, Worst { tokens: took, micros: took }, second);
                }
                Step::Settle { .. } => (),
            }
            for check in checks(1) {
                let used = counters.used(check.window, &check.counter, second);
                prop_assert!((0..=check.limit).contains(&used), "{} of {:?}", used, check);
            }
            prop_assert_eq!(counters.used(Window::Live, "Live-Calls", second), open.len() as i64);
            // Any 60 seconds, and not only those that end now.
            let recent = admitted.iter().filter(|then| **then > second - 60);
            prop_assert!(recent.count() <= 9);
        }
        for (checks, began, _) in open {
            counters.settle(&checks, began, Worst { tokens: 0, micros: 0 }, second);
        }
        prop_assert_eq!(counters.used(Window::Live, "Live-Calls", second), 0);
        prop_assert_eq!(counters.budgets.get("Budget-Micros").map_or(0, |balance| balance.held), 0);
    }
}

#[test]
fn the_wait_that_is_told_is_enough() {
    let mut counters = Counters::default();
    let one = [check(Window::Minute, Measure::Calls, 1, 2)];
    assert_eq!(counters.admit(&one, 100), []);
    assert_eq!(counters.admit(&one, 130), []);
    let blocked = counters.admit(&one, 150);
    assert_eq!(blocked, [Blocked { check: 0, used: 2, retry_ms: 11_000 }]);
    assert_ne!(counters.admit(&one, 160), []);
    assert_eq!(counters.admit(&one, 161), []);
}
