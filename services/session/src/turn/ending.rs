//! How a turn ends before the model is done with it.

use proto::event::v1::{Payload, ToolMetadata, TurnFailed};

use super::{Effect, Ending, Outcome, Phase, Stop, Stopping, Turn, append, waits};
use crate::{
    ids::ToolCallId,
    message::{Asked, MessageStatus, Part, ToolUse},
    subagent,
};

impl Stop {
    /// The status of a turn that is stopped so, the reason, what people read, and whether the next
    /// turn would fail of the same.
    pub fn words(&self) -> (&'static str, &'static str, String, bool) {
        match self {
            Stop::Interrupted { reason, .. } if reason.is_empty() => {
                ("cancelled", "interrupted", "the turn was interrupted".to_owned(), false)
            }
            Stop::Interrupted { reason, .. } => ("cancelled", "interrupted", reason.clone(), false),
            Stop::HostRestart => (
                "failed",
                "host_restart",
                "the host restarted while the turn ran; what it said and did is kept, send a message to go on"
                    .to_owned(),
                false,
            ),
            Stop::Timeout { seconds } => (
                "failed",
                "limit",
                format!("the turn ran longer than its limit of {seconds} s"),
                true,
            ),
            Stop::Internal { message } => ("failed", "internal", message.clone(), true),
        }
    }
}

impl Ending {
    pub fn bad(status: &str, message: String, hard: bool) -> Ending {
        match (status, hard) {
            ("cancelled", _) => Ending::Cancelled,
            (_, true) => Ending::Broken { message },
            (_, false) => Ending::Failed,
        }
    }
}

impl Turn {
    /// Nothing that ran is run again. But what people are asked outlives its host, and so do
    /// children: such a turn goes on to wait, and only what ran when the host died has failed. So
    /// has what only waited for its files to be kept: nobody can tell any more.
    pub(super) fn orphaned(&mut self, effects: &mut Vec<Effect>) {
        match &mut self.phase {
            Phase::Acting(calls) | Phase::Parked(calls) if calls.iter().any(waits) => {
                self.phase = Phase::Acting(std::mem::take(calls));
                for id in self.open_calls(|tool_use| tool_use.running) {
                    self.abort(id, "host_restart", effects);
                }
                self.park(effects);
            }
            _ => self.stop(Stop::HostRestart, effects),
        }
    }

    /// Freezes everything where it is: what was said stays, what runs is told to stop.
    pub(super) fn stop(&mut self, stop: Stop, effects: &mut Vec<Effect>) {
        let (status, reason, message, hard) = stop.words();
        effects.push(Effect::StopAll);
        let subject = match stop {
            Stop::Interrupted { subject, .. } => {
                effects.push(Effect::StopChildren(Stopping::All));
                subject
            }
            _ => String::new(),
        };
        self.stop_compacting(&message, effects);
        self.end_badly(status, reason, message, subject, hard, effects);
    }

    pub(super) fn end_badly(
        &mut self,
        status: &str,
        reason: &str,
        message: String,
        subject: String,
        hard: bool,
        effects: &mut Vec<Effect>,
    ) {
        if status != "cancelled" && self.delegates() {
            effects.push(Effect::StopChildren(Stopping::OfTurn));
        }
        self.freeze(status, reason, &message, effects);
        effects.push(append(Payload::TurnFailed(TurnFailed {
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: message.clone(),
            subject,
            steps: self.model_calls() as i32,
            usage: Some(self.usage),
            cost_micros: self.cost_micros,
        })));
        self.phase = Phase::Over;
        effects.push(Effect::Finish(Ending::bad(status, message, hard)));
    }

    /// Leaves nothing open: half a text is closed, calls that did not end are errors.
    fn freeze(&mut self, status: &str, reason: &str, message: &str, effects: &mut Vec<Effect>) {
        if self.steps.is_empty() {
            return;
        }
        self.close_part(effects);
        // A child that its parent stops says so; anything else is as if a person did.
        let reason = if message == subagent::ABORTED { subagent::ABORTED } else { reason };
        for id in self.open_calls(|_| true) {
            self.abort(id, reason, effects);
        }
        let step = self.last_step();
        if step.status == MessageStatus::Streaming {
            step.status = match status {
                "cancelled" => MessageStatus::Cancelled,
                _ => MessageStatus::Failed,
            };
            effects.push(Effect::SaveMessage);
        }
    }

    fn abort(&mut self, id: ToolCallId, reason: &str, effects: &mut Vec<Effect>) {
        let delegated = self.call(id).is_some_and(|tool_use| tool_use.subagent.is_some());
        let (text, kind) = match reason {
            subagent::ABORTED => (subagent::ABORTED, "aborted"),
            // The child is told to stop.
            _ if delegated => (subagent::ABORTED, "aborted"),
            "host_restart" => ("aborted by host restart", "host_restart"),
            "interrupted" => ("aborted by the user", "aborted"),
            _ => ("aborted because the turn ended", "aborted"),
        };
        if let Some((_, tool_use)) = self.call_mut(id)
            && tool_use.asked == Some(Asked::Open)
        {
            tool_use.asked = Some(Asked::Cancelled);
        }
        let (text, kind) = (text.to_owned(), kind.to_owned());
        self.settle(id, Outcome::Error { text, kind, metadata: ToolMetadata::default() }, effects);
    }

    /// The calls of the last step that have not ended and are `wanted`.
    fn open_calls(&self, wanted: impl Fn(&ToolUse) -> bool) -> Vec<ToolCallId> {
        let parts = self.steps.last().map(|step| step.parts.as_slice()).unwrap_or_default();
        let open = parts.iter().filter_map(|part| match part {
            Part::Tool(tool_use) if !tool_use.state.is_over() && wanted(tool_use) => {
                Some(tool_use.tool_call_id)
            }
            _ => None,
        });
        open.collect()
    }
}
