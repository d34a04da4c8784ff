//! What a hook is and what it may answer. Decides and touches nothing.

use std::{fmt, time::Duration};

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    pattern::{Effort, Pattern},
    text::shorten,
};

/// Somebody who is asked at a certain moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hook {
    /// Empty: all projects of the tenant.
    pub project: String,
    pub id: String,
    pub event: Event,

    /// A glob; empty: all tools.
    pub tools: String,
    pub target: Target,
    pub timeout: Duration,

    /// A failure is not held against anybody.
    pub fail_open: bool,

    /// Those with a lower number are asked first.
    pub rank: i32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    Url(String),
    Command(String),
}

/// When hooks are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    SessionStart,
    UserPromptSubmit,
    PreToolUse,
    PermissionRequest,
    PostToolUse,
    PostToolFailure,
    Stop,
}

impl Hook {
    /// Whether it is asked. One whose glob cannot be read is about every tool, as nobody should
    /// rely on a hook that is never asked.
    pub fn is_about(&self, event: Event, tool: &str) -> bool {
        let matches = |pattern: Pattern| pattern.matches(tool, &Effort::default()).unwrap_or(true);
        self.event == event
            && (self.tools.is_empty() || Pattern::new(&self.tools).map_or(true, matches))
    }
}

impl Target {
    /// As in `HookStarted.kind`.
    pub fn kind(&self) -> &'static str {
        match self {
            Target::Url(_) => "http",
            Target::Command(_) => "command",
        }
    }
}

impl Event {
    pub const ALL: [Event; 7] = [
        Event::SessionStart,
        Event::UserPromptSubmit,
        Event::PreToolUse,
        Event::PermissionRequest,
        Event::PostToolUse,
        Event::PostToolFailure,
        Event::Stop,
    ];

    pub fn parse(name: &str) -> Option<Event> {
        Event::ALL.into_iter().find(|event| event.name() == name)
    }

    pub fn name(self) -> &'static str {
        match self {
            Event::SessionStart => "session_start",
            Event::UserPromptSubmit => "user_prompt_submit",
            Event::PreToolUse => "pre_tool_use",
            Event::PermissionRequest => "permission_request",
            Event::PostToolUse => "post_tool_use",
            Event::PostToolFailure => "post_tool_failure",
            Event::Stop => "stop",
        }
    }

    /// Whether it happens to a call. The others happen to a turn, and whoever drives it says so.
    pub fn is_about_a_tool(self) -> bool {
        match self {
            Event::PreToolUse
            | Event::PermissionRequest
            | Event::PostToolUse
            | Event::PostToolFailure => true,
            Event::SessionStart | Event::UserPromptSubmit | Event::Stop => false,
        }
    }

    fn takes(self, decision: &Decision) -> bool {
        match decision {
            Decision::Continue | Decision::Block => true,
            Decision::Allow | Decision::Deny => {
                matches!(self, Event::PreToolUse | Event::PermissionRequest)
            }
            Decision::Rewrite(_) => self == Event::PreToolUse,
        }
    }

    /// Whether the model can be told something.
    fn takes_context(self) -> bool {
        match self {
            Event::SessionStart
            | Event::UserPromptSubmit
            | Event::PostToolUse
            | Event::PostToolFailure => true,
            Event::PreToolUse | Event::PermissionRequest | Event::Stop => false,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// What a hook says, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub decision: Decision,
    pub reason: String,
    pub context: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    Continue,
    Allow,
    Deny,
    Block,
    /// The input that takes the place of the other, as JSON text.
    Rewrite(String),
}

impl Decision {
    /// As in `HookCompleted.outcome`.
    pub fn name(&self) -> &'static str {
        match self {
            Decision::Continue => "continue",
            Decision::Allow => "allow",
            Decision::Deny => "deny",
            Decision::Block => "block",
            Decision::Rewrite(_) => "rewrite",
        }
    }
}

/// How much of what a hook says is passed on, in characters.
const LONGEST_REASON: usize = 1_000;
const LONGEST_CONTEXT: usize = 10_000;

/// The largest answer, in bytes.
pub const LARGEST_ANSWER: usize = 1024 * 1024;

#[derive(Deserialize, Default)]
struct Said {
    decision: Option<String>,
    reason: Option<String>,
    updated_input: Option<Box<RawValue>>,
    context: Option<String>,
}

/// Understands an answer, or says what is wrong with it.
pub fn understand(event: Event, answer: &[u8]) -> Result<Answer, String> {
    let said = match answer.trim_ascii() {
        b"" => Said::default(),
        // A list would be taken for an object whose fields come in order.
        answer if !answer.starts_with(b"{") => return Err("its answer is no JSON object".into()),
        answer => serde_json::from_slice(answer)
            .map_err(|error| format!("its answer cannot be understood: {error}"))?,
    };
    let decision = match (said.decision.as_deref().unwrap_or("continue"), said.updated_input) {
        ("rewrite", Some(input)) => Decision::Rewrite(input.get().to_owned()),
        ("rewrite", None) => return Err("it rewrites and gives no updated_input".into()),
        (decision, Some(_)) => {
            return Err(format!("it gives an updated_input with the decision {decision:?}"));
        }
        ("continue", None) => Decision::Continue,
        ("allow", None) => Decision::Allow,
        ("deny", None) => Decision::Deny,
        ("block", None) => Decision::Block,
        (decision, None) => {
            return Err(format!("there is no decision {:?}", shorten(decision, 50)));
        }
    };
    let context = said.context.unwrap_or_default();
    if !event.takes(&decision) {
        return Err(format!("{event} does not take the decision {:?}", decision.name()));
    }
    if !context.is_empty() && !event.takes_context() {
        return Err(format!("{event} does not take context"));
    }
    Ok(Answer {
        decision,
        reason: plain(&said.reason.unwrap_or_default(), LONGEST_REASON),
        context: plain(&context, LONGEST_CONTEXT),
    })
}

/// That a command exits with 2 says this, whatever it prints.
pub fn blocked(reason: &str) -> Answer {
    let reason = plain(reason.trim(), LONGEST_REASON);
    Answer { decision: Decision::Block, reason, context: String::new() }
}

/// Postgres stores no NUL in text.
fn plain(text: &str, characters: usize) -> String {
    shorten(text, characters).replace('\0', "\u{FFFD}")
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn an_event_takes_some_answers_and_no_others() {
        let answers = [
            "",
            "{}",
            r#"{"decision": "continue", "reason": "fine", "more": 1}"#,
            r#"{"decision": "block", "reason": "no"}"#,
            r#"{"decision": "deny"}"#,
            r#"{"decision": "allow"}"#,
            r#"{"decision": "rewrite", "updated_input": {"a": 1.0}}"#,
            r#"{"context": "by the way"}"#,
        ];
        let mut lines = String::new();
        for answer in answers {
            lines += &format!("{answer}\n");
            for event in Event::ALL {
                let found = match understand(event, answer.as_bytes()) {
                    Ok(answer) => format!("{answer:?}"),
                    Err(problem) => problem,
                };
                lines += &format!("    {event}: {found}\n");
            }
        }
        expect![[r#"

                session_start: Answer { decision: Continue, reason: "", context: "" }
                user_prompt_submit: Answer { decision: Continue, reason: "", context: "" }
                pre_tool_use: Answer { decision: Continue, reason: "", context: "" }
                permission_request: Answer { decision: Continue, reason: "", context: "" }
                post_tool_use: Answer { decision: Continue, reason: "", context: "" }
                post_tool_failure: Answer { decision: Continue, reason: "", context: "" }
                stop: Answer { decision: Continue, reason: "", context: "" }
            {}
                session_start: Answer { decision: Continue, reason: "", context: "" }
                user_prompt_submit: Answer { decision: Continue, reason: "", context: "" }
                pre_tool_use: Answer { decision: Continue, reason: "", context: "" }
                permission_request: Answer { decision: Continue, reason: "", context: "" }
                post_tool_use: Answer { decision: Continue, reason: "", context: "" }
                post_tool_failure: Answer { decision: Continue, reason: "", context: "" }
                stop: Answer { decision: Continue, reason: "", context: "" }
            {"decision": "continue", "reason": "fine", "more": 1}
                session_start: Answer { decision: Continue, reason: "fine", context: "" }
                user_prompt_submit: Answer { decision: Continue, reason: "fine", context: "" }
                pre_tool_use: Answer { decision: Continue, reason: "fine", context: "" }
                permission_request: Answer { decision: Continue, reason: "fine", context: "" }
                post_tool_use: Answer { decision: Continue, reason: "fine", context: "" }
                post_tool_failure: Answer { decision: Continue, reason: "fine", context: "" }
                stop: Answer { decision: Continue, reason: "fine", context: "" }
            {"decision": "block", "reason": "no"}
                session_start: Answer { decision: Block, reason: "no", context: "" }
                user_prompt_submit: Answer { decision: Block, reason: "no", context: "" }
                pre_tool_use: Answer { decision: Block, reason: "no", context: "" }
                permission_request: Answer { decision: Block, reason: "no", context: "" }
                post_tool_use: Answer { decision: Block, reason: "no", context: "" }
                post_tool_failure: Answer { decision: Block, reason: "no", context: "" }
                stop: Answer { decision: Block, reason: "no", context: "" }
            {"decision": "deny"}
                session_start: session_start does not take the decision "deny"
                user_prompt_submit: user_prompt_submit does not take the decision "deny"
                pre_tool_use: Answer { decision: Deny, reason: "", context: "" }
                permission_request: Answer { decision: Deny, reason: "", context: "" }
                post_tool_use: post_tool_use does not take the decision "deny"
                post_tool_failure: post_tool_failure does not take the decision "deny"
                stop: stop does not take the decision "deny"
            {"decision": "allow"}
                session_start: session_start does not take the decision "allow"
                user_prompt_submit: user_prompt_submit does not take the decision "allow"
                pre_tool_use: Answer { decision: Allow, reason: "", context: "" }
                permission_request: Answer { decision: Allow, reason: "", context: "" }
                post_tool_use: post_tool_use does not take the decision "allow"
                post_tool_failure: post_tool_failure does not take the decision "allow"
                stop: stop does not take the decision "allow"
            {"decision": "rewrite", "updated_input": {"a": 1.0}}
                session_start: session_start does not take the decision "rewrite"
                user_prompt_submit: user_prompt_submit does not take the decision "rewrite"
                pre_tool_use: Answer { decision: Rewrite("{\"a\": 1.0}"), reason: "", context: "" }
                permission_request: permission_request does not take the decision "rewrite"
                post_tool_use: post_tool_use does not take the decision "rewrite"
                post_tool_failure: post_tool_failure does not take the decision "rewrite"
                stop: stop does not take the decision "rewrite"
            {"context": "by the way"}
                session_start: Answer { decision: Continue, reason: "", context: "by the way" }
                user_prompt_submit: Answer { decision: Continue, reason: "", context: "by the way" }
                pre_tool_use: pre_tool_use does not take context
                permission_request: permission_request does not take context
                post_tool_use: Answer { decision: Continue, reason: "", context: "by the way" }
                post_tool_failure: Answer { decision: Continue, reason: "", context: "by the way" }
                stop: stop does not take context
        "#]]
        .assert_eq(&lines);
    }

    #[test]
    fn what_is_no_answer_is_a_failure() {
        let mut lines = String::new();
        for answer in [
            "no",
            "[]",
            "[\"block\"]",
            "null",
            "{",
            "{} {}",
            r#"{"decision": 1}"#,
            r#"{"decision": "BLOCK"}"#,
            r#"{"decision": "rewrite"}"#,
            r#"{"decision": "allow", "updated_input": {}}"#,
            r#"{"updated_input": {}}"#,
            r#"{"reason": ["a"]}"#,
            "{\"reason\": \"\u{1}\"}",
        ] {
            let problem = understand(Event::PreToolUse, answer.as_bytes()).unwrap_err();
            lines += &format!("{answer:?}: {problem}\n");
        }
        assert!(understand(Event::Stop, b"{\"reason\": \"\xff\"}").is_err());
        expect![[r#"
            "no": its answer is no JSON object
            "[]": its answer is no JSON object
            "[\"block\"]": its answer is no JSON object
            "null": its answer is no JSON object
            "{": its answer cannot be understood: EOF while parsing an object at line 1 column 1
            "{} {}": its answer cannot be understood: trailing characters at line 1 column 4
            "{\"decision\": 1}": its answer cannot be understood: invalid type: integer `1`, expected a string at line 1 column 14
            "{\"decision\": \"BLOCK\"}": there is no decision "BLOCK"
            "{\"decision\": \"rewrite\"}": it rewrites and gives no updated_input
            "{\"decision\": \"allow\", \"updated_input\": {}}": it gives an updated_input with the decision "allow"
            "{\"updated_input\": {}}": it gives an updated_input with the decision "continue"
            "{\"reason\": [\"a\"]}": its answer cannot be understood: invalid type: sequence, expected a string at line 1 column 11
            "{\"reason\": \"\u{1}\"}": its answer cannot be understood: control character (\u0000-\u001F) found while parsing a string at line 1 column 13
        "#]].assert_eq(&lines);
    }

    #[test]
    fn what_a_hook_says_is_cut_and_has_no_nul() {
        let said = format!(r#"{{"reason": "\u0000{}"}}"#, "ä".repeat(2_000));
        let answer = understand(Event::Stop, said.as_bytes()).unwrap();
        assert!(answer.reason.starts_with("\u{FFFD}ä") && answer.reason.ends_with('…'));
        assert_eq!(answer.reason.chars().count(), LONGEST_REASON + 1);
    }

    #[test]
    fn a_hook_is_about_its_tools() {
        let hook = |tools: &str| Hook {
            project: String::new(),
            id: "h".into(),
            event: Event::PreToolUse,
            tools: tools.into(),
            target: Target::Command("true".into()),
            timeout: Duration::ZERO,
            fail_open: false,
            rank: 0,
        };
        let cases = [
            ("", "bash", true),
            ("bash", "bash", true),
            ("bash", "read", false),
            ("memory_*", "memory_read", true),
            ("{read,write}", "write", true),
            ("[", "read", true),
        ];
        for (tools, tool, expected) in cases {
            assert_eq!(hook(tools).is_about(Event::PreToolUse, tool), expected, "{tools} {tool}");
            assert!(!hook(tools).is_about(Event::PostToolUse, tool));
        }
    }
}
