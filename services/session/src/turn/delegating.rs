//! The part of the loop that has children work: a call of `task` is over at once when they do it in
//! the background, and otherwise waits as a call waits that a person is asked about.

use proto::event::v1::{Event, Payload, SubagentEnded, SubagentSpawned, ToolMetadata};
use serde_json::json;

use super::{Effect, Outcome, Phase, Progress, Step, Turn};
use crate::{
    ids::ToolCallId,
    message::{MessageStatus, Metadata},
    subagent::{Note, Spawn},
};

/// The tool that spawns children.
pub const TASK: &str = "task";

/// How a child in the background has ended, for the conversation.
#[derive(Debug, Clone, PartialEq)]
pub struct Told {
    pub note: Note,
    pub ended: SubagentEnded,
    pub tool_call_id: ToolCallId,
    pub metadata: Metadata,
}

impl Step {
    /// Whether it says how a child has ended in place of an answer.
    pub fn is_told(&self) -> bool {
        Note::of(&self.parts).is_some()
    }
}

impl Turn {
    /// A child is there to do what the call asks for.
    pub(super) fn spawned(&mut self, id: ToolCallId, spawn: Box<Spawn>, effects: &mut Vec<Effect>) {
        let Some((index, tool_use)) = self.call_mut(id) else { return };
        let origin = &spawn.origin;
        tool_use.subagent = Some(origin.subagent_id);
        let permissions = serde_json::to_string(&origin.permissions).unwrap_or_default();
        let spawned = SubagentSpawned {
            agent: origin.agent.clone(),
            child_session_id: origin.session_id.to_string(),
            parent_session_id: origin.parent_id.to_string(),
            parent_message_id: origin.parent_message_id.to_string(),
            background: origin.background,
            inspectable: origin.inspectable,
            depth: origin.depth,
            effective_permissions_json: permissions,
        };
        if let Effect::Append(mut event) = self.append_call(id, Payload::SubagentSpawned(spawned)) {
            event.subagent_id = origin.subagent_id.to_string();
            effects.push(Effect::Append(event));
        }
        match origin.background {
            true => {
                let data = json!({
                    "session_id": origin.session_id, "subagent_id": origin.subagent_id,
                    "status": "running",
                });
                let (data_json, metadata) = (data.to_string(), ToolMetadata::default());
                effects.push(Effect::Delegate(spawn));
                self.settle(id, Outcome::Result { data_json, metadata }, effects);
            }
            false => {
                effects.push(Effect::Delegate(spawn));
                effects.push(Effect::SavePart(index));
                self.set_progress(id, Progress::Delegated);
            }
        }
    }

    /// A child in the background has ended, and the model is between two steps.
    pub(super) fn told(&mut self, told: Told, effects: &mut Vec<Effect>) {
        let Told { note, ended, tool_call_id, metadata } = told;
        let message_id = note.subagent_id.message();
        let known = self.steps.iter().any(|step| step.message_id == message_id);
        if self.open_step().is_some() || known {
            return;
        }
        let payload = match note.status.as_str() {
            "completed" => Payload::SubagentCompleted(ended),
            "closed" => Payload::SubagentClosed(ended),
            _ => Payload::SubagentFailed(ended),
        };
        effects.push(Effect::Append(Box::new(Event {
            subagent_id: note.subagent_id.to_string(),
            tool_call_id: tool_call_id.to_string(),
            ..Event::fact(payload)
        })));
        let (status, parts) = (MessageStatus::Completed, vec![note.part()]);
        self.steps.push(Step { message_id, status, metadata, parts });
        effects.push(Effect::SaveMessage);
        effects.push(Effect::SavePart(0));
        effects.push(Effect::Tell(note.subagent_id));
        self.open(1, effects);
    }

    /// Whether a call of the last step waits for a child.
    pub(super) fn delegates(&self) -> bool {
        match &self.phase {
            Phase::Acting(calls) | Phase::Parked(calls) => {
                calls.iter().any(|call| call.progress == Progress::Delegated)
            }
            _ => false,
        }
    }
}
