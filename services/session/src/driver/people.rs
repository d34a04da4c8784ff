//! What a turn asks people, and what it makes of what they decided.

use std::time::Duration;

use jiff::Timestamp;
use proto::{
    event::v1::{ActionRequired, PermissionEvaluated, Question},
    tools::v1::{Permissions, Rule, permissions::Mode, rule},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::sleep;
use tracing::warn;

use crate::{
    agent::Agent,
    host::Host,
    ids::ToolCallId,
    message::without_nul,
    store::{
        self,
        turns::{self, Claim, Decided, Returned},
    },
    time,
    turn::{Asking, Decision, QUESTION, Resolution},
};

/// The longest pattern and the most rules that the tools service takes.
const MAX_PATTERN: usize = 1000;
const MAX_RULES: usize = 1000;

/// How long to wait before Postgres is asked again.
const AGAIN: Duration = Duration::from_millis(200);

/// What the manifest says, and what people decided beyond it for this session or project. What
/// fired the turn may be stricter.
pub fn permissions(agent: &Agent, decided: &[turns::Rule], trigger: Option<&Value>) -> Permissions {
    let mut permissions = agent.manifest.permissions.clone().unwrap_or_default();
    match trigger.and_then(|trigger| trigger["mode"].as_str()) {
        Some("plan") => permissions.set_mode(Mode::Plan),
        Some("never_ask") if permissions.mode() != Mode::Plan => {
            permissions.set_mode(Mode::NeverAsk);
        }
        _ => {}
    }
    for rule in &mut permissions.rules {
        rule.set_source(rule::Source::Manifest);
    }
    let decided: Vec<Rule> = decided.iter().map(decided_rule).collect();
    // What people decide for a child, they decide for those who would have asked in its place.
    for rules in permissions.all_rules_mut() {
        let room = MAX_RULES.saturating_sub(rules.len());
        let new: Vec<_> = decided.iter().filter(|rule| !rules.contains(rule)).cloned().collect();
        rules.extend(new.into_iter().take(room));
    }
    permissions
}

fn decided_rule(row: &turns::Rule) -> Rule {
    let mut rule = Rule {
        permission: row.permission.clone(),
        pattern: row.pattern.clone(),
        ..Rule::default()
    };
    rule.set_action(match row.action.as_str() {
        "allow" => rule::Action::Allow,
        "ask" => rule::Action::Ask,
        _ => rule::Action::Deny,
    });
    rule.set_source(match row.scope.as_str() {
        "session" => rule::Source::Session,
        _ => rule::Source::Project,
    });
    rule
}

/// Who can be asked, and for how long.
pub struct Ask {
    headless: bool,
    expires: Option<Timestamp>,
}

impl Ask {
    pub fn new(host: &Host, headless: bool) -> Ask {
        let patience = host.config.action_expiry;
        let expires = (!patience.is_zero())
            .then(|| time::now().saturating_add(patience).unwrap_or(Timestamp::MAX));
        Ask { headless, expires }
    }

    /// What an evaluation means for the turn. A question is allowed, and then asked.
    pub fn decide(
        &self,
        tool: &str,
        input_json: &str,
        evaluation: PermissionEvaluated,
    ) -> Decision {
        match evaluation.decision.as_str() {
            "allow" if tool == QUESTION => self.question(input_json),
            "allow" if evaluation.cause == "hook" => Decision::Settled,
            "allow" => Decision::Allow,
            "ask" if !self.headless => self.approval(tool, input_json, evaluation),
            _ => Decision::Deny { reason: without_nul(evaluation.reason) },
        }
    }

    fn approval(&self, tool: &str, input_json: &str, evaluation: PermissionEvaluated) -> Decision {
        let pattern = literal(&without_nul(evaluation.compared));
        let rule = (pattern.chars().count() <= MAX_PATTERN).then(|| (tool.to_owned(), pattern));
        // What cannot become a rule can only be decided for this once.
        let decisions: &[&str] = match rule {
            Some(_) => &["once", "session", "project", "reject"],
            None => &["once", "reject"],
        };
        let schema = json!({
            "type": "object",
            "properties": {"decision": {"enum": decisions}, "comment": {"type": "string", "maxLength": 2000}},
            "required": ["decision"],
        });
        let request = ActionRequired {
            kind: "approval".into(),
            prompt: match evaluation.reason.is_empty() {
                true => format!("May {tool} run?"),
                false => without_nul(evaluation.reason),
            },
            decisions: decisions.iter().map(|decision| (*decision).to_owned()).collect(),
            answer_schema_json: schema.to_string(),
            tool: tool.to_owned(),
            input_json: input_json.to_owned(),
            questions: vec![],
            expire_time: self.expires.map(time::to_proto),
        };
        Decision::Ask(Box::new(Asking { request, rule }))
    }

    fn question(&self, input_json: &str) -> Decision {
        if self.headless {
            let reason = "nobody is there to answer; decide without asking".to_owned();
            return Decision::Deny { reason };
        }
        let questions = match serde_json::from_str(input_json) {
            Ok(Asked { questions }) => questions,
            Err(error) => return Decision::Deny { reason: format!("cannot be asked: {error}") },
        };
        let request = ActionRequired {
            kind: "question".into(),
            prompt: questions.first().map(|question| question.prompt.clone()).unwrap_or_default(),
            decisions: vec![],
            answer_schema_json: answer_schema(&questions).to_string(),
            tool: QUESTION.to_owned(),
            input_json: input_json.to_owned(),
            questions,
            expire_time: self.expires.map(time::to_proto),
        };
        Decision::Ask(Box::new(Asking { request, rule: None }))
    }
}

/// The input of the `question` tool.
#[derive(Deserialize)]
struct Asked {
    questions: Vec<Question>,
}

fn answer_schema(questions: &[Question]) -> Value {
    let answer = |question: &Question| {
        let values: Vec<_> = question.options.iter().map(|option| &option.value).collect();
        let most = if question.multi_select { values.len() } else { 1 };
        json!({
            "type": "object",
            "properties": {
                "values": {"type": "array", "items": {"enum": values}, "maxItems": most},
                "text": {"type": "string", "maxLength": if question.free_text { 10_000 } else { 0 }},
            },
        })
    };
    let answers: Vec<_> = questions.iter().map(answer).collect();
    json!({"type": "array", "prefixItems": answers, "minItems": answers.len(), "maxItems": answers.len()})
}

/// A pattern that matches this text and nothing else.
fn literal(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for character in text.chars() {
        if matches!(character, '*' | '?' | '[' | ']' | '{' | '}' | '!' | '\\') {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern
}

/// What people decided about a turn's calls and children returned, in the words of the machine.
pub fn decided(actions: Vec<Decided>, ended: Vec<Returned>) -> Vec<(ToolCallId, Resolution)> {
    let resolution = |action: Decided| {
        let resolved = action.resolution.unwrap_or_default();
        let resolution = match action.status.as_str() {
            "approved" => Resolution::Approved,
            "rejected" => Resolution::Rejected { comment: resolved.comment },
            "answered" => Resolution::Answered(resolved.answers),
            "expired" => Resolution::Expired,
            "cancelled" => Resolution::Cancelled,
            _ => return None,
        };
        Some((action.tool_call_id, resolution))
    };
    let returned = ended.into_iter().map(|Returned { tool_call_id, outcome }| {
        (tool_call_id, Resolution::Returned(outcome.of_call()))
    });
    actions.into_iter().filter_map(resolution).chain(returned).collect()
}

/// Closes what the turn asked, because it ends. The database does it, so that an answer
/// that comes at the same moment is either taken or refused, and never both.
pub async fn withdraw(host: &Host, claim: &Claim) {
    loop {
        match store::actions::cancel(&host.db, claim, host.replica).await {
            Ok(events) => return host.bus.publish(&claim.tenant, claim.session_id, events, false),
            Err(error) => {
                warn!(%error, session.id = %claim.session_id, "cannot withdraw a question, trying again")
            }
        }
        sleep(AGAIN).await;
    }
}
