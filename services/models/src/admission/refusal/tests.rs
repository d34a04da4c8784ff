use expect_test::expect;

use super::*;
use crate::limit::Measure;

fn check(window: Window, counter: &str, need: i64, limit: i64) -> Check {
    let counter = counter.to_owned();
    Check { window, counter, measure: Measure::Calls, need, limit, queue_ms: 0, wait_ms: 0 }
}

#[test]
fn what_lasts_longest_is_the_reason_and_all_of_it_is_on_record() {
    let now = Moment::of("2026-11-17T19:00:00Z".parse().unwrap());
    let checks = [
        check(Window::Minute, "requests_per_minute:subject:ada", 1, 10),
        check(Window::Live, "concurrent_streams:tenant:", 1, 3),
        check(Window::Day, "tokens_per_day:model:a/b", 500, 1_000),
        check(Window::Month, "cost_micros_per_month:tenant:", 20, 100),
        check(Window::Budget, "bud_1", 20, 100),
        check(Window::Minute, "requests_per_minute:provider:a", 1, 10),
    ];
    let mut lines = String::new();
    for those in [vec![0, 1], vec![1], vec![0, 2], vec![3, 2], vec![0, 3, 4], vec![2, 5]] {
        let blocked = those.iter().map(|check| Blocked {
            check: *check,
            used: 90,
            retry_ms: if *check == 0 { 1_500 } else { 0 },
        });
        let refused = Refused::by(&checks, &blocked.collect::<Vec<_>>(), &now);
        let elsewhere = if refused.elsewhere { " (or elsewhere)" } else { "" };
        lines += &format!("{}{elsewhere}\n", refused.error);
        for fact in refused.facts {
            lines += &format!("  {} {}\n", fact.name(), fact.to_json().unwrap());
        }
    }
    expect![[r#"
        requests_per_minute for this subject is 10, and that is in use
          rate_limit.hit {"origin":"host","limit":"requests_per_minute","scope":"subject","retryAfterMs":1500}
          rate_limit.hit {"origin":"host","limit":"concurrent_streams","scope":"tenant","retryAfterMs":1000}
        concurrent_streams for this tenant is 3, and that is in use
          rate_limit.hit {"origin":"host","limit":"concurrent_streams","scope":"tenant","retryAfterMs":1000}
        the quota tokens_per_day for this model is 1000, of which 90 is used, and this call may take 500: wait until 2026-11-18T00:00:00Z, ask for fewer tokens with max_output_tokens, or have the limit raised
          quota.blocked {"quota":"tokens_per_day","scope":"model","used":"90","limit":"1000","resetTime":"2026-11-18T00:00:00+00:00"}
          rate_limit.hit {"origin":"host","limit":"requests_per_minute","scope":"subject","retryAfterMs":1500}
        the quota cost_micros_per_month for this tenant is 100, of which 90 is used, and this call may take 20: wait until 2026-12-01T00:00:00Z, ask for fewer tokens with max_output_tokens, or have the limit raised
          quota.blocked {"quota":"cost_micros_per_month","scope":"tenant","used":"90","limit":"100","resetTime":"2026-12-01T00:00:00+00:00"}
          quota.blocked {"quota":"tokens_per_day","scope":"model","used":"90","limit":"1000","resetTime":"2026-11-18T00:00:00+00:00"}
        budget bud_1 has 10 millionths left and this call may cost 20: have the budget raised, ask for fewer tokens with max_output_tokens, or use a cheaper model
          quota.blocked {"quota":"budget","scope":"bud_1","used":"90","limit":"100"}
          quota.blocked {"quota":"cost_micros_per_month","scope":"tenant","used":"90","limit":"100","resetTime":"2026-12-01T00:00:00+00:00"}
          rate_limit.hit {"origin":"host","limit":"requests_per_minute","scope":"subject","retryAfterMs":1500}
        the quota tokens_per_day for this model is 1000, of which 90 is used, and this call may take 500: wait until 2026-11-18T00:00:00Z, ask for fewer tokens with max_output_tokens, or have the limit raised (or elsewhere)
          quota.blocked {"quota":"tokens_per_day","scope":"model","used":"90","limit":"1000","resetTime":"2026-11-18T00:00:00+00:00"}
          rate_limit.hit {"origin":"host","limit":"requests_per_minute","scope":"provider","retryAfterMs":1000}
    "#]].assert_eq(&lines);
}
