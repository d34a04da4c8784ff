//! From what a clock on the wall shows to an instant, also where it skips an hour or shows one twice.

use croner::Cron;
use jiff::{
    SignedDuration, Timestamp,
    civil::DateTime,
    tz::{AmbiguousOffset, TimeZone},
};

use super::{Doubled, Skipped};

/// Which of two instants that look the same.
#[derive(Clone, Copy, PartialEq)]
enum Pass {
    First,
    Second,
}

/// The first instant after `after` at which the clock of the zone shows a time of the pattern.
pub fn next(
    cron: &Cron,
    zone: &TimeZone,
    skipped: Skipped,
    doubled: Doubled,
    after: Timestamp,
) -> Option<Timestamp> {
    let find = |pass| find(cron, zone, skipped, pass, after);
    match doubled {
        Doubled::First => find(Pass::First),
        Doubled::Second => find(Pass::Second),
        Doubled::Both => match (find(Pass::First), find(Pass::Second)) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        },
    }
}

/// As long as the pass is the same, later times on the wall are later instants, or the same one.
/// So the first that lies after `after` is found by walking along the wall.
fn find(
    cron: &Cron,
    zone: &TimeZone,
    skipped: Skipped,
    pass: Pass,
    after: Timestamp,
) -> Option<Timestamp> {
    let mut wall = start(zone, pass, after);
    loop {
        // An error says that no time on earth fits.
        wall = cron.find_next_occurrence(&wall, false).ok()?;
        match instant(zone, wall, skipped, pass) {
            Some(instant) if instant > after => return Some(instant),
            // Skipped, or shown before: the hour has an end.
            _ => {}
        }
    }
}

/// Where on the wall to start from: what it shows, or, in the first pass of an hour that comes
/// twice, so much earlier that everything is ahead that the second pass still has to show.
fn start(zone: &TimeZone, pass: Pass, after: Timestamp) -> DateTime {
    let wall = zone.to_datetime(after);
    let offset = zone.to_offset(after);
    match zone.to_ambiguous_timestamp(wall).offset() {
        AmbiguousOffset::Fold { before, after } if pass == Pass::Second && offset == before => {
            let width = i64::from(before.seconds() - after.seconds());
            wall.checked_sub(SignedDuration::from_secs(width)).unwrap_or(wall)
        }
        _ => wall,
    }
}

fn instant(zone: &TimeZone, wall: DateTime, skipped: Skipped, pass: Pass) -> Option<Timestamp> {
    match zone.to_ambiguous_timestamp(wall).offset() {
        AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(wall).ok(),
        AmbiguousOffset::Fold { before, after } => {
            let offset = if pass == Pass::First { before } else { after };
            offset.to_timestamp(wall).ok()
        }
        AmbiguousOffset::Gap { .. } if skipped == Skipped::Skip => None,
        // By the offset before, it lies at or behind the instant at which the clock jumps.
        AmbiguousOffset::Gap { before, .. } => {
            let behind = before.to_timestamp(wall).ok()?;
            let behind = behind.checked_add(SignedDuration::from_secs(1)).ok()?;
            zone.preceding(behind).next().map(|transition| transition.timestamp())
        }
    }
}
