//! Asks hooks, over HTTP and in the sandbox, and puts on record what they say.

mod command;
mod http;
mod sign;

use std::time::Duration;

use chassis::Tenant;
use proto::event::v1::{Event as Fact, HookCompleted, HookFailed, HookStarted, Payload};
use serde_json::{Map, Value, json};
use tokio::time::{Instant, timeout_at};

use crate::{
    call::{Call, SessionId, WorkspaceId},
    facts::{Facts, int32},
    hook::{Answer, Decision, Event, Hook, Target},
    policies::Policy,
    text::shorten,
};

pub use command::Commands;
pub use http::Http;
pub use sign::Signer;

/// How long all hooks of one event may take together.
const TOGETHER: Duration = Duration::from_secs(120);

/// How much of a failure is worth a place in the log, in characters.
const LONGEST_ERROR: usize = 1_000;

/// Asks hooks.
pub struct Hooks {
    pub http: Http,
    pub commands: Commands,
}

/// What hooks are asked about.
pub struct Occasion<'a> {
    pub event: Event,
    pub place: &'a Place,
    pub policy: &'a Policy,

    /// What there is to know beside the ids.
    pub details: Map<String, Value>,
}

/// Where it happens.
#[derive(Debug, Clone)]
pub struct Place {
    pub tenant: Tenant,
    pub session_id: SessionId,
    pub turn_id: String,
    pub workspace_id: WorkspaceId,

    /// Of a call, and empty of a turn.
    pub step_id: String,
    pub tool_call_id: String,
    pub tool: String,

    /// Of a turn: how often this happened to it before.
    pub repeats: u32,
}

impl From<&Call> for Place {
    fn from(call: &Call) -> Place {
        Place {
            tenant: call.tenant.clone(),
            session_id: call.session_id,
            turn_id: call.turn_id.clone(),
            workspace_id: call.workspace_id,
            step_id: call.step_id.clone(),
            tool_call_id: call.tool_call_id.to_string(),
            tool: call.tool.clone(),
            repeats: 0,
        }
    }
}

/// Where facts go: to the end of an answer, or to the caller as they happen.
pub enum Record<'a> {
    Kept(Vec<Fact>),
    Told(&'a Facts<'a>),
}

impl Record<'_> {
    async fn note(&mut self, place: &Place, refs: Option<(&str, String)>, payload: Payload) {
        let fact = Fact {
            session_id: place.session_id.to_string(),
            turn_id: place.turn_id.clone(),
            step_id: place.step_id.clone(),
            tool_call_id: place.tool_call_id.clone(),
            refs: refs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            ..Fact::fact(payload)
        };
        match self {
            Record::Kept(facts) => facts.push(fact),
            Record::Told(facts) => facts.tell(fact).await,
        }
    }
}

/// What all hooks of an event come to.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Which one blocks, and why, in one sentence.
    pub block: Option<String>,

    /// Which one allows.
    pub allow: Option<String>,

    /// What the model should know.
    pub context: String,
}

/// An answer, and how long it took; what went wrong where there is none.
pub struct Asked {
    pub answer: Result<Answer, String>,
    duration: Duration,
}

impl Hooks {
    /// When hooks that are asked from now on must have answered.
    pub fn deadline() -> Instant {
        Instant::now() + TOGETHER
    }

    /// Asks all hooks of an event in their order, until one blocks.
    pub async fn all(&self, occasion: &Occasion<'_>, record: &mut Record<'_>) -> Verdict {
        let deadline = Hooks::deadline();
        let mut verdict = Verdict::default();
        for hook in occasion.policy.asked(occasion.event, &occasion.place.tool) {
            let asked = self.ask(hook, occasion, deadline, record).await;
            let Some(answer) = self.conclude(hook, occasion, asked, None, record).await else {
                continue;
            };
            if !answer.context.is_empty() {
                if !verdict.context.is_empty() {
                    verdict.context.push('\n');
                }
                verdict.context.push_str(&answer.context);
            }
            match answer.decision {
                Decision::Block | Decision::Deny => {
                    verdict.block = Some(blocks(hook, &answer));
                    break;
                }
                Decision::Allow => verdict.allow = Some(hook.id.clone()),
                Decision::Continue | Decision::Rewrite(_) => (),
            }
        }
        verdict
    }

    /// Asks one hook and notes that it was asked.
    pub async fn ask(
        &self,
        hook: &Hook,
        occasion: &Occasion<'_>,
        deadline: Instant,
        record: &mut Record<'_>,
    ) -> Asked {
        let started = HookStarted {
            hook_id: hook.id.clone(),
            event: hook.event.name().to_owned(),
            kind: hook.target.kind().to_owned(),
        };
        record.note(occasion.place, None, Payload::HookStarted(started)).await;
        let begun = Instant::now();
        let body = body(hook, occasion).to_string();
        let answer = async {
            match &hook.target {
                Target::Url(url) => self.http.ask(hook, occasion.place, url, body).await,
                Target::Command(line) => self.commands.ask(hook, occasion.place, line, body).await,
            }
        };
        let until = deadline.min(begun + hook.timeout);
        let answer = match timeout_at(until, answer).await {
            Ok(answer) => answer,
            Err(_) => Err(format!("it did not answer within {} ms", (until - begun).as_millis())),
        };
        Asked { answer, duration: begun.elapsed() }
    }

    /// Notes what a hook said, and returns what counts: nothing of one that failed and may, and
    /// a block of one that must not.
    pub async fn conclude(
        &self,
        hook: &Hook,
        occasion: &Occasion<'_>,
        asked: Asked,
        updated_input_ref: Option<String>,
        record: &mut Record<'_>,
    ) -> Option<Answer> {
        let (hook_id, event) = (hook.id.clone(), hook.event.name().to_owned());
        let duration_ms = int32(asked.duration.as_millis() as u64);
        let problem = match asked.answer {
            Ok(answer) => {
                let completed = HookCompleted {
                    hook_id,
                    event,
                    outcome: answer.decision.name().to_owned(),
                    reason: answer.reason.clone(),
                    updated_input_json: match &answer.decision {
                        Decision::Rewrite(input_json) => input_json.clone(),
                        _ => String::new(),
                    },
                    duration_ms,
                    context: answer.context.clone(),
                };
                let refs = updated_input_ref.map(|output_ref| ("updatedInputRef", output_ref));
                record.note(occasion.place, refs, Payload::HookCompleted(completed)).await;
                return Some(answer);
            }
            Err(problem) => shorten(&problem, LONGEST_ERROR).replace('\0', "\u{FFFD}"),
        };
        let fail_mode = if hook.fail_open { "open" } else { "closed" }.to_owned();
        let error = problem.clone();
        let failed = HookFailed { hook_id, event, error, fail_mode, duration_ms };
        record.note(occasion.place, None, Payload::HookFailed(failed)).await;
        (!hook.fail_open).then(|| Answer {
            decision: Decision::Block,
            reason: format!("it failed, {problem}"),
            context: String::new(),
        })
    }
}

/// Which hook blocks and why, for people and models.
pub fn blocks(hook: &Hook, answer: &Answer) -> String {
    match answer.reason.as_str() {
        "" => format!("the hook {} blocks it", hook.id),
        reason => format!("the hook {} blocks it: {reason}", hook.id),
    }
}

/// What a hook is told.
fn body(hook: &Hook, occasion: &Occasion<'_>) -> Value {
    let place = occasion.place;
    let mut body = json!({
        "event": hook.event.name(),
        "hook_id": hook.id,
        "project": occasion.policy.project,
        "workspace_id": place.workspace_id.to_string(),
        "session_id": place.session_id.to_string(),
        "turn_id": place.turn_id,
    });
    if let Value::Object(fields) = &mut body {
        if hook.event.is_about_a_tool() {
            fields.insert("step_id".into(), json!(place.step_id));
            fields.insert("tool_call_id".into(), json!(place.tool_call_id));
            fields.insert("tool".into(), json!(place.tool));
        }
        fields.extend(occasion.details.clone());
    }
    body
}
