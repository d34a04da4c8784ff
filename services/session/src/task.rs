//! Where a task may go from where it stands. No I/O: the database applies this table under the
//! lock of the task.

use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// Recorded, and not to be started yet.
    Draft,
    Queued,
    Preparing,
    Running,
    WaitingInput,
    WaitingPermission,
    /// Another task has to be completed first.
    Blocked,
    Paused,
    Retrying,
    /// To be cancelled as soon as its turn has ended.
    Cancelling,
    Cancelled,
    TimedOut,
    Failed,
    /// The host of its attempt died.
    Lost,
    Completed,
    Archived,
}

/// What happens to a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Move {
    /// An attempt begins.
    Start,
    /// Something turns out to have to be completed first, or not any more.
    Block,
    Unblock,
    /// The turn of its attempt runs, or waits for a person.
    Run,
    AskInput,
    AskPermission,
    /// The turn of its attempt ended.
    Complete,
    Fail,
    Lose,
    TimeOut,
    Stop,
    /// Somebody wants something.
    Pause,
    Resume,
    Cancel,
    Retry,
    Archive,
}

impl Move {
    #[cfg(test)]
    pub const ALL: [Move; 16] = [
        Move::Start,
        Move::Block,
        Move::Unblock,
        Move::Run,
        Move::AskInput,
        Move::AskPermission,
        Move::Complete,
        Move::Fail,
        Move::Lose,
        Move::TimeOut,
        Move::Stop,
        Move::Pause,
        Move::Resume,
        Move::Cancel,
        Move::Retry,
        Move::Archive,
    ];

    /// The event that says it, when it leads to `to`.
    fn event(self, to: Status) -> &'static str {
        match to {
            Status::Draft => "task.updated",
            Status::Queued if self == Move::Resume => "task.resumed",
            Status::Queued => "task.queued",
            Status::Preparing => "task.started",
            Status::Running => "task.updated",
            Status::WaitingInput | Status::WaitingPermission => "task.waiting",
            Status::Blocked => "task.blocked",
            Status::Paused => "task.paused",
            Status::Retrying => "task.retrying",
            Status::Cancelling => "task.cancel_requested",
            Status::Cancelled => "task.cancelled",
            Status::TimedOut => "task.timed_out",
            Status::Failed => "task.failed",
            Status::Lost => "task.lost",
            Status::Completed => "task.completed",
            Status::Archived => "task.archived",
        }
    }

    /// From where to where, as the database looks it up.
    pub fn table(self) -> Value {
        let moves = Status::ALL.into_iter().filter_map(|from| {
            let to = from.after(self)?;
            let event = self.event(to);
            Some((from.as_str().to_owned(), json!({ "to": to.as_str(), "event": event })))
        });
        Value::Object(moves.collect::<Map<_, _>>())
    }
}

impl Status {
    pub const ALL: [Status; 16] = [
        Status::Draft,
        Status::Queued,
        Status::Preparing,
        Status::Running,
        Status::WaitingInput,
        Status::WaitingPermission,
        Status::Blocked,
        Status::Paused,
        Status::Retrying,
        Status::Cancelling,
        Status::Cancelled,
        Status::TimedOut,
        Status::Failed,
        Status::Lost,
        Status::Completed,
        Status::Archived,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Status::Draft => "draft",
            Status::Queued => "queued",
            Status::Preparing => "preparing",
            Status::Running => "running",
            Status::WaitingInput => "waiting_input",
            Status::WaitingPermission => "waiting_permission",
            Status::Blocked => "blocked",
            Status::Paused => "paused",
            Status::Retrying => "retrying",
            Status::Cancelling => "cancelling",
            Status::Cancelled => "cancelled",
            Status::TimedOut => "timed_out",
            Status::Failed => "failed",
            Status::Lost => "lost",
            Status::Completed => "completed",
            Status::Archived => "archived",
        }
    }

    pub fn parse(text: &str) -> Option<Status> {
        Status::ALL.into_iter().find(|status| status.as_str() == text)
    }

    /// An attempt is under way, as far as anybody has seen.
    fn is_active(self) -> bool {
        matches!(
            self,
            Status::Preparing | Status::Running | Status::WaitingInput | Status::WaitingPermission
        )
    }

    /// It waits to be started.
    fn waits(self) -> bool {
        matches!(self, Status::Queued | Status::Retrying)
    }

    /// It ended, and not well.
    fn went_wrong(self) -> bool {
        matches!(self, Status::Cancelled | Status::TimedOut | Status::Failed | Status::Lost)
    }

    /// The rule. None: not from here.
    pub fn after(self, what: Move) -> Option<Status> {
        let to = match what {
            Move::Start if self.waits() => Status::Preparing,
            Move::Block if self.waits() => Status::Blocked,
            Move::Unblock if self == Status::Blocked => Status::Queued,

            Move::Run if self.is_active() => Status::Running,
            Move::AskInput if self.is_active() => Status::WaitingInput,
            Move::AskPermission if self.is_active() => Status::WaitingPermission,

            // Who was cancelled stays cancelled, however the turn ended meanwhile.
            Move::Complete | Move::Fail | Move::Lose | Move::TimeOut | Move::Stop
                if self == Status::Cancelling =>
            {
                Status::Cancelled
            }
            // What was done before the pause took hold is done; what ended otherwise waits.
            Move::Complete if self.is_active() || self == Status::Paused => Status::Completed,
            Move::Fail if self.is_active() => Status::Failed,
            Move::Lose if self.is_active() => Status::Lost,
            Move::TimeOut if self.is_active() => Status::TimedOut,
            Move::Stop if self.is_active() => Status::Cancelled,

            Move::Pause if self.is_active() || self.waits() || self == Status::Blocked => {
                Status::Paused
            }
            Move::Resume if matches!(self, Status::Draft | Status::Paused) => Status::Queued,
            Move::Cancel if self.is_active() => Status::Cancelling,
            Move::Cancel
                if self.waits()
                    || matches!(self, Status::Draft | Status::Blocked | Status::Paused) =>
            {
                Status::Cancelled
            }
            Move::Retry if self.went_wrong() => Status::Retrying,
            Move::Archive if self.went_wrong() || self == Status::Completed => Status::Archived,
            _ => return None,
        };
        (to != self).then_some(to)
    }

    /// Whether a command that cannot be applied to it has been already.
    pub fn is_result_of(self, command: Move) -> bool {
        match command {
            Move::Pause => self == Status::Paused,
            Move::Cancel => matches!(self, Status::Cancelling | Status::Cancelled),
            Move::Archive => self == Status::Archived,
            Move::Resume => self.is_active() || self.waits() || self == Status::Blocked,
            _ => false,
        }
    }
}

impl Serialize for Status {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// What was seen of the turn of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen<'a> {
    /// `preparing`, `running`, `waiting_input`, `waiting_permission`, `completed`, `failed` or
    /// `cancelled`.
    pub status: &'a str,
    /// Of a turn that failed, as `turn.failed` says it.
    pub reason: &'a str,
    /// Why somebody wanted the attempt stopped, if somebody did.
    pub stopping: Option<&'a str>,
}

impl Seen<'_> {
    /// What that means for the task.
    pub fn means(&self) -> Option<Move> {
        Some(match (self.status, self.stopping) {
            ("running", _) => Move::Run,
            ("waiting_input", _) => Move::AskInput,
            ("waiting_permission", _) => Move::AskPermission,
            ("completed", _) => Move::Complete,
            ("cancelled" | "failed", Some("timed_out")) => Move::TimeOut,
            ("cancelled", _) => Move::Stop,
            ("failed", _) if self.reason == "host_restart" => Move::Lose,
            ("failed", _) => Move::Fail,
            _ => return None,
        })
    }

    /// How the attempt stands.
    pub fn attempt(&self) -> &str {
        match (self.status, self.stopping) {
            ("cancelled", Some("timed_out")) => "failed",
            (status, _) => status,
        }
    }
}

/// What the agent is asked to do: the criteria first, because the objective has the last word.
pub fn message(objective: &str, criteria: &[&str]) -> Vec<String> {
    let mut texts = Vec::new();
    if !criteria.is_empty() {
        let lines: String = criteria.iter().map(|criterion| format!("\n- {criterion}")).collect();
        texts.push(format!("This has to be true in the end:{lines}"));
    }
    texts.push(objective.to_owned());
    texts
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_table_can_be_read_aloud() {
        let mut lines = String::new();
        for what in Move::ALL {
            for from in Status::ALL {
                if let Some(to) = from.after(what) {
                    let (from, to, event) = (from.as_str(), to.as_str(), what.event(to));
                    lines += &format!("{what:?}: {from} -> {to}, {event}\n");
                }
            }
        }
        expect![[r#"
            Start: queued -> preparing, task.started
            Start: retrying -> preparing, task.started
            Block: queued -> blocked, task.blocked
            Block: retrying -> blocked, task.blocked
            Unblock: blocked -> queued, task.queued
            Run: preparing -> running, task.updated
            Run: waiting_input -> running, task.updated
            Run: waiting_permission -> running, task.updated
            AskInput: preparing -> waiting_input, task.waiting
            AskInput: running -> waiting_input, task.waiting
            AskInput: waiting_permission -> waiting_input, task.waiting
            AskPermission: preparing -> waiting_permission, task.waiting
            AskPermission: running -> waiting_permission, task.waiting
            AskPermission: waiting_input -> waiting_permission, task.waiting
            Complete: preparing -> completed, task.completed
            Complete: running -> completed, task.completed
            Complete: waiting_input -> completed, task.completed
            Complete: waiting_permission -> completed, task.completed
            Complete: paused -> completed, task.completed
            Complete: cancelling -> cancelled, task.cancelled
            Fail: preparing -> failed, task.failed
            Fail: running -> failed, task.failed
            Fail: waiting_input -> failed, task.failed
            Fail: waiting_permission -> failed, task.failed
            Fail: cancelling -> cancelled, task.cancelled
            Lose: preparing -> lost, task.lost
            Lose: running -> lost, task.lost
            Lose: waiting_input -> lost, task.lost
            Lose: waiting_permission -> lost, task.lost
            Lose: cancelling -> cancelled, task.cancelled
            TimeOut: preparing -> timed_out, task.timed_out
            TimeOut: running -> timed_out, task.timed_out
            TimeOut: waiting_input -> timed_out, task.timed_out
            TimeOut: waiting_permission -> timed_out, task.timed_out
            TimeOut: cancelling -> cancelled, task.cancelled
            Stop: preparing -> cancelled, task.cancelled
            Stop: running -> cancelled, task.cancelled
            Stop: waiting_input -> cancelled, task.cancelled
            Stop: waiting_permission -> cancelled, task.cancelled
            Stop: cancelling -> cancelled, task.cancelled
            Pause: queued -> paused, task.paused
            Pause: preparing -> paused, task.paused
            Pause: running -> paused, task.paused
            Pause: waiting_input -> paused, task.paused
            Pause: waiting_permission -> paused, task.paused
            Pause: blocked -> paused, task.paused
            Pause: retrying -> paused, task.paused
            Resume: draft -> queued, task.resumed
            Resume: paused -> queued, task.resumed
            Cancel: draft -> cancelled, task.cancelled
            Cancel: queued -> cancelled, task.cancelled
            Cancel: preparing -> cancelling, task.cancel_requested
            Cancel: running -> cancelling, task.cancel_requested
            Cancel: waiting_input -> cancelling, task.cancel_requested
            Cancel: waiting_permission -> cancelling, task.cancel_requested
            Cancel: blocked -> cancelled, task.cancelled
            Cancel: paused -> cancelled, task.cancelled
            Cancel: retrying -> cancelled, task.cancelled
            Retry: cancelled -> retrying, task.retrying
            Retry: timed_out -> retrying, task.retrying
            Retry: failed -> retrying, task.retrying
            Retry: lost -> retrying, task.retrying
            Archive: cancelled -> archived, task.archived
            Archive: timed_out -> archived, task.archived
            Archive: failed -> archived, task.archived
            Archive: lost -> archived, task.archived
            Archive: completed -> archived, task.archived
        "#]]
        .assert_eq(&lines);
    }

    #[test]
    fn what_is_seen_of_a_turn_means_something_for_its_task() {
        let mut lines = String::new();
        for status in [
            "preparing",
            "running",
            "waiting_input",
            "waiting_permission",
            "completed",
            "failed",
            "cancelled",
        ] {
            for reason in ["provider_error", "host_restart"] {
                for stopping in [None, Some("paused"), Some("timed_out")] {
                    let seen = Seen { status, reason, stopping };
                    lines += &format!(
                        "{status} {reason} {}: {:?}, attempt {}\n",
                        stopping.unwrap_or("-"),
                        seen.means(),
                        seen.attempt(),
                    );
                }
            }
        }
        expect![[r#"
            preparing provider_error -: None, attempt preparing
            preparing provider_error paused: None, attempt preparing
            preparing provider_error timed_out: None, attempt preparing
            preparing host_restart -: None, attempt preparing
            preparing host_restart paused: None, attempt preparing
            preparing host_restart timed_out: None, attempt preparing
            running provider_error -: Some(Run), attempt running
            running provider_error paused: Some(Run), attempt running
            running provider_error timed_out: Some(Run), attempt running
            running host_restart -: Some(Run), attempt running
            running host_restart paused: Some(Run), attempt running
            running host_restart timed_out: Some(Run), attempt running
            waiting_input provider_error -: Some(AskInput), attempt waiting_input
            waiting_input provider_error paused: Some(AskInput), attempt waiting_input
            waiting_input provider_error timed_out: Some(AskInput), attempt waiting_input
            waiting_input host_restart -: Some(AskInput), attempt waiting_input
            waiting_input host_restart paused: Some(AskInput), attempt waiting_input
            waiting_input host_restart timed_out: Some(AskInput), attempt waiting_input
            waiting_permission provider_error -: Some(AskPermission), attempt waiting_permission
            waiting_permission provider_error paused: Some(AskPermission), attempt waiting_permission
            waiting_permission provider_error timed_out: Some(AskPermission), attempt waiting_permission
            waiting_permission host_restart -: Some(AskPermission), attempt waiting_permission
            waiting_permission host_restart paused: Some(AskPermission), attempt waiting_permission
            waiting_permission host_restart timed_out: Some(AskPermission), attempt waiting_permission
            completed provider_error -: Some(Complete), attempt completed
            completed provider_error paused: Some(Complete), attempt completed
            completed provider_error timed_out: Some(Complete), attempt completed
            completed host_restart -: Some(Complete), attempt completed
            completed host_restart paused: Some(Complete), attempt completed
            completed host_restart timed_out: Some(Complete), attempt completed
            failed provider_error -: Some(Fail), attempt failed
            failed provider_error paused: Some(Fail), attempt failed
            failed provider_error timed_out: Some(TimeOut), attempt failed
            failed host_restart -: Some(Lose), attempt failed
            failed host_restart paused: Some(Lose), attempt failed
            failed host_restart timed_out: Some(TimeOut), attempt failed
            cancelled provider_error -: Some(Stop), attempt cancelled
            cancelled provider_error paused: Some(Stop), attempt cancelled
            cancelled provider_error timed_out: Some(TimeOut), attempt failed
            cancelled host_restart -: Some(Stop), attempt cancelled
            cancelled host_restart paused: Some(Stop), attempt cancelled
            cancelled host_restart timed_out: Some(TimeOut), attempt failed
        "#]].assert_eq(&lines);
    }

    #[test]
    fn words_are_read_as_they_are_written() {
        for status in Status::ALL {
            assert_eq!(Status::parse(status.as_str()), Some(status));
        }
        assert_eq!(Status::parse("accepted"), None);
    }

    fn status() -> impl Strategy<Value = Status> {
        prop::sample::select(Status::ALL.to_vec())
    }

    fn moves() -> impl Strategy<Value = Vec<Move>> {
        prop::collection::vec(prop::sample::select(Move::ALL.to_vec()), 0..40)
    }

    proptest! {
        #[test]
        fn whatever_happens_the_rules_hold(from in status(), moves in moves()) {
            let mut status = from;
            for what in moves {
                let Some(to) = status.after(what) else { continue };
                // Nobody gets out of the archive, and what is done stays done.
                prop_assert_ne!(status, Status::Archived);
                prop_assert!(status != Status::Completed || to == Status::Archived);
                // Only an attempt that began can end, and only a start begins one.
                if to == Status::Preparing {
                    prop_assert_eq!(what, Move::Start);
                }
                if matches!(to, Status::Failed | Status::Lost | Status::TimedOut) {
                    prop_assert!(status.is_active());
                }
                // Who wants it cancelled gets that and nothing else.
                if status == Status::Cancelling {
                    prop_assert_eq!(to, Status::Cancelled);
                }
                // Nothing that went wrong starts again unless somebody says so.
                if status.went_wrong() {
                    prop_assert!(matches!(what, Move::Retry | Move::Archive));
                }
                status = to;
            }
        }

        #[test]
        fn everything_can_be_brought_to_an_end(from in status()) {
            let cancelled = from.after(Move::Cancel).unwrap_or(from);
            let over = cancelled.after(Move::Stop).unwrap_or(cancelled);
            prop_assert!(over == Status::Archived || over.after(Move::Archive) == Some(Status::Archived));
        }
    }
}
