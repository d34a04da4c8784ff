use std::time::Duration;

use proto::event::v1::{Event, Usage};

use super::{Asking, Trigger};
use crate::{
    hook,
    ids::{MessageId, SubagentId, ToolCallId},
    subagent::Spawn,
};

/// What a turn wants done. The driver does it in this order.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Put this on record; ids of session and turn are filled in later.
    Append(Box<Event>),
    /// Store the last step's message as it is now.
    SaveMessage,
    /// Store this part of the last step as it is after the move. So it follows the deltas of
    /// the move: a part that holds a text which is appended after it would say it twice.
    SavePart(usize),
    /// Add to the session's sums.
    Spend { usage: Usage, cost_micros: i64 },
    /// Assemble the prompt and call the model; in a new message, or again for one.
    OpenStep { message_id: Option<MessageId>, attempt: u32 },
    /// Summarize the history.
    Compact { trigger: Trigger, attempt: u32 },
    /// Wait before the next attempt, and say why.
    Rest { delay: Duration, message: String },
    /// Ask whether this call may run.
    Evaluate(ToolCallId),
    /// Commit everything so far, then ask hooks about the turn. `stops`: how often they have sent
    /// the model on.
    RunHooks { event: hook::Event, stops: usize },
    /// Commit everything so far, then run this call. `approved`: a person or a hook allowed it.
    Execute { id: ToolCallId, approved: bool },
    /// Find the child that this call asks for, and whether there may be one.
    Spawn(ToolCallId),
    /// Store that there is a child, and have its session made.
    Delegate(Box<Spawn>),
    /// Store that the conversation says how this child has ended.
    Tell(SubagentId),
    /// Have children stop.
    StopChildren(Stopping),
    /// Store that a person is asked about this call.
    Ask { id: ToolCallId, asking: Box<Asking> },
    /// Commit everything so far, and let go of the session until people have answered and
    /// children have ended.
    Park,
    /// Drop whatever runs: model, tools, rest.
    StopAll,
    /// Commit the end and let go of the session.
    Finish(Ending),
}

/// Which children.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopping {
    /// Those that calls of this turn wait for.
    OfTurn,
    /// All of them, and all below them.
    All,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Ending {
    Completed,
    Cancelled,
    /// It failed, and the queue goes on.
    Failed,
    /// It failed in a way that the next turn would share; the queue waits for a person.
    Broken {
        message: String,
    },
}

/// Doubles with every attempt. The driver adds the jitter.
pub fn backoff(attempt: u32) -> Duration {
    let factor = 1 << attempt.saturating_sub(1).min(6);
    Duration::from_millis(500) * factor
}
