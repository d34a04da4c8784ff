use std::time::Duration;

use proto::{
    event::v1::{
        Event, OutputStored, Payload, PermissionEvaluated, SandboxApplied, SandboxViolation,
        ToolProgress,
        permission_evaluated::Rule,
        sandbox_applied::{Layer, Limits},
    },
    tools::v1::{ExecuteResponse, execute_response::Item},
};
use sandbox::{Profile, Report, Violation};
use tokio::sync::mpsc;
use tonic::Status;

use crate::{
    call::Call,
    egress::{self, Record},
    evaluate::{Evaluation, Verdict, action_name, mode_name},
    judge::source_name,
    outcome::Outcome,
    outputs::Kept,
    rules,
};

pub type Answer = Result<ExecuteResponse, Status>;

/// The way to the caller: facts as they happen, and one outcome.
pub struct Facts<'a> {
    call: &'a Call,
    sender: mpsc::Sender<Answer>,
}

impl<'a> Facts<'a> {
    pub fn new(call: &'a Call, sender: mpsc::Sender<Answer>) -> Facts<'a> {
        Facts { call, sender }
    }

    /// Puts something on record. Waits while the caller is behind.
    pub async fn note(&self, payload: Payload) {
        self.send(Item::Fact(about(self.call, payload).into())).await;
    }

    /// Puts a whole fact on record.
    pub async fn tell(&self, fact: Event) {
        self.send(Item::Fact(fact.into())).await;
    }

    /// Puts on record what became of an output.
    pub async fn note_output(&self, kept: &Kept, payload: Payload) {
        let fact = Event { output_ref: kept.output_ref.to_string(), ..about(self.call, payload) };
        self.send(Item::Fact(fact.into())).await;
    }

    /// Puts on record what a call was refused on its way out.
    pub async fn note_refusals(&self, record: &Record) {
        for reason in &record.refused {
            self.note(Payload::SandboxViolation(egress_refused(reason))).await;
        }
    }

    /// What all of this is about.
    pub fn call(&self) -> &Call {
        self.call
    }

    pub async fn end(&self, outcome: Outcome) {
        self.send(Item::Outcome(outcome.into())).await;
    }

    async fn send(&self, item: Item) {
        // A caller that is gone is noticed by whoever waits for `abandoned`.
        let _ = self.sender.send(Ok(ExecuteResponse { item: Some(item) })).await;
    }

    /// Returns when nobody listens any more.
    pub async fn abandoned(&self) {
        self.sender.closed().await;
    }
}

/// A fact with the ids that we know.
pub fn about(call: &Call, payload: Payload) -> Event {
    Event {
        session_id: call.session_id.to_string(),
        turn_id: call.turn_id.clone(),
        step_id: call.step_id.clone(),
        tool_call_id: call.tool_call_id.to_string(),
        ..Event::fact(payload)
    }
}

pub fn permission_evaluated(call: &Call, evaluation: &Evaluation<'_>) -> PermissionEvaluated {
    let decision = match &evaluation.verdict {
        Verdict::Allow(_) => "allow",
        Verdict::Ask(_) => "ask",
        Verdict::Deny(_) => "deny",
    };
    let rule = evaluation.rule.as_ref().map(|rule| Rule {
        permission: rule.permission.clone(),
        pattern: rule.pattern.clone(),
        action: action_name(rule.action()).into(),
        source: source_name(rules::source(rule)).into(),
    });
    PermissionEvaluated {
        decision: decision.into(),
        cause: evaluation.cause.into(),
        rule,
        compared: evaluation.compared.clone(),
        mode: mode_name(call.permissions.mode()).into(),
        destructive: evaluation.destructive.is_some(),
        destructive_reason: evaluation.destructive.clone().unwrap_or_default(),
        reason: evaluation.reason.clone(),
    }
}

/// The sandbox as it really is. `wall` and `output_bytes` are limits that we keep ourselves.
pub fn sandbox_applied(
    report: &Report,
    profile: &Profile,
    network: &[String],
    wall: Duration,
    output_bytes: usize,
) -> SandboxApplied {
    let layers = report.layers.iter().map(|report| Layer {
        name: report.layer.name().into(),
        applied: report.applied,
        detail: report.detail.clone(),
    });
    let limits = &profile.limits;
    SandboxApplied {
        tier: report.tier().to_string(),
        mode: mode(profile).into(),
        layers: layers.collect(),
        writable: report.writable().iter().map(ToString::to_string).collect(),
        network: network_of(network),
        limits: Some(Limits {
            wall_ms: int32(wall.as_millis() as u64),
            cpu_seconds: int32(limits.cpu_seconds),
            memory_bytes: int64(limits.memory_bytes),
            processes: int32(limits.processes),
            open_files: int32(limits.open_files),
            file_bytes: int64(limits.file_bytes),
            output_bytes: int64(output_bytes as u64),
        }),
    }
}

/// Whether the service was told to be content with less than all layers. That is how it runs,
/// and not what this call happened to get: whoever reads a fact must be able to tell.
pub fn mode(profile: &Profile) -> &'static str {
    if profile.is_strict() { "strict" } else { "relaxed" }
}

/// What a tool is kept in that works on files beside the sandbox.
pub fn workspace_applied(profile: &Profile) -> SandboxApplied {
    SandboxApplied {
        mode: mode(profile).into(),
        layers: vec![Layer {
            name: WORKSPACE.into(),
            applied: true,
            detail: "the kernel resolves every path beneath the workspace".into(),
        }],
        writable: vec!["/workspace".into()],
        network: vec!["none".into()],
        ..SandboxApplied::default()
    }
}

/// What a tool is kept in that reaches hosts and nothing else.
pub fn egress_applied(hosts: &[String]) -> SandboxApplied {
    SandboxApplied {
        mode: "strict".into(),
        layers: vec![Layer {
            name: egress::LAYER.into(),
            applied: true,
            detail: "hosts are checked by name and by address".into(),
        }],
        network: network_of(hosts),
        ..SandboxApplied::default()
    }
}

fn network_of(hosts: &[String]) -> Vec<String> {
    match hosts.is_empty() {
        true => vec!["none".into()],
        false => hosts.to_vec(),
    }
}

/// The layer that keeps tools in the workspace.
pub const WORKSPACE: &str = "workspace";

pub fn sandbox_violation(violation: &Violation) -> SandboxViolation {
    SandboxViolation { layer: violation.layer.name().into(), detail: violation.detail.clone() }
}

pub fn egress_refused(reason: &str) -> SandboxViolation {
    SandboxViolation { layer: egress::LAYER.into(), detail: reason.into() }
}

/// Something that is worth knowing, and that no command printed.
pub fn remark(text: &str) -> ToolProgress {
    ToolProgress { stream: "note".into(), text: text.into() }
}

pub fn progress(text: String) -> ToolProgress {
    ToolProgress { stream: "stdout".into(), text }
}

/// Output was too much for the log and is kept beside it.
pub fn output_spilled(total: u64, kept: &Kept) -> OutputStored {
    OutputStored {
        total_bytes: int64(total),
        kept_bytes: int64(kept.bytes),
        output_path: kept.path(),
        digest: format!("sha256:{}", kept.digest),
        ..OutputStored::default()
    }
}

/// Output was cut, and what is missing is nowhere.
pub fn output_truncated(total: u64, kept: u64) -> OutputStored {
    OutputStored { total_bytes: int64(total), kept_bytes: int64(kept), ..OutputStored::default() }
}

/// The contract's numbers are signed and ours are not.
pub fn int32(number: u64) -> i32 {
    number.try_into().unwrap_or(i32::MAX)
}

pub fn int64(number: u64) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}
