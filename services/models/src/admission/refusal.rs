//! Why a call may not be made now, in facts and in an error.

use std::time::Duration;

use proto::event::v1::{self as pb, event::Payload};

use crate::{
    counters::Blocked,
    error::Error,
    limit::{Check, Window},
    moment::Moment,
    time::to_proto,
};

/// A call that was not admitted: what goes on record, and what its caller is told.
#[derive(Debug)]
pub struct Refused {
    pub facts: Vec<Payload>,
    pub error: Error,
    /// Whether another provider or model may be asked: only limits of this one are in the way.
    pub elsewhere: bool,
}

/// When to come back where nobody knows.
const RETRY: Duration = Duration::from_secs(1);

impl Refused {
    pub fn with(error: Error) -> Refused {
        Refused { facts: Vec::new(), error, elsewhere: false }
    }

    /// The error names what lasts longest; the facts name everything that was in the way.
    pub fn by(checks: &[Check], blocked: &[Blocked], now: &Moment) -> Refused {
        let found = |one: &Blocked| Some((checks.get(one.check)?, *one));
        let mut blocked: Vec<_> = blocked.iter().filter_map(found).collect();
        blocked.sort_by_key(|(check, one)| std::cmp::Reverse((check.window, one.retry_ms)));
        let facts = blocked.iter().map(|(check, one)| match check.window {
            Window::Live | Window::Minute => {
                let (limit, scope) = check.words();
                Payload::RateLimitHit(pb::RateLimitHit {
                    origin: "host".to_owned(),
                    limit: limit.to_owned(),
                    scope: scope.to_owned(),
                    retry_after_ms: i32::try_from(retry(*one).as_millis()).unwrap_or(i32::MAX),
                })
            }
            Window::Day | Window::Month | Window::Budget => {
                Payload::QuotaBlocked(quota(check, one.used, now))
            }
        });
        let facts = facts.collect();
        let error = match blocked.first() {
            Some((check, one)) => error(check, *one, now),
            None => Error::Unavailable { dependency: "redis", retry_after: RETRY },
        };
        let elsewhere = !blocked.is_empty() && blocked.iter().all(|(check, _)| check.is_of_model());
        Refused { facts, error, elsewhere }
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        Refused::with(error)
    }
}

fn error(check: &Check, blocked: Blocked, now: &Moment) -> Error {
    let (limit, scope) = check.words();
    let (limit, scope) = (limit.to_owned(), scope.to_owned());
    let (needed, value, used) = (check.need, check.limit, blocked.used);
    match (check.window, check.window.ends(now)) {
        (Window::Budget, _) => Error::BudgetExceeded {
            budget_id: check.counter.clone(),
            remaining_micros: (value - used).max(0),
            needed_micros: needed,
        },
        (_, Some(resets_at)) => {
            Error::QuotaBlocked { quota: limit, scope, value, used, needed, resets_at }
        }
        (_, None) => Error::HostRateLimited { limit, scope, value, retry_after: retry(blocked) },
    }
}

/// A quota as facts tell it.
pub fn quota(check: &Check, used: i64, now: &Moment) -> pb::QuotaState {
    let (quota, scope) = check.words();
    pb::QuotaState {
        quota: quota.to_owned(),
        scope: scope.to_owned(),
        used,
        limit: check.limit,
        reset_time: check.window.ends(now).map(to_proto),
    }
}

fn retry(blocked: Blocked) -> Duration {
    match blocked.retry_ms {
        ..=0 => RETRY,
        known => Duration::from_millis(known.unsigned_abs()),
    }
}

#[cfg(test)]
mod tests;
