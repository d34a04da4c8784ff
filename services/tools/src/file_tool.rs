//! What the tools that work on files have in common. They run in this process and not in a
//! sandbox, so all they touch they reach through a [`Workspace`].

use std::time::Duration;

use proto::event::v1::{Payload, SandboxViolation};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    blocking,
    catalog::Run,
    error::Error,
    facts,
    files::Workspace,
    outcome::{Failure, Kind, Outcome},
};

/// How long a tool may look for something.
const LONGEST: Duration = Duration::from_secs(60);

/// Runs a tool on the files of the workspace.
pub async fn run<I: DeserializeOwned + Send + 'static>(
    input: Value,
    run: Run<'_>,
    tool: fn(I, &Workspace, &CancellationToken) -> Result<Outcome, Failure>,
) -> Outcome {
    let workspace = match Workspace::of(run.entered) {
        Ok(workspace) => workspace,
        Err(error) => return Failure::from(Error::Files(error)).into(),
    };
    run.facts.note(Payload::SandboxApplied(facts::workspace_applied(run.profile))).await;
    let done = work(input, run.patience, move |input, stop| tool(input, &workspace, stop)).await;
    let failure = match done {
        Ok(outcome) => return outcome,
        Err(failure) => failure,
    };
    if failure.kind == Kind::Sandbox {
        let (layer, detail) = (facts::WORKSPACE.into(), failure.text.clone());
        run.facts.note(Payload::SandboxViolation(SandboxViolation { layer, detail })).await;
    }
    failure.into()
}

/// Does what waits for disks, within the time there is for it.
pub async fn work<I: DeserializeOwned + Send + 'static>(
    input: Value,
    patience: Option<Duration>,
    tool: impl FnOnce(I, &CancellationToken) -> Result<Outcome, Failure> + Send + 'static,
) -> Result<Outcome, Failure> {
    let input: I = serde_json::from_value(input)
        .map_err(|error| Failure::new(Kind::Schema, error.to_string()))?;
    let limit = patience.unwrap_or(LONGEST).min(LONGEST);
    let finished = blocking::work(limit, move |stop| tool(input, stop)).await;
    finished.unwrap_or_else(|blocking::TimedOut| {
        let text = format!("not done after {} ms; ask for less", limit.as_millis());
        Err(Failure::new(Kind::Timeout, text))
    })
}

/// A change that nobody waits for any more must not happen.
pub fn unless_stopped(stop: &CancellationToken) -> Result<(), Failure> {
    match stop.is_cancelled() {
        true => Err(Failure::new(Kind::Aborted, "the call was stopped; nothing was changed")),
        false => Ok(()),
    }
}

pub fn schema(properties: Value, required: &[&str]) -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

/// The schema of a path. The kernel takes no longer one, and none with a NUL.
pub fn path(description: &str) -> Value {
    json!({
        "type": "string",
        "maxLength": 4_095,
        "pattern": r"^[^\u0000]*$",
        "description": description,
    })
}

/// What goes wrong with a file is for the model to read.
impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match &error {
            Error::PathOutside(_) => {
                let hint = "paths are relative to the workspace: `a/b`, not `/workspace/a/b`";
                Failure::new(Kind::Sandbox, format!("{error}; {hint}"))
            }
            Error::Files(cause) => Failure::new(Kind::Failed, format!("{error}: {cause}")),
            _ => Failure::new(Kind::Failed, error.to_string()),
        }
    }
}
