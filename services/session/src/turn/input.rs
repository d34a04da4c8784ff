use std::time::Duration;

use proto::event::v1::{
    ActionRequired, Answer, CompactionCompleted, Event, ModelRequested, ToolMetadata, Usage,
};

use super::{Effect, Hooked, Told};
use crate::{
    ids::{MessageId, ToolCallId},
    message::{Metadata, Part},
    subagent::Spawn,
};

/// What can happen to a turn.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// A worker claimed it.
    Began { agent: String, agent_version: i32, attempt: i32 },

    /// The prompt is assembled and the model is called; its answer fills this message.
    /// The facts are what there is to know about the prompt.
    StepOpened {
        message_id: MessageId,
        request: ModelRequested,
        metadata: Metadata,
        facts: Vec<Event>,
    },
    /// The model says more.
    Text(String),
    /// The model thinks aloud.
    Reasoning { text: String, signature: String },
    /// The model begins to call a tool.
    CallStarted { id: ToolCallId, tool: String, read_only: bool },
    /// The input of the call is complete.
    CallCompleted { id: ToolCallId, input_json: String },
    /// The model is done with this step.
    Finished(Finished),
    /// The model failed.
    Failed(Failure),
    /// The rest before the next attempt is over.
    Rested,

    /// Something to put on record: routing, cost, limits.
    Fact(Event),

    /// The prompt does not fit into the model's context, and why.
    TooLarge { trigger: Trigger, why: String },
    /// What is to be summarized was chosen.
    CompactionBegan { turn_ids: Vec<String>, tokens_before: i32 },
    /// The summarizer answered once and wants its pay.
    Summarized { usage: Usage, cost_micros: i64 },
    /// The history has a summary.
    Compacted(Box<Compaction>),
    /// There is nothing that a summary would make smaller.
    NothingToCompact,

    /// What hooks say about the turn.
    Hooked(Box<Hooked>),

    /// Whether a call may run.
    Evaluated { id: ToolCallId, decision: Decision, facts: Vec<Event>, input_json: String },
    /// The files are kept as they were before a call, so what was put off for that may be done now.
    /// `fact`: what there is to put on record of it.
    Kept { id: ToolCallId, fact: Option<Box<Event>>, put_off: Box<Effect> },
    /// Something to put on record about a call that runs.
    ToolFact { id: ToolCallId, fact: Event },
    /// A call ended.
    ToolEnded { id: ToolCallId, outcome: Outcome },

    /// There is a child for a call.
    Spawned { id: ToolCallId, spawn: Box<Spawn> },
    /// A child in the background has ended.
    Told(Box<Told>),

    /// A worker goes on with a turn that waited for people or children: this is what they said.
    Resumed(Vec<(ToolCallId, Resolution)>),
    /// The worker of the turn died.
    Orphaned,
    /// Somebody or something ends the turn.
    Stopped(Stop),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Finished {
    pub finish_reason: String,
    pub usage: Usage,
    pub cost_micros: i64,
    pub provider: String,
    pub model: String,
}

/// Why history is summarized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// It outgrew the model's context.
    Auto,
    /// Somebody asked for it.
    Manual,
    /// It is too much for the model that this turn wants.
    ModelSwitch,
    /// The provider says that it is too much.
    Overflow,
}

impl Trigger {
    /// As in `CompactionStarted.trigger`.
    pub fn as_str(self) -> &'static str {
        match self {
            Trigger::Auto => "auto",
            Trigger::Manual => "manual",
            Trigger::ModelSwitch => "model_switch",
            Trigger::Overflow => "overflow",
        }
    }
}

/// A summary of what was said, as the message that holds it.
#[derive(Debug, Clone, PartialEq)]
pub struct Compaction {
    pub message_id: MessageId,
    /// The part `data-compaction`.
    pub marker: Part,
    pub completed: CompactionCompleted,
    /// With what all requests to the summarizer used.
    pub metadata: Metadata,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    /// As in `ModelFailed.kind`.
    pub kind: String,
    pub message: String,
    /// Whether it may pass.
    pub transient: bool,
    /// What the provider says about when.
    pub retry_after: Option<Duration>,
}

impl Failure {
    /// As in `TurnFailed.reason`: a budget or a quota is a limit of ours and no fault of the provider.
    pub fn reason(&self) -> &'static str {
        match self.kind.as_str() {
            "budget" => "limit",
            _ => "provider_error",
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    Allow,
    /// A person would have been asked, and a hook answered.
    Settled,
    /// A person has to say.
    Ask(Box<Asking>),
    Deny {
        reason: String,
    },
    /// Nobody could say.
    Unavailable {
        reason: String,
    },
}

/// What a person is asked about a call.
#[derive(Debug, Clone, PartialEq)]
pub struct Asking {
    pub request: ActionRequired,
    /// Of approvals: the rule that a decision for more than this call becomes.
    pub rule: Option<(String, String)>,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq)]
pub enum Resolution {
    Approved,
    Rejected {
        comment: String,
    },
    Answered(Vec<Answer>),
    /// The child that the call waited for has ended.
    Returned(Outcome),
    Expired,
    Cancelled,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    Result { data_json: String, metadata: ToolMetadata },
    Error { text: String, kind: String, metadata: ToolMetadata },
}

#[derive(Debug, Clone, PartialEq)]
pub enum Stop {
    Interrupted {
        subject: String,
        reason: String,
    },
    /// Its host is going away.
    HostRestart,
    Timeout {
        seconds: u64,
    },
    Internal {
        message: String,
    },
}
