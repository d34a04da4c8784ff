//! The read model of a turn: what its events add up to. Pure, so that it can be
//! rebuilt from the log alone.

use proto::{
    event::v1::{Event, Payload},
    session::v1::{CostState, HookRun, LimitState, OutputRef, TurnView},
};

/// What stays visible of lists that have no natural end.
const MOST: usize = 50;

/// Adds one event to the view. Returns whether it changed.
///
/// Steps and tool calls are not here: they are the turn's messages and parts.
pub fn apply(view: &mut TurnView, event: &Event) -> bool {
    let Some(payload) = &event.payload else { return false };
    match payload {
        Payload::TurnStarted(started) => {
            view.started_at = event.timestamp;
            view.agent = started.agent.clone();
            view.agent_version = started.agent_version;
            view.status = "preparing".into();
        }
        Payload::ModelRequested(_) => {
            view.status = "running".into();
            view.status_reason.clear();
        }
        Payload::ModelDelta(_) | Payload::ReasoningDelta(_) => {
            if view.status == "streaming" {
                return false;
            }
            view.status = "streaming".into();
        }
        Payload::ToolStarted(_) => view.status = "running".into(),
        Payload::RunStatus(status) => {
            view.status = match status.status.as_str() {
                "retrying" => "retrying",
                "waiting_on_approval" | "waiting_on_user_input" | "waiting_on_child" => "blocked",
                _ => "running",
            }
            .into();
            view.status_reason = status.message.clone();
        }
        Payload::TurnCompleted(_) => {
            view.status = "completed".into();
            view.status_reason.clear();
            view.completed_at = event.timestamp;
        }
        Payload::TurnFailed(failed) => {
            view.status = failed.status.clone();
            view.status_reason = failed.message.clone();
            view.completed_at = event.timestamp;
        }

        Payload::TaskProfileResolved(profile) => view.task_profile = Some(profile.clone()),
        Payload::RoutingCandidatesResolved(candidates) => {
            view.candidate_model_set = Some(candidates.clone());
        }
        Payload::RoutingDecided(decided) => view.routing_decision = Some(decided.clone()),
        Payload::PermissionEvaluated(evaluated) => view.permission_state = Some(evaluated.clone()),
        Payload::SandboxApplied(applied) => view.sandbox_profile = Some(applied.clone()),

        Payload::CostRecorded(cost) => {
            let state = view.cost_state.get_or_insert_with(CostState::default);
            *state.usage.get_or_insert_default() += cost.usage.unwrap_or_default();
            state.cost_micros += cost.cost_micros;
            state.currency = cost.currency.clone();
            state.model_calls += 1;
        }
        // Whoever may ask a model has met no limit, unless another fact says so.
        Payload::CostEstimated(_) => {
            if view.limit_state.is_some() {
                return false;
            }
            view.limit_state = Some(LimitState { status: "ok".into(), ..LimitState::default() });
        }
        Payload::RateLimitHit(hit) => {
            let state = view.limit_state.get_or_insert_with(LimitState::default);
            state.status = "limited".into();
            state.rate_limit = Some(hit.clone());
        }
        Payload::QuotaLow(quota) | Payload::QuotaBlocked(quota) => {
            let state = view.limit_state.get_or_insert_with(LimitState::default);
            let blocked = matches!(payload, Payload::QuotaBlocked(_));
            state.status = if blocked { "blocked" } else { "low" }.into();
            state.quota = Some(quota.clone());
        }
        Payload::HookCompleted(hook) if view.hook_runs.len() < MOST => {
            view.hook_runs.push(HookRun {
                hook_id: hook.hook_id.clone(),
                event: hook.event.clone(),
                outcome: hook.outcome.clone(),
                reason: hook.reason.clone(),
            });
        }
        Payload::HookFailed(hook) if view.hook_runs.len() < MOST => {
            view.hook_runs.push(HookRun {
                hook_id: hook.hook_id.clone(),
                event: hook.event.clone(),
                outcome: "failed".into(),
                reason: hook.error.clone(),
            });
        }
        Payload::OutputSpilled(stored) if view.output_refs.len() < MOST => {
            view.output_refs.push(OutputRef {
                output_ref: event.output_ref.clone(),
                tool_call_id: event.tool_call_id.clone(),
                total_bytes: stored.total_bytes,
            });
        }
        _ => return false,
    }
    true
}
