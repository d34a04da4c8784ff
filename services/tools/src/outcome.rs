use std::time::Duration;

use serde_json::Value;

use crate::{
    egress::{Reached, Record, Traffic},
    outputs::Kept,
};

/// How every call ends, whatever happened: the uniform envelope.
#[derive(Debug)]
pub struct Outcome {
    pub result: Result<Value, Failure>,
    pub metadata: Metadata,
}

#[derive(Debug, Default)]
pub struct Metadata {
    /// Measured around the tool, so no tool sets it.
    pub duration: Duration,

    /// The data is a preview of `output_bytes`.
    pub truncated: bool,
    pub output_bytes: u64,

    /// Where the rest is, if it was kept.
    pub kept: Option<Kept>,

    /// What hooks had to add, for the model.
    pub hook_context: String,

    /// Whom the call has reached, and what there was beside those.
    pub reached: Vec<Reached>,
    pub others: Traffic,
}

impl Metadata {
    pub fn reached(record: Record) -> Metadata {
        Metadata { reached: record.reached, others: record.others, ..Metadata::default() }
    }
}

/// What went wrong, for the model to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub kind: Kind,
    pub text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Schema,
    UnknownTool,
    Denied,
    Sandbox,
    Timeout,
    Failed,
    Aborted,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Schema => "schema",
            Kind::UnknownTool => "unknown_tool",
            Kind::Denied => "denied",
            Kind::Sandbox => "sandbox",
            Kind::Timeout => "timeout",
            Kind::Failed => "failed",
            Kind::Aborted => "aborted",
        }
    }
}

impl Failure {
    pub fn new(kind: Kind, text: impl Into<String>) -> Failure {
        Failure { kind, text: text.into() }
    }
}

/// A call that failed before there was any output.
impl From<Failure> for Outcome {
    fn from(failure: Failure) -> Outcome {
        Outcome { result: Err(failure), metadata: Metadata::default() }
    }
}
