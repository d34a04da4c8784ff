use std::time::Duration;

use proto::event::v1::{Event, ModelRequested, ToolMetadata, Usage};

use crate::{
    ids::{MessageId, ToolCallId},
    message::Metadata,
};

/// What can happen to a turn.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// A worker claimed it.
    Began { agent: String, agent_version: i32, attempt: i32 },

    /// The prompt is assembled and the model is called; its answer fills this message.
    StepOpened { message_id: MessageId, request: ModelRequested, metadata: Metadata },
    /// The model says more.
    Text(String),
    /// The model thinks aloud.
    Reasoning { text: String, signature: String },
    /// The model begins to call a tool.
    CallStarted { id: ToolCallId, tool: String },
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

    /// Whether a call may run.
    Evaluated { id: ToolCallId, decision: Decision, facts: Vec<Event>, input_json: String },
    /// Something to put on record about a call that runs.
    ToolFact { id: ToolCallId, fact: Event },
    /// A call ended.
    ToolEnded { id: ToolCallId, outcome: Outcome },

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

#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    Allow,
    Deny {
        reason: String,
    },
    /// Nobody could say.
    Unavailable {
        reason: String,
    },
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
    /// Its owner died or is going away.
    HostRestart,
    Timeout {
        seconds: u64,
    },
    Internal {
        message: String,
    },
}
