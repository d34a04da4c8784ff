//! Events as lines for a person: who said what, which tool ran where, what it cost.

use std::io::{self, Write};

use proto::event::v1::{SandboxApplied, TurnCompleted, event::Payload};

/// A terminal that text streams to, piece by piece.
#[derive(Default)]
pub struct Screen {
    /// Whether the last line waits for more.
    open: bool,
    /// The last decision about a tool call.
    verdict: String,
}

impl Screen {
    pub fn title(&mut self, text: &str) {
        self.line(&format!("\n── {text} ──\n"));
    }

    pub fn says(&mut self, who: &str, text: &str) {
        self.line(&format!("{who:>10} │ {text}"));
    }

    /// Shows an event if it is one of those a newcomer wants to see.
    pub fn show(&mut self, payload: &Payload) {
        match payload {
            Payload::RoutingDecided(routing) => {
                self.says("model", &format!("{}/{}", routing.provider, routing.model));
            }
            Payload::ModelDelta(delta) => self.stream("agent", &delta.text),
            Payload::ToolStarted(tool) => self.says("tool", &tool.tool),
            Payload::ToolArgs(args) => self.says("input", &args.input_json),
            Payload::PermissionEvaluated(permission) => {
                let verdict = format!("{} ({})", permission.decision, permission.reason);
                // Evaluated when the model asks and again when the tool runs; news only if they differ.
                if self.verdict != verdict {
                    self.says("permission", &verdict);
                    self.verdict = verdict;
                }
            }
            Payload::SandboxApplied(sandbox) => self.says("sandbox", &describe(sandbox)),
            Payload::ToolProgress(progress) => self.stream(&progress.stream, &progress.text),
            Payload::ToolResult(result) => {
                let took = result.metadata.as_ref().map_or(0, |metadata| metadata.duration_ms);
                self.says("result", &format!("ended well after {took} ms"));
            }
            Payload::ToolFailed(failed) => {
                self.says("failed", &format!("{}: {}", failed.kind, failed.error_text));
            }
            Payload::TurnCompleted(turn) => self.says("cost", &cost(turn)),
            Payload::TurnFailed(turn) => self.says("failed", &turn.message),
            _ => {}
        }
    }

    /// Continues the line that is open, or opens one.
    fn stream(&mut self, who: &str, text: &str) {
        if !self.open {
            self.write(&format!("{who:>10} │ "));
        }
        self.open = !text.ends_with('\n');
        let (body, end) = match text.strip_suffix('\n') {
            Some(body) => (body, "\n"),
            None => (text, ""),
        };
        self.write(&format!("{}{end}", body.replace('\n', "\n           │ ")));
    }

    fn line(&mut self, text: &str) {
        let before = if self.open { "\n" } else { "" };
        self.open = false;
        self.write(&format!("{before}{text}\n"));
    }

    /// A terminal that is gone is no reason to stop.
    fn write(&self, text: &str) {
        let mut out = io::stdout();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).ok();
    }
}

fn describe(sandbox: &SandboxApplied) -> String {
    let layers = sandbox.layers.iter().filter(|layer| layer.applied);
    let layers: Vec<&str> = layers.map(|layer| layer.name.as_str()).collect();
    let network = match sandbox.network.join(", ") {
        hosts if hosts.is_empty() => "none".to_owned(),
        hosts => hosts,
    };
    let (tier, mode) = (&sandbox.tier, &sandbox.mode);
    format!("tier {tier}, {mode}, network {network}: {}", layers.join(" "))
}

fn cost(turn: &TurnCompleted) -> String {
    let usage = turn.usage.unwrap_or_default();
    let (whole, micros) = (turn.cost_micros / 1_000_000, turn.cost_micros % 1_000_000);
    format!(
        "{whole}.{micros:06}, {} tokens in and {} out, {} steps",
        usage.input, usage.output, turn.steps
    )
}
