//! Whether a call may happen: what rules say of it, and then what hooks say. Hooks only ever
//! come to words about what rules leave open.

use proto::event::v1::{Event as Fact, Payload, PermissionEvaluated};
use serde_json::{Map, Value, json};
use tracing::error;

use crate::{
    call::Call,
    catalog::Catalog,
    evaluate::{Evaluation, Verdict, evaluate},
    facts,
    hook::{Answer, Decision, Event, Hook},
    hooks::{Hooks, Occasion, Place, Record, blocks},
    outcome::Kind,
    outputs::Outputs,
    policies::Policy,
};

/// The largest input, in bytes.
pub const LARGEST_INPUT: usize = 1024 * 1024;

/// Who decides.
pub struct Judges<'a> {
    pub catalog: &'a Catalog,
    pub hooks: &'a Hooks,
    pub outputs: &'a Outputs,
    pub policy: &'a Policy,
}

/// What was decided, and what led to it.
pub struct Decided {
    pub evaluation: PermissionEvaluated,
    pub facts: Vec<Fact>,

    /// What runs if it runs.
    pub input_json: String,
}

impl<'a> Judges<'a> {
    /// Decides about a call that the project's rules govern already.
    pub async fn decide(&self, mut call: Call) -> Decided {
        let mut record = Record::Kept(vec![]);
        let mut evaluation = evaluate(self.catalog, &call);
        let allowed_by = self.before(&mut call, &mut evaluation, &mut record).await;
        if matches!(evaluation.verdict, Verdict::Ask(_)) {
            match allowed_by {
                Some(hook) => allow(&mut evaluation, &hook),
                None => self.request(&call, &mut evaluation, &mut record).await,
            }
        }
        let evaluation = facts::permission_evaluated(&call, &evaluation);
        let fact = facts::about(&call, Payload::PermissionEvaluated(evaluation.clone()));
        let mut facts = match record {
            Record::Kept(facts) => facts,
            Record::Told(_) => vec![],
        };
        facts.push(fact);
        Decided { evaluation, facts, input_json: call.input_json }
    }

    /// Asks the hooks of `pre_tool_use`, each about the input as the one before left it. Returns
    /// which of them allows the call as it is in the end.
    async fn before(
        &self,
        call: &mut Call,
        evaluation: &mut Evaluation<'a>,
        record: &mut Record<'_>,
    ) -> Option<String> {
        let (event, tool) = (Event::PreToolUse, call.tool.clone());
        let deadline = Hooks::deadline();
        let place = Place::from(&*call);
        let mut allowed_by = None;
        for hook in self.policy.asked(event, &tool) {
            if matches!(evaluation.verdict, Verdict::Deny(_)) {
                break;
            }
            let details = details(call, evaluation);
            let occasion = Occasion { event, place: &place, policy: self.policy, details };
            let mut asked = self.hooks.ask(hook, &occasion, deadline, record).await;
            let mut rewritten = None;
            if let Ok(Answer { decision: Decision::Rewrite(input_json), .. }) = &asked.answer {
                match self.rewrite(call, input_json) {
                    Ok(found) => rewritten = Some(found),
                    Err(problem) => asked.answer = Err(problem),
                }
            }
            let kept = match &rewritten {
                Some((call, _)) => self.keep(call).await,
                None => None,
            };
            let answer = self.hooks.conclude(hook, &occasion, asked, kept, record).await;
            match answer.map(|answer| (answer.decision.clone(), answer)) {
                Some((Decision::Deny | Decision::Block, answer)) => deny(evaluation, hook, &answer),
                Some((Decision::Allow, _)) => allowed_by = Some(hook.id.clone()),
                Some((Decision::Rewrite(_), _)) => {
                    if let Some((next, found)) = rewritten {
                        (*call, *evaluation) = (next, found);
                        evaluation.reason +=
                            &format!(" (of the input that the hook {} wrote)", hook.id);
                        allowed_by = None;
                    }
                }
                Some((Decision::Continue, _)) | None => (),
            }
        }
        allowed_by
    }

    /// Asks the hooks of `permission_request` before a person is asked.
    async fn request(&self, call: &Call, evaluation: &mut Evaluation<'a>, record: &mut Record<'_>) {
        let (event, place) = (Event::PermissionRequest, Place::from(call));
        let details = details(call, evaluation);
        let occasion = Occasion { event, place: &place, policy: self.policy, details };
        let verdict = self.hooks.all(&occasion, record).await;
        match (verdict.block, verdict.allow) {
            (Some(reason), _) => refuse(evaluation, reason),
            (None, Some(hook)) => allow(evaluation, &hook),
            (None, None) => (),
        }
    }

    /// The call with another input, and what rules say of that.
    fn rewrite(&self, call: &Call, input_json: &str) -> Result<(Call, Evaluation<'a>), String> {
        if input_json.len() > LARGEST_INPUT {
            return Err("the input that it wrote is larger than 1 MiB".to_owned());
        }
        let call = Call { input_json: input_json.to_owned(), ..call.clone() };
        let evaluation = evaluate(self.catalog, &call);
        match &evaluation.verdict {
            Verdict::Deny(Kind::Schema) => Err(format!("it rewrote, and {}", evaluation.reason)),
            _ => Ok((call, evaluation)),
        }
    }

    /// Keeps an input where clients can read it in pieces.
    async fn keep(&self, call: &Call) -> Option<String> {
        let keeping = async {
            let mut spool = self.outputs.spool(LARGEST_INPUT);
            spool.push(call.input_json.as_bytes()).await?;
            self.outputs.keep(call, spool.finish().await?).await
        };
        let kept = keeping.await.inspect_err(|error| {
            error!(%error, tool_call.id = %call.tool_call_id, "an updated input cannot be kept");
        });
        Some(kept.ok()?.output_ref.to_string())
    }
}

fn deny(evaluation: &mut Evaluation<'_>, hook: &Hook, answer: &Answer) {
    refuse(evaluation, blocks(hook, answer));
}

fn refuse(evaluation: &mut Evaluation<'_>, reason: String) {
    evaluation.verdict = Verdict::Deny(Kind::Denied);
    evaluation.cause = "hook";
    evaluation.reason = reason;
}

/// Nobody needs to be asked any more.
fn allow(evaluation: &mut Evaluation<'_>, hook: &str) {
    let verdict = std::mem::replace(&mut evaluation.verdict, Verdict::Deny(Kind::Denied));
    evaluation.verdict = match verdict {
        Verdict::Ask(permit) => Verdict::Allow(permit),
        verdict => verdict,
    };
    evaluation.cause = "hook";
    evaluation.reason += &format!(", and the hook {hook} allows it");
}

/// What hooks are told about a call that has not run.
fn details(call: &Call, evaluation: &Evaluation<'_>) -> Map<String, Value> {
    let input = match &evaluation.verdict {
        Verdict::Allow(permit) | Verdict::Ask(permit) => permit.input.clone(),
        Verdict::Deny(_) => Value::Null,
    };
    let evaluated = facts::permission_evaluated(call, evaluation);
    let permission = json!({
        "decision": evaluated.decision,
        "reason": evaluated.reason,
        "compared": evaluated.compared,
        "destructive": evaluated.destructive,
        "mode": evaluated.mode,
    });
    Map::from_iter([("input".to_owned(), input), ("permission".to_owned(), permission)])
}
