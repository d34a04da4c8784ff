//! When a schedule fires. A pure function of the schedule and of the time before: no clock, no
//! I/O, no randomness.

mod civil;
mod misfire;
#[cfg(test)]
mod tests;

use croner::{
    Cron,
    parser::{CronParser, Seconds, Year},
};
use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

pub use misfire::catch_up;

use crate::ids::TriggerId;

/// A schedule as its creator wrote it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    pub when: When,

    /// An IANA name.
    pub time_zone: String,
    pub skipped_hour: Skipped,
    pub doubled_hour: Doubled,
    pub misfire: Misfire,
    pub overlap: Overlap,
    pub jitter_ms: u32,
    pub start: Option<Timestamp>,
    pub end: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    Cron(String),
    IntervalMs(i64),
    At(Timestamp),
}

/// What becomes of a time that the clock skips.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Skipped {
    /// It fires when the clock goes on.
    #[default]
    Next,
    Skip,
}

/// Which of two equal times of the clock fires.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Doubled {
    #[default]
    First,
    Second,
    Both,
}

/// What becomes of due times that nobody fired in time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Misfire {
    Skip,
    #[default]
    Once,
    All,
}

/// What a firing does when the turn of the one before still runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    #[default]
    Queue,
    Skip,
    CancelPrevious,
}

/// A due time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    pub at: Timestamp,

    /// The schedule expires with it.
    pub last: bool,
}

/// Why a schedule is none, and the field at fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct Problem {
    pub field: &'static str,
    pub problem: String,
}

/// A schedule that can be asked.
#[derive(Debug, Clone)]
pub struct Plan {
    when: Beat,
    zone: TimeZone,
    skipped: Skipped,
    doubled: Doubled,

    /// The trigger's own place in the time over which its like are spread.
    offset: SignedDuration,
    start: Option<Timestamp>,
    end: Option<Timestamp>,
    expires: Option<Timestamp>,
}

#[derive(Debug, Clone)]
enum Beat {
    Cron(Box<Cron>),
    Interval { anchor: Timestamp, step_ms: i64 },
    At(Timestamp),
}

impl Schedule {
    /// One time only.
    pub fn is_once(&self) -> bool {
        matches!(self.when, When::At(_))
    }
}

impl Plan {
    /// `created` is what intervals without a start are counted from.
    pub fn new(
        schedule: &Schedule,
        created: Timestamp,
        expires: Option<Timestamp>,
        id: Option<TriggerId>,
    ) -> Result<Plan, Problem> {
        let when = match &schedule.when {
            When::Cron(text) => Beat::Cron(Box::new(cron(text)?)),
            When::IntervalMs(step_ms) => {
                Beat::Interval { anchor: schedule.start.unwrap_or(created), step_ms: *step_ms }
            }
            When::At(at) => Beat::At(*at),
        };
        Ok(Plan {
            when,
            zone: zone(&schedule.time_zone)?,
            skipped: schedule.skipped_hour,
            doubled: schedule.doubled_hour,
            offset: SignedDuration::from_millis(
                id.map_or(0, |id| place(id, schedule.jitter_ms)).into(),
            ),
            start: schedule.start,
            end: schedule.end,
            expires,
        })
    }

    /// The first due time after `after`. A schedule that expires fires a last time when it does.
    pub fn next(&self, after: Timestamp) -> Option<Due> {
        if self.expires.is_some_and(|expires| after >= expires) {
            return None;
        }
        let due = self.regular(after).map(|at| Due { at, last: false });
        match (due, self.expires) {
            (Some(due), Some(expires)) if due.at < expires => Some(due),
            // Without anything before its end it is finished, and needs no last word.
            (None, _) => None,
            (Some(_), Some(expires)) => Some(Due { at: expires, last: true }),
            (due, None) => due,
        }
    }

    /// The same without an end by expiry.
    fn regular(&self, after: Timestamp) -> Option<Timestamp> {
        let mut after = after.checked_sub(self.offset).ok()?;
        if let Some(start) = self.start {
            after = after.max(start.checked_sub(NANOSECOND).ok()?);
        }
        let at = match &self.when {
            Beat::Cron(cron) => civil::next(cron, &self.zone, self.skipped, self.doubled, after)?,
            Beat::Interval { anchor, step_ms } => interval(*anchor, *step_ms, after)?,
            Beat::At(at) if *at > after => *at,
            Beat::At(_) => return None,
        };
        match self.end {
            Some(end) if at > end => None,
            _ => at.checked_add(self.offset).ok(),
        }
    }
}

const NANOSECOND: SignedDuration = SignedDuration::from_nanos(1);

/// The first multiple of a step from the anchor on that lies after `after`.
fn interval(anchor: Timestamp, step_ms: i64, after: Timestamp) -> Option<Timestamp> {
    if after < anchor {
        return Some(anchor);
    }
    let passed = after.duration_since(anchor).as_millis() / i128::from(step_ms);
    let ahead = i64::try_from((passed + 1).checked_mul(i128::from(step_ms))?).ok()?;
    anchor.checked_add(SignedDuration::from_millis(ahead)).ok()
}

/// Where a trigger has its place in a time of `jitter_ms`: always the same one, and those of many
/// are all over it.
fn place(id: TriggerId, jitter_ms: u32) -> u32 {
    let digest = Sha256::digest(id.uuid().as_bytes());
    let number = u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]);
    number.checked_rem(jitter_ms).unwrap_or(0)
}

/// Five fields, or six with seconds first.
fn cron(text: &str) -> Result<Cron, Problem> {
    let wrong = |problem: String| Problem { field: "cron", problem };
    if text.len() > LONGEST_CRON {
        return Err(wrong(format!("at most {LONGEST_CRON} characters")));
    }
    let parser = CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build();
    parser.parse(text).map_err(|error| wrong(format!("is no cron expression: {error}")))
}

const LONGEST_CRON: usize = 200;

fn zone(name: &str) -> Result<TimeZone, Problem> {
    let wrong =
        || Problem { field: "time_zone", problem: format!("{name:?} is no IANA time zone") };
    // What depends on the machine is not a place on earth.
    if name.eq_ignore_ascii_case("local") || name.len() > 100 {
        return Err(wrong());
    }
    TimeZone::get(name).map_err(|_| wrong())
}
