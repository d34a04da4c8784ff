//! A turn in words, for whoever reviews it: Markdown, and beside each line what it was made of.

use proto::session::v1::TurnView;
use serde_json::{Value, json};

use super::facts::{Fact, cut};

/// How much of a text a line shows, in characters.
const BRIEF: usize = 200;

/// A line of Markdown and the facts in it.
pub type Line = (String, Value);

/// What a call changed, if it may have changed something.
pub fn change(tool: &str, input_json: &str, fact: &Fact) -> Option<Line> {
    let input: Value = serde_json::from_str(input_json).unwrap_or_default();
    let text = |field: &str| input[field].as_str().map(str::to_owned);
    let (kind, what) = match tool {
        "write" | "edit" => ("file", text("path")?),
        "bash" => ("command", text("command")?),
        _ => return None,
    };
    let failed = fact.r#type == "tool.failed";
    let how = match failed {
        true => format!(", which failed: {}", code(fact.text("errorText"))),
        false => String::new(),
    };
    let line = match kind {
        "file" => format!("- {} by `{tool}`{how}", code(&what)),
        _ => format!("- the command {}{how}", code(&what)),
    };
    let data = json!({
        "kind": kind, kind: what, "tool": tool, "failed": failed, "sequence": fact.sequence,
        "toolCallId": fact.tool_call_id, "turnId": fact.turn_id,
    });
    Some((line, data))
}

/// What was decided and by whom.
pub fn decision_line(fact: &Fact) -> Option<Line> {
    let payload = &fact.payload;
    let line = match fact.r#type.as_str() {
        "action.required" => format!("- asked: {}", code(fact.text("prompt"))),
        "action.resolved" => {
            let by = match fact.text("subject") {
                "" => "nobody".to_owned(),
                subject => code(subject),
            };
            let comment = match fact.text("comment") {
                "" => String::new(),
                comment => format!(", who says {}", code(comment)),
            };
            let what = match fact.text("decision") {
                "" => fact.text("status"),
                decision => decision,
            };
            format!("- decided: `{what}` by {by}{comment}")
        }
        "permission.evaluated" => {
            let rule = &payload["rule"];
            let rule = match rule["source"].as_str() {
                Some(source) => format!(" of the {source}"),
                None => String::new(),
            };
            let compared = code(fact.text("compared"));
            let (decision, cause) = (fact.text("decision"), fact.text("cause"));
            format!("- {compared}: `{decision}` by {cause}{rule}")
        }
        "hook.completed" if !matches!(fact.text("outcome"), "continue" | "") => {
            let (hook, outcome) = (code(fact.text("hookId")), fact.text("outcome"));
            format!("- the hook {hook}: `{outcome}`, {}", code(fact.text("reason")))
        }
        "hook.failed" => {
            let (hook, error) = (code(fact.text("hookId")), code(fact.text("error")));
            format!("- the hook {hook} failed: {error}")
        }
        "policy.changed" => format!("- the rules changed: by {}", code(fact.text("subject"))),
        "sandbox.violation" => {
            let (layer, detail) = (fact.text("layer"), code(fact.text("detail")));
            format!("- the sandbox stopped something ({layer}): {detail}")
        }
        _ => return None,
    };
    let data = json!({
        "type": fact.r#type, "sequence": fact.sequence, "eventId": fact.event_id, "payload": payload,
        "toolCallId": fact.tool_call_id, "actionId": fact.action_id, "turnId": fact.turn_id,
    });
    Some((line, data))
}

/// What failed, from what a pack says of it.
pub fn failure_line(failure: &Value) -> Line {
    let text = |field: &str| failure[field].as_str().unwrap_or_default();
    let (tool, kind) = (text("tool"), text("kind"));
    (format!("- `{tool}` ({kind}): {}", code(text("errorText"))), failure.clone())
}

/// How a turn ended and what it cost.
pub fn cost_line(view: &TurnView, subject: &str) -> Line {
    let cost = view.cost_state.clone().unwrap_or_default();
    let usage = cost.usage.unwrap_or_default();
    let micros = cost.cost_micros;
    let reason = match view.status_reason.as_str() {
        "" => String::new(),
        reason => format!(", {}", code(reason)),
    };
    let line = format!(
        "- `{}` for {} by agent `{}` (version {}): {}{reason}; {} model calls, {} tokens in, {} out, {}.{:06} {}",
        view.turn_id,
        code(subject),
        view.agent,
        view.agent_version,
        view.status,
        cost.model_calls,
        usage.input,
        usage.output,
        micros / 1_000_000,
        micros % 1_000_000,
        cost.currency,
    );
    (line.trim_end().to_owned(), json!({ "turn": view, "subject": subject }))
}

/// A text that anybody may have written, on one line and not to be taken for Markdown.
fn code(text: &str) -> String {
    let text = cut(text, BRIEF).replace(['\n', '\r'], "⏎");
    let longest = text.split(|letter| letter != '`').map(str::len).max().unwrap_or_default();
    let fence = "`".repeat(longest + 1);
    match (text.is_empty(), longest) {
        (true, _) => "nothing".to_owned(),
        (false, 0) => format!("`{text}`"),
        (false, _) => format!("{fence} {text} {fence}"),
    }
}

#[test]
fn what_others_wrote_is_not_taken_for_markdown() {
    assert_eq!(code("rm -rf"), "`rm -rf`");
    assert_eq!(code("a\n# b"), "`a⏎# b`");
    assert_eq!(code("x `y` ``"), "``` x `y` `` ```");
    assert_eq!(code(""), "nothing");
}
