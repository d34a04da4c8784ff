use std::{fmt::Write as _, time::Duration};

use expect_test::expect;
use jiff::{
    ToSpan as _,
    tz::{AmbiguousOffset, TimeZone},
};
use proptest::prelude::*;

use super::{
    misfire::{Catch, Fired, MOST_MISSED},
    *,
};

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn schedule(when: When) -> Schedule {
    Schedule {
        when,
        time_zone: "UTC".into(),
        skipped_hour: Skipped::Next,
        doubled_hour: Doubled::First,
        misfire: Misfire::Once,
        overlap: Overlap::Queue,
        jitter_ms: 0,
        start: None,
        end: None,
    }
}

fn plan(schedule: &Schedule) -> Plan {
    Plan::new(schedule, time("2026-01-01T00:00:00Z"), None, None).unwrap()
}

fn following(plan: &Plan, after: &str, count: usize) -> Vec<Due> {
    let first = plan.next(time(after));
    std::iter::successors(first, |due| plan.next(due.at)).take(count).collect()
}

fn shown(due: &[Due]) -> String {
    let times: Vec<String> = due.iter().map(|due| due.at.to_string()).collect();
    match times.is_empty() {
        true => "never".to_owned(),
        false => times.join(" "),
    }
}

/// Both changes of the clock in two zones, by every policy.
#[test]
fn patterns_follow_the_clock_on_the_wall() {
    let berlin = "Europe/Berlin";
    let new_york = "America/New_York";
    let cases = [
        ("30 2 * * *", berlin, Skipped::Next, Doubled::First, "2026-03-28T12:00:00Z"),
        ("30 2 * * *", berlin, Skipped::Skip, Doubled::First, "2026-03-28T12:00:00Z"),
        ("0 * * * *", berlin, Skipped::Next, Doubled::First, "2026-03-29T00:30:00Z"),
        ("0 * * * *", berlin, Skipped::Skip, Doubled::First, "2026-03-29T00:30:00Z"),
        ("30 2 * * *", berlin, Skipped::Next, Doubled::First, "2026-10-24T12:00:00Z"),
        ("30 2 * * *", berlin, Skipped::Next, Doubled::Second, "2026-10-24T12:00:00Z"),
        ("30 2 * * *", berlin, Skipped::Next, Doubled::Both, "2026-10-24T12:00:00Z"),
        ("30 2 * * *", berlin, Skipped::Next, Doubled::Second, "2026-10-25T00:45:00Z"),
        ("0 * * * *", berlin, Skipped::Next, Doubled::Both, "2026-10-24T23:30:00Z"),
        ("0 * * * *", berlin, Skipped::Next, Doubled::First, "2026-10-24T23:30:00Z"),
        ("*/30 * * * *", new_york, Skipped::Next, Doubled::Both, "2026-11-01T05:15:00Z"),
        ("30 2 * * *", new_york, Skipped::Next, Doubled::First, "2026-03-07T12:00:00Z"),
        ("0 0 * * *", "Pacific/Apia", Skipped::Next, Doubled::First, "2011-12-29T12:00:00Z"),
        ("0 0 * * *", "Pacific/Apia", Skipped::Skip, Doubled::First, "2011-12-29T12:00:00Z"),
        ("*/10 * * * * *", "UTC", Skipped::Next, Doubled::First, "2026-01-01T00:00:05Z"),
        ("0 0 29 2 *", "UTC", Skipped::Next, Doubled::First, "2026-01-01T00:00:00Z"),
        ("0 9 * * MON-FRI", berlin, Skipped::Next, Doubled::First, "2026-01-02T12:00:00Z"),
        ("0 0 30 2 *", "UTC", Skipped::Next, Doubled::First, "2026-01-01T00:00:00Z"),
    ];
    let mut lines = String::new();
    for (cron, zone, skipped_hour, doubled_hour, after) in cases {
        let schedule = Schedule {
            time_zone: zone.into(),
            skipped_hour,
            doubled_hour,
            ..schedule(When::Cron(cron.into()))
        };
        let due = following(&plan(&schedule), after, 3);
        writeln!(lines, "{cron} {zone} {skipped_hour:?} {doubled_hour:?}: {}", shown(&due))
            .unwrap();
    }
    expect![[r#"
        30 2 * * * Europe/Berlin Next First: 2026-03-29T01:00:00Z 2026-03-30T00:30:00Z 2026-03-31T00:30:00Z
        30 2 * * * Europe/Berlin Skip First: 2026-03-30T00:30:00Z 2026-03-31T00:30:00Z 2026-04-01T00:30:00Z
        0 * * * * Europe/Berlin Next First: 2026-03-29T01:00:00Z 2026-03-29T02:00:00Z 2026-03-29T03:00:00Z
        0 * * * * Europe/Berlin Skip First: 2026-03-29T01:00:00Z 2026-03-29T02:00:00Z 2026-03-29T03:00:00Z
        30 2 * * * Europe/Berlin Next First: 2026-10-25T00:30:00Z 2026-10-26T01:30:00Z 2026-10-27T01:30:00Z
        30 2 * * * Europe/Berlin Next Second: 2026-10-25T01:30:00Z 2026-10-26T01:30:00Z 2026-10-27T01:30:00Z
        30 2 * * * Europe/Berlin Next Both: 2026-10-25T00:30:00Z 2026-10-25T01:30:00Z 2026-10-26T01:30:00Z
        30 2 * * * Europe/Berlin Next Second: 2026-10-25T01:30:00Z 2026-10-26T01:30:00Z 2026-10-27T01:30:00Z
        0 * * * * Europe/Berlin Next Both: 2026-10-25T00:00:00Z 2026-10-25T01:00:00Z 2026-10-25T02:00:00Z
        0 * * * * Europe/Berlin Next First: 2026-10-25T00:00:00Z 2026-10-25T02:00:00Z 2026-10-25T03:00:00Z
        */30 * * * * America/New_York Next Both: 2026-11-01T05:30:00Z 2026-11-01T06:00:00Z 2026-11-01T06:30:00Z
        30 2 * * * America/New_York Next First: 2026-03-08T07:00:00Z 2026-03-09T06:30:00Z 2026-03-10T06:30:00Z
        0 0 * * * Pacific/Apia Next First: 2011-12-30T10:00:00Z 2011-12-31T10:00:00Z 2012-01-01T10:00:00Z
        0 0 * * * Pacific/Apia Skip First: 2011-12-30T10:00:00Z 2011-12-31T10:00:00Z 2012-01-01T10:00:00Z
        */10 * * * * * UTC Next First: 2026-01-01T00:00:10Z 2026-01-01T00:00:20Z 2026-01-01T00:00:30Z
        0 0 29 2 * UTC Next First: 2028-02-29T00:00:00Z 2032-02-29T00:00:00Z 2036-02-29T00:00:00Z
        0 9 * * MON-FRI Europe/Berlin Next First: 2026-01-05T08:00:00Z 2026-01-06T08:00:00Z 2026-01-07T08:00:00Z
        0 0 30 2 * UTC Next First: never
    "#]]
    .assert_eq(&lines);
}

#[test]
fn intervals_are_counted_from_their_start() {
    let hour = When::IntervalMs(3_600_000);
    let mut schedule = schedule(hour);
    let after = "2026-01-01T00:00:00Z";
    let due = shown(&following(&plan(&schedule), after, 2));
    assert_eq!(due, "2026-01-01T01:00:00Z 2026-01-01T02:00:00Z");
    schedule.start = Some(time("2026-01-01T10:15:00Z"));
    schedule.end = Some(time("2026-01-01T12:15:00Z"));
    let due = shown(&following(&plan(&schedule), after, 9));
    assert_eq!(due, "2026-01-01T10:15:00Z 2026-01-01T11:15:00Z 2026-01-01T12:15:00Z");
}

#[test]
fn once_is_once() {
    let schedule = schedule(When::At(time("2026-01-01T10:00:00Z")));
    let due = shown(&following(&plan(&schedule), "2026-01-01T00:00:00Z", 9));
    assert_eq!(due, "2026-01-01T10:00:00Z");
    assert_eq!(plan(&schedule).next(time("2026-01-01T10:00:00Z")), None);
}

#[test]
fn a_schedule_that_expires_fires_a_last_time() {
    let mut schedule = schedule(When::Cron("0 0 * * *".into()));
    let (created, expires) = (time("2026-01-01T12:00:00Z"), time("2026-01-03T12:00:00Z"));
    let plan = Plan::new(&schedule, created, Some(expires), None).unwrap();
    let due = following(&plan, "2026-01-01T12:00:00Z", 9);
    let last: Vec<bool> = due.iter().map(|due| due.last).collect();
    assert_eq!(shown(&due), "2026-01-02T00:00:00Z 2026-01-03T00:00:00Z 2026-01-03T12:00:00Z");
    assert_eq!(last, [false, false, true]);
    // One that is due at that very moment fires once.
    let plan = Plan::new(&schedule, created, Some(time("2026-01-03T00:00:00Z")), None).unwrap();
    assert_eq!(following(&plan, "2026-01-01T12:00:00Z", 9).len(), 2);
    // One that ends before it expires is finished, and has nothing more to say.
    schedule.end = Some(time("2026-01-02T12:00:00Z"));
    let plan = Plan::new(&schedule, created, Some(expires), None).unwrap();
    assert_eq!(shown(&following(&plan, "2026-01-01T12:00:00Z", 9)), "2026-01-02T00:00:00Z");
}

#[test]
fn what_is_no_schedule_is_refused_with_the_field_at_fault() {
    let cases = [
        ("", "UTC"),
        ("* * * *", "UTC"),
        ("* * * * * * *", "UTC"),
        ("60 * * * *", "UTC"),
        ("* 24 * * *", "UTC"),
        ("a b c d e", "UTC"),
        (&"1,".repeat(200), "UTC"),
        ("0 0 * * *", "Europe/Atlantis"),
        ("0 0 * * *", "local"),
        ("0 0 * * *", "../../etc/passwd"),
    ];
    for (cron, zone) in cases {
        let schedule = Schedule { time_zone: zone.into(), ..schedule(When::Cron(cron.to_owned())) };
        let problem = Plan::new(&schedule, Timestamp::UNIX_EPOCH, None, None).unwrap_err();
        let field = if zone == "UTC" { "cron" } else { "time_zone" };
        assert_eq!(problem.field, field, "{cron:?} {zone:?}: {problem}");
    }
}

/// Thirty due times are late and one is not.
#[test]
fn what_was_missed_is_decided_by_policy() {
    let plan = plan(&schedule(When::Cron("* * * * *".into())));
    let (first, now) = (time("2026-01-01T00:01:00Z"), time("2026-01-01T00:31:30Z"));
    let due = |text: &str| Due { at: time(text), last: false };
    let catch = |policy| catch_up(&plan, first, now, Duration::from_secs(60), policy);
    let next = Some(due("2026-01-01T00:32:00Z"));
    let fresh = Fired { due: due("2026-01-01T00:31:00Z"), missed: 0, late: false };
    let dropped = Some((Due { at: first, last: false }, 29));
    assert_eq!(catch(Misfire::Skip), Catch { fired: vec![fresh], dropped, next });
    let once = Fired { due: Due { at: first, last: false }, missed: 30, late: true };
    assert_eq!(catch(Misfire::Once), Catch { fired: vec![once], dropped: None, next });
    let all = catch(Misfire::All);
    assert_eq!((all.fired.len(), all.dropped, all.next), (31, None, next));
    assert_eq!(all.fired.iter().filter(|fired| fired.late).count(), 30);
    assert!(all.fired.is_sorted_by_key(|fired| fired.due.at));
}

#[test]
fn a_long_absence_is_bounded() {
    let plan = plan(&schedule(When::Cron("* * * * * *".into())));
    let (first, now) = (time("2026-01-01T00:00:01Z"), time("2026-02-01T00:00:00Z"));
    for policy in [Misfire::Skip, Misfire::Once, Misfire::All] {
        let caught = catch_up(&plan, first, now, Duration::from_secs(60), policy);
        assert_eq!(caught.next.unwrap().at, time("2026-02-01T00:00:01Z"), "{policy:?}");
        let late = caught.fired.iter().filter(|fired| fired.late).count();
        let (fired, dropped) = match policy {
            Misfire::Skip => (0, true),
            Misfire::Once => (1, false),
            Misfire::All => (MOST_MISSED, true),
        };
        assert_eq!((late, caught.dropped.is_some()), (fired, dropped), "{policy:?}");
    }
}

#[test]
fn each_trigger_has_its_place_in_the_jitter() {
    let mut schedule = schedule(When::Cron("0 * * * *".into()));
    schedule.jitter_ms = 60_000;
    let created = time("2026-01-01T00:00:00Z");
    let places: Vec<i64> = (0..200)
        .map(|number| {
            let id = TriggerId::from_uuid(uuid::Uuid::from_u128(number));
            let plan = Plan::new(&schedule, created, None, Some(id)).unwrap();
            let due = following(&plan, "2026-01-01T00:30:00Z", 3);
            let place = |due: &Due| due.at.as_millisecond().rem_euclid(3_600_000);
            assert!(due.iter().all(|one| place(one) == place(&due[0])), "it moves");
            place(&due[0])
        })
        .collect();
    assert!(places.iter().all(|place| (0..60_000).contains(place)));
    assert!(places.iter().any(|place| *place < 10_000));
    assert!(places.iter().any(|place| *place > 50_000));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Against a slow and simple reference: an instant is due if the clock on the wall then shows
    /// a time of the pattern, and if it is the pass of a doubled hour that the policy names.
    #[test]
    fn no_due_time_is_left_out_or_made_up(
        minutes in prop_oneof![Just("*/15"), Just("0"), Just("30"), Just("7,52")],
        hours in prop_oneof![Just("*"), Just("1"), Just("2"), Just("3"), Just("1-3"), Just("*/2")],
        doubled in prop_oneof![Just(Doubled::First), Just(Doubled::Second), Just(Doubled::Both)],
        place in 0..6_usize,
        offset in 0..2_880_i64,
    ) {
        let (zone, day) = [
            ("Europe/Berlin", "2026-03-28T00:00:00Z"),
            ("Europe/Berlin", "2026-10-24T00:00:00Z"),
            ("America/New_York", "2026-03-07T00:00:00Z"),
            ("America/New_York", "2026-10-31T00:00:00Z"),
            ("Australia/Lord_Howe", "2026-04-04T00:00:00Z"),
            ("Australia/Lord_Howe", "2026-10-03T00:00:00Z"),
        ][place];
        let pattern = format!("{minutes} {hours} * * *");
        let schedule = Schedule {
            time_zone: zone.into(),
            skipped_hour: Skipped::Skip,
            doubled_hour: doubled,
            ..schedule(When::Cron(pattern.clone()))
        };
        let plan = plan(&schedule);
        let (after, cron, zone) =
            (time(day) + offset.minutes(), cron(&pattern).unwrap(), TimeZone::get(zone).unwrap());
        let is_due = |at: &Timestamp| {
            let wall = zone.to_datetime(*at);
            let pass = match zone.to_ambiguous_timestamp(wall).offset() {
                AmbiguousOffset::Fold { before, .. } => match doubled {
                    Doubled::First => zone.to_offset(*at) == before,
                    Doubled::Second => zone.to_offset(*at) != before,
                    Doubled::Both => true,
                },
                AmbiguousOffset::Unambiguous { .. } | AmbiguousOffset::Gap { .. } => true,
            };
            pass && cron.is_time_matching(&wall).unwrap()
        };
        let expected = (1..).map(|minute: i64| after + minute.minutes()).filter(is_due).take(8);
        let expected: Vec<Timestamp> = expected.collect();
        let found = following(&plan, &after.to_string(), 8);
        let found: Vec<Timestamp> = found.iter().map(|due| due.at).collect();
        prop_assert_eq!(found, expected, "{} {:?}", pattern, doubled);
    }

    /// Whatever is asked, the answer lies ahead, and asking later never gives an earlier one.
    #[test]
    fn time_goes_on(
        kind in 0..3_usize,
        jitter_ms in 0..500_000_u32,
        number: u128,
        one in 1_700_000_000_000..1_800_000_000_000_i64,
        other in 1_700_000_000_000..1_800_000_000_000_i64,
    ) {
        let when = match kind {
            0 => When::Cron("*/7 1-3 * * *".into()),
            1 => When::IntervalMs(777_000),
            _ => When::At(time("2026-06-01T00:00:00Z")),
        };
        let schedule = Schedule {
            time_zone: "America/New_York".into(),
            doubled_hour: Doubled::Both,
            jitter_ms,
            ..schedule(when)
        };
        let id = TriggerId::from_uuid(uuid::Uuid::from_u128(number));
        let created = time("2024-01-01T00:00:00Z");
        let plan = Plan::new(&schedule, created, None, Some(id)).unwrap();
        let instant = |millis| Timestamp::from_millisecond(millis).unwrap();
        let (early, late) = (instant(one.min(other)), instant(one.max(other)));
        let (first, second) = (plan.next(early), plan.next(late));
        prop_assert!(first.is_none_or(|due| due.at > early));
        match (first, second) {
            (Some(first), Some(second)) => prop_assert!(first.at <= second.at),
            (None, Some(_)) => prop_assert!(false, "it began again"),
            _ => {}
        }
    }
}
