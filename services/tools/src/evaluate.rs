//! Whether a call may happen, and why. Decides and touches nothing.

use proto::tools::v1::{Rule, permissions::Mode, rule::Action};
use serde_json::Value;

use crate::{
    call::Call,
    catalog::{Catalog, Entry},
    hosted,
    judge::{danger, judge},
    outcome::{Failure, Kind},
    pattern::Effort,
    scope::{self, Outside},
    subject::{Astray, Subject},
    text::shorten,
};

/// What was decided about a call.
pub struct Evaluation<'a> {
    pub verdict: Verdict<'a>,

    /// What decided: `schema`, `capability`, `host_policy`, `rule`, `mode`, `hook` or `default`.
    pub cause: &'static str,

    /// The rule that won, also when a mode made something else of it.
    pub rule: Option<Rule>,

    /// What decided of all that the call does: of a command its worst part. Of an ask it is all
    /// that the call acts on, so that an allow for exactly that settles the next one.
    pub compared: String,

    /// What the call may destroy.
    pub destructive: Option<String>,

    /// One sentence for a person.
    pub reason: String,
}

pub enum Verdict<'a> {
    Allow(Permit<'a>),

    /// It may happen if a person says so.
    Ask(Permit<'a>),
    Deny(Kind),
}

impl Verdict<'_> {
    fn strictness(&self) -> u8 {
        match self {
            Verdict::Allow(_) => 0,
            Verdict::Ask(_) => 1,
            Verdict::Deny(_) => 2,
        }
    }
}

/// A tool that may be called, and its checked input. Only [`evaluate`] makes one, and nothing
/// runs without it.
pub struct Permit<'a> {
    pub entry: &'a Entry,
    pub input: Value,
}

impl<'a> Evaluation<'a> {
    /// What comes of it, given whether a person approved of the call.
    pub fn settle(self, approved: bool) -> Result<Permit<'a>, Failure> {
        match self.verdict {
            Verdict::Allow(permit) => Ok(permit),
            Verdict::Ask(permit) if approved => Ok(permit),
            Verdict::Ask(_) => {
                let text = format!("{}, and nobody has approved yet", self.reason);
                Err(Failure::new(Kind::Denied, text))
            }
            Verdict::Deny(kind) => Err(Failure::new(kind, self.reason)),
        }
    }
}

/// How many mistakes in an input are named. The rest mostly follows from the first.
const MISTAKES: usize = 5;

/// How much of a long command is worth repeating in a decision about it, in characters. It is
/// what fits into a pattern, and what is cut does not: a rule made of a beginning would be
/// about another command.
const LONGEST_COMPARED: usize = 1_000;

/// Decides about a call: of a child's, as strictly as the strictest of all its parents.
pub fn evaluate<'a>(catalog: &'a Catalog, call: &Call) -> Evaluation<'a> {
    let effort = Effort::default();
    let mut strictest = alone(catalog, call, &effort);
    for parent in &call.permissions.within {
        let call = Call { permissions: parent.clone(), ..call.clone() };
        let evaluation = alone(catalog, &call, &effort);
        if evaluation.verdict.strictness() > strictest.verdict.strictness() {
            let reason = format!("the agent that called this one is bound: {}", evaluation.reason);
            strictest = Evaluation { reason, ..evaluation };
        }
    }
    strictest
}

/// Decides by one agent's permissions.
fn alone<'a>(catalog: &'a Catalog, call: &Call, effort: &Effort) -> Evaluation<'a> {
    let refuse = |kind, cause, compared: &str, reason| Evaluation {
        verdict: Verdict::Deny(kind),
        cause,
        rule: None,
        compared: shorten(compared, LONGEST_COMPARED),
        destructive: None,
        reason,
    };
    let tool = call.tool.as_str();
    let Some(entry) = catalog.get(tool) else {
        return refuse(Kind::UnknownTool, "host_policy", tool, catalog.why_not(tool));
    };
    let input = match check(entry, &call.input_json) {
        Ok(input) => input,
        Err(problem) => {
            let reason = format!("the input does not fit the schema of {tool}: {problem}");
            return refuse(Kind::Schema, "schema", tool, reason);
        }
    };
    let tools = &call.permissions.tools;
    if !tools.is_empty() && !tools.contains(&call.tool) && tool != hosted::TOOL_SEARCH {
        let reason = format!("this agent does not have the tool {tool}");
        return refuse(Kind::Denied, "capability", tool, reason);
    }
    let subject = match Subject::new(&entry.about, &input) {
        Ok(subject) => subject,
        Err(Astray(reason)) => return refuse(Kind::Denied, "capability", tool, reason),
    };
    match scope::check(&call.permissions, &entry.about, &input, &subject, effort) {
        Ok(()) => conclude(call, Permit { entry, input }, &subject, effort),
        Err(Outside { compared, reason }) => refuse(Kind::Denied, "capability", &compared, reason),
    }
}

fn conclude<'a>(
    call: &Call,
    permit: Permit<'a>,
    subject: &Subject,
    effort: &Effort,
) -> Evaluation<'a> {
    let judged = judge(call, permit.entry, subject, effort);
    let compared = match judged.action {
        Action::Ask => subject.text(),
        Action::Allow | Action::Deny | Action::Unspecified => &judged.compared,
    };
    Evaluation {
        cause: judged.cause,
        rule: judged.rule.cloned(),
        compared: shorten(compared, LONGEST_COMPARED),
        destructive: danger(permit.entry, subject),
        reason: judged.reason,
        verdict: match judged.action {
            Action::Allow => Verdict::Allow(permit),
            Action::Ask => Verdict::Ask(permit),
            Action::Deny | Action::Unspecified => Verdict::Deny(Kind::Denied),
        },
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

pub fn action_name(action: Action) -> &'static str {
    match action {
        Action::Allow => "allow",
        Action::Ask => "ask",
        Action::Deny | Action::Unspecified => "deny",
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
mod tests;
