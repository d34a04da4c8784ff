use std::time::Duration;

use futures::{FutureExt as _, future::BoxFuture};
use proto::event::v1::Payload;
use sandbox::{Child, Error, Exit, Program};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    io::AsyncReadExt as _,
    time::{MissedTickBehavior, interval, timeout},
};

use crate::{
    catalog::{About, Effect, Run, Tool},
    egress::{Egress, Proxy, Record},
    facts,
    outcome::{Failure, Kind, Metadata, Outcome},
    printed::Printed,
    progress::Progress,
};

/// Runs a command line in the workspace.
pub struct Bash;

/// What a command may take if the model does not say.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(120);
const LONGEST_TIMEOUT_MS: u64 = 3_600_000;

/// How much output a model gets to see.
const PREVIEW_BYTES: usize = 32 * 1024;

/// What is said where hosts were granted and cannot be.
const NO_DOOR: &str = "the granted hosts cannot be reached: without a network namespace nothing \
    would keep the command from reaching others";

/// The kernel takes no longer argument.
const LONGEST_COMMAND: usize = 100_000;

#[derive(Deserialize)]
struct Input {
    command: String,
    timeout_ms: Option<u64>,
}

impl Tool for Bash {
    fn about(&self) -> About {
        About {
            name: "bash".into(),
            description: "Runs a command with `bash -c` in the workspace and returns what it \
                printed (standard output and error in order) and its exit code. There is no \
                network, except that hosts which were granted to you are reached over HTTP and \
                HTTPS by programs that use the proxy in HTTP_PROXY and HTTPS_PROXY, as most do \
                by themselves. Only the workspace is kept between calls; /tmp is empty each \
                time. Processes that are left running end with the command. Of long output the \
                beginning and the end are returned."
                .into(),
            input_schema: json!({
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "type": "object",
                "properties": {
                    "command": {
                        "type": "string",
                        "minLength": 1,
                        "maxLength": LONGEST_COMMAND,
                        "description": "The command line.",
                    },
                    "timeout_ms": {
                        "type": "integer",
                        "minimum": 1,
                        "maximum": LONGEST_TIMEOUT_MS,
                        "description": "When to give up and end it. Default: 120000.",
                    },
                    "description": {
                        "type": "string",
                        "maxLength": 200,
                        "description": "What the command does, in a few words, for people.",
                    },
                },
                "required": ["command"],
                "additionalProperties": false,
            }),
            effect: Effect::Destroys,
            command: Some("command"),
            path: None,
            url: None,
        }
    }

    fn run<'a>(&'a self, input: Value, run: Run<'a>) -> BoxFuture<'a, Outcome> {
        execute(input, run).boxed()
    }
}

async fn execute(input: Value, run: Run<'_>) -> Outcome {
    let input: Input = match serde_json::from_value(input) {
        Ok(input) => input,
        Err(error) => return Failure::new(Kind::Schema, error.to_string()).into(),
    };
    let limit = limit(input.timeout_ms, run.patience);
    let program = Program::bash(&input.command);
    let egress = Egress::for_call(run.gateway, &run.facts.call().permissions.hosts);
    let profile = egress.as_ref().map_or(run.profile.clone(), |egress| egress.profile(run.profile));
    let mut child = match run.sandbox.spawn(&profile, run.workspace, &program).await {
        Ok(child) => child,
        Err(error) => return Failure::new(Kind::Sandbox, explain(&error)).into(),
    };
    let granted = egress.is_some();
    let proxy = match (egress, child.proxy.take()) {
        (Some(egress), Some(door)) => match egress.start(door) {
            Ok(proxy) => Some(proxy),
            Err(error) => return Failure::new(Kind::Failed, format!("no proxy: {error}")).into(),
        },
        _ => None,
    };
    let hosts = proxy.as_ref().map(Proxy::hosts).unwrap_or_default();
    let applied = facts::sandbox_applied(&child.report, &profile, hosts, limit, PREVIEW_BYTES);
    run.facts.note(Payload::SandboxApplied(applied)).await;
    if granted && proxy.is_none() {
        run.facts.note(Payload::ToolProgress(facts::remark(NO_DOOR))).await;
    }

    let mut printed = Printed::new(&run, PREVIEW_BYTES);
    let ended = timeout(limit, follow(&mut child, &mut printed)).await;
    let _ = child.kill().await;
    for violation in &child.violations {
        let violation = facts::sandbox_violation(violation);
        run.facts.note(Payload::SandboxViolation(violation)).await;
    }
    let record = match proxy {
        Some(proxy) => proxy.finish().await,
        None => Record::default(),
    };
    run.facts.note_refusals(&record).await;
    let (output, kept) = printed.finish().await;
    let metadata = Metadata {
        truncated: output.truncated(),
        output_bytes: output.total(),
        kept,
        ..Metadata::reached(record)
    };
    let result = match ended {
        Ok(Ok(exit)) => Ok(data(exit, output.preview())),
        Ok(Err(error)) => Err(Failure::new(Kind::Failed, explain(&error))),
        Err(_) => {
            let (limit, output) = (limit.as_millis(), output.preview());
            let text = format!("ended after {limit} ms; until then it printed:\n{output}");
            Err(Failure::new(Kind::Timeout, text))
        }
    };
    Outcome { result, metadata }
}

/// The shortest of what the model, the caller and the contract allow.
fn limit(timeout_ms: Option<u64>, patience: Option<Duration>) -> Duration {
    let wanted = timeout_ms.map_or(DEFAULT_TIMEOUT, Duration::from_millis);
    let longest = Duration::from_millis(LONGEST_TIMEOUT_MS);
    wanted.min(patience.unwrap_or(longest)).min(longest)
}

/// Collects what the command prints until it ends, and passes the beginning of it on.
async fn follow(child: &mut Child, printed: &mut Printed<'_>) -> Result<Exit, Error> {
    let mut ticks = interval(Progress::PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut buffer = vec![0; 64 * 1024];
    loop {
        tokio::select! {
            read = child.output.read(&mut buffer) => match read? {
                0 => break,
                read => printed.push(&buffer[..read]).await,
            },
            _ = ticks.tick() => printed.tell().await,
        }
    }
    child.wait().await
}

fn data(exit: Exit, output: String) -> Value {
    match exit {
        Exit::Code(code) => json!({ "output": output, "exit_code": code }),
        // As a shell would report it.
        Exit::Signal(signal) => {
            json!({ "output": output, "exit_code": 128 + signal, "signal": signal })
        }
        Exit::Killed => json!({ "output": output, "exit_code": 137, "signal": 9 }),
    }
}

/// An error and its causes in one sentence.
fn explain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_limit_counts() {
        let seconds = Duration::from_secs;
        assert_eq!(limit(None, None), DEFAULT_TIMEOUT);
        assert_eq!(limit(Some(5_000), None), seconds(5));
        assert_eq!(limit(Some(5_000), Some(seconds(3))), seconds(3));
        assert_eq!(limit(None, Some(seconds(3_000))), DEFAULT_TIMEOUT);
        assert_eq!(limit(Some(u64::MAX), None), seconds(3_600));
    }
}
