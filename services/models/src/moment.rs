//! Days and months as limits know them: in UTC.

use jiff::{Timestamp, ToSpan as _, civil::Date, tz::TimeZone};

/// The day and the month that a time lies in, as names of counters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moment {
    pub at: Timestamp,
    /// `20261117`.
    pub day: String,
    /// `202611`.
    pub month: String,
}

impl Moment {
    pub fn of(at: Timestamp) -> Moment {
        let date = date(at);
        let (year, month, day) = (date.year(), date.month(), date.day());
        Moment {
            at,
            day: format!("{year:04}{month:02}{day:02}"),
            month: format!("{year:04}{month:02}"),
        }
    }

    pub fn second(&self) -> i64 {
        self.at.as_second()
    }

    pub fn day_began(&self) -> Timestamp {
        midnight(date(self.at))
    }

    pub fn month_began(&self) -> Timestamp {
        midnight(date(self.at).first_of_month())
    }

    pub fn day_ends(&self) -> Timestamp {
        midnight(date(self.at).saturating_add(1.day()))
    }

    pub fn month_ends(&self) -> Timestamp {
        midnight(date(self.at).first_of_month().saturating_add(1.month()))
    }
}

fn date(at: Timestamp) -> Date {
    at.to_zoned(TimeZone::UTC).date()
}

fn midnight(date: Date) -> Timestamp {
    // UTC has every midnight; only the end of all time has none.
    date.to_zoned(TimeZone::UTC).map(|zoned| zoned.timestamp()).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_months_end_at_midnight_in_utc() {
        for (at, day, month, day_ends, month_ends) in [
            (
                "2026-11-17T19:00:00Z",
                "20261117",
                "202611",
                "2026-11-18T00:00:00Z",
                "2026-12-01T00:00:00Z",
            ),
            (
                "2026-12-31T23:59:59.999Z",
                "20261231",
                "202612",
                "2027-01-01T00:00:00Z",
                "2027-01-01T00:00:00Z",
            ),
            (
                "2028-02-29T00:00:00Z",
                "20280229",
                "202802",
                "2028-03-01T00:00:00Z",
                "2028-03-01T00:00:00Z",
            ),
            (
                "2026-11-18T00:30:00+02:00",
                "20261117",
                "202611",
                "2026-11-18T00:00:00Z",
                "2026-12-01T00:00:00Z",
            ),
        ] {
            let moment = Moment::of(at.parse().unwrap());
            assert_eq!((&*moment.day, &*moment.month), (day, month), "{at}");
            assert_eq!(moment.day_ends().to_string(), day_ends, "{at}");
            assert_eq!(moment.month_ends().to_string(), month_ends, "{at}");
            assert!(moment.month_began() <= moment.day_began() && moment.day_began() <= moment.at);
        }
    }
}
