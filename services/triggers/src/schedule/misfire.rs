//! What becomes of everything that is due by now.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::{Due, Misfire, Plan};

/// How many missed due times are looked at: more are not fired, whatever the policy says, and
/// not counted.
pub const MOST_MISSED: usize = 1_000;

/// Everything that is due, decided about.
#[derive(Debug, Clone, PartialEq)]
pub struct Catch {
    pub fired: Vec<Fired>,

    /// Due times that do not fire: the first of them, and how many more.
    pub dropped: Option<(Due, usize)>,
    pub next: Option<Due>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fired {
    pub due: Due,

    /// How many later ones this one stands for.
    pub missed: usize,

    /// It is late, and fires because the policy says so.
    pub late: bool,
}

/// Decides about what is due between `first` and `now`, both included. What is not later than
/// `grace` is not late: it fires as if nothing had happened.
pub fn catch_up(
    plan: &Plan,
    first: Timestamp,
    now: Timestamp,
    grace: Duration,
    policy: Misfire,
) -> Catch {
    let grace = SignedDuration::try_from(grace).unwrap_or(SignedDuration::MAX);
    let is_late = |due: &Due| now.duration_since(due.at) > grace;
    let mut next = before(first).and_then(|before| plan.next(before));
    let (mut late, mut fired) = (Vec::new(), Vec::new());
    while let Some(due) = next.filter(|due| due.at <= now) {
        match is_late(&due) {
            true if late.len() > MOST_MISSED => {
                // The rest is one jump, to what is not late.
                next = now.checked_sub(grace).ok().and_then(before).and_then(|at| plan.next(at));
                continue;
            }
            true => late.push(due),
            false => fired.push(Fired { due, missed: 0, late: false }),
        }
        next = plan.next(due.at);
    }
    let Some(&first) = late.first() else { return Catch { fired, dropped: None, next } };
    match policy {
        Misfire::Skip => Catch { fired, dropped: Some((first, late.len() - 1)), next },
        // One stands for all, also for what would be in time.
        Misfire::Once => {
            let missed = late.len() - 1 + fired.len();
            let last = first.last
                || fired.iter().any(|fired| fired.due.last)
                || late.iter().any(|due| due.last);
            let due = Due { last, ..first };
            Catch { fired: vec![Fired { due, missed, late: true }], dropped: None, next }
        }
        Misfire::All => {
            let surplus = late.get(MOST_MISSED).map(|&due| (due, 0));
            late.truncate(MOST_MISSED);
            let caught = late.into_iter().map(|due| Fired { due, missed: 0, late: true });
            Catch { fired: caught.chain(fired).collect(), dropped: surplus, next }
        }
    }
}

fn before(time: Timestamp) -> Option<Timestamp> {
    time.checked_sub(SignedDuration::from_nanos(1)).ok()
}
