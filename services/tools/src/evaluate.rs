//! Whether a call may happen, and why. Decides and touches nothing.

use proto::tools::v1::{Permissions, permissions::Mode, rule::Action};
use serde_json::Value;

use crate::{
    call::Call,
    catalog::{Catalog, Entry},
    outcome::{Failure, Kind},
};

/// What was decided about a call.
pub struct Evaluation<'a> {
    /// The tool and its checked input, or why there is no such call.
    pub verdict: Result<Permit<'a>, Failure>,

    /// What decided: `schema`, `capability`, `host_policy` or `default`.
    pub cause: &'static str,

    /// One sentence for a person.
    pub reason: String,
}

/// Proof that a call may happen. Only [`evaluate`] makes one, and nothing runs without it.
pub struct Permit<'a> {
    pub entry: &'a Entry,
    pub input: Value,
}

/// How many mistakes in an input are named. The rest mostly follows from the first.
const MISTAKES: usize = 5;

pub fn evaluate<'a>(catalog: &'a Catalog, call: &Call) -> Evaluation<'a> {
    let deny = |kind, cause, reason: String| Evaluation {
        verdict: Err(Failure::new(kind, reason.clone())),
        cause,
        reason,
    };
    let Some(entry) = catalog.get(&call.tool) else {
        let reason = format!("there is no tool named {:?}", call.tool);
        return deny(Kind::UnknownTool, "host_policy", reason);
    };
    let input = match check(entry, &call.input_json) {
        Ok(input) => input,
        Err(problem) => {
            let reason = format!("the input does not fit the schema of {}: {problem}", call.tool);
            return deny(Kind::Schema, "schema", reason);
        }
    };
    let tools = &call.permissions.tools;
    if !tools.is_empty() && !tools.contains(&call.tool) {
        let reason = format!("this agent does not have the tool {}", call.tool);
        return deny(Kind::Denied, "capability", reason);
    }
    if let Some(restriction) = not_enforced(&call.permissions) {
        let reason = format!("this server cannot enforce {restriction} yet, so nothing is allowed");
        return deny(Kind::Denied, "host_policy", reason);
    }
    Evaluation {
        verdict: Ok(Permit { entry, input }),
        cause: "default",
        reason: format!("{} runs in the sandbox", call.tool),
    }
}

fn check(entry: &Entry, input_json: &str) -> Result<Value, String> {
    let input: Value = serde_json::from_str(input_json).map_err(|error| error.to_string())?;
    let mistakes: Vec<String> = entry
        .validator
        .iter_errors(&input)
        .take(MISTAKES)
        .map(|error| match error.instance_path().as_str() {
            "" => error.to_string(),
            path => format!("{path}: {error}"),
        })
        .collect();
    match mistakes.is_empty() {
        true => Ok(input),
        false => Err(mistakes.join("; ")),
    }
}

/// A restriction that is not understood must not be ignored. Hosts are missing here: no
/// tool reaches any.
fn not_enforced(permissions: &Permissions) -> Option<&'static str> {
    let allows = |action: Action| action == Action::Allow;
    if permissions.rules.iter().any(|rule| !allows(rule.action())) {
        Some("rules")
    } else if !permissions.paths.is_empty() {
        Some("path scopes")
    } else if !permissions.commands.is_empty() {
        Some("command scopes")
    } else if permissions.mode() == Mode::Plan {
        Some("the mode plan")
    } else {
        None
    }
}

pub fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Unspecified | Mode::Default => "default",
        Mode::Plan => "plan",
        Mode::Auto => "auto",
        Mode::NeverAsk => "never_ask",
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use proto::tools::v1::Rule;

    use super::*;
    use crate::call::{SessionId, ToolCallId, WorkspaceId};

    fn call(tool: &str, input_json: &str, permissions: Permissions) -> Call {
        Call {
            tenant: "acme".parse().unwrap(),
            session_id: SessionId::new(),
            epoch: 1,
            turn_id: String::new(),
            step_id: String::new(),
            tool_call_id: ToolCallId::new(),
            tool: tool.into(),
            input_json: input_json.into(),
            workspace_id: WorkspaceId::new(),
            permissions,
        }
    }

    /// Every kind of call against the rules, so that a new rule arrives as a diff.
    #[test]
    fn every_decision_has_a_cause_and_a_reason() {
        let good = r#"{"command": "ls"}"#;
        let none = Permissions::default;
        let deny = Rule { action: Action::Deny.into(), ..Rule::default() };
        let allow = Rule { action: Action::Allow.into(), ..Rule::default() };
        let cases = [
            call("bash", good, none()),
            call("bash", good, Permissions { tools: vec!["bash".into()], ..none() }),
            call("bash", good, Permissions { rules: vec![allow], ..none() }),
            call("bash", good, Permissions { mode: Mode::NeverAsk.into(), ..none() }),
            call("bash", good, Permissions { tools: vec!["read".into()], ..none() }),
            call("bash", good, Permissions { rules: vec![deny], ..none() }),
            call("bash", good, Permissions { paths: vec!["src/**".into()], ..none() }),
            call("bash", good, Permissions { commands: vec!["ls".into()], ..none() }),
            call("bash", good, Permissions { mode: Mode::Plan.into(), ..none() }),
            call("bush", good, none()),
            call("bash", "", none()),
            call("bash", "[]", none()),
            call("bash", r#"{"command": "", "timeout_ms": 0.5, "shell": "zsh"}"#, none()),
        ];
        let catalog = Catalog::built_in().unwrap();
        let mut lines = String::new();
        for call in &cases {
            let Evaluation { verdict, cause, reason } = evaluate(&catalog, call);
            let verdict = verdict.map_or_else(|failure| failure.kind.name(), |_| "allow");
            lines += &format!("{verdict} ({cause}): {reason}\n");
        }
        expect![[r#"
            allow (default): bash runs in the sandbox
            allow (default): bash runs in the sandbox
            allow (default): bash runs in the sandbox
            allow (default): bash runs in the sandbox
            denied (capability): this agent does not have the tool bash
            denied (host_policy): this server cannot enforce rules yet, so nothing is allowed
            denied (host_policy): this server cannot enforce path scopes yet, so nothing is allowed
            denied (host_policy): this server cannot enforce command scopes yet, so nothing is allowed
            denied (host_policy): this server cannot enforce the mode plan yet, so nothing is allowed
            unknown_tool (host_policy): there is no tool named "bush"
            schema (schema): the input does not fit the schema of bash: EOF while parsing a value at line 1 column 0
            schema (schema): the input does not fit the schema of bash: [] is not of type "object"
            schema (schema): the input does not fit the schema of bash: /command: "" is shorter than 1 character; /timeout_ms: 0.5 is not of type "integer"; /timeout_ms: 0.5 is less than the minimum of 1; Additional properties are not allowed ('shell' was unexpected)
        "#]].assert_eq(&lines);
    }
}
