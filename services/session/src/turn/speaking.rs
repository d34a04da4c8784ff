//! The part of the loop in which the model speaks.

use proto::event::v1::{
    Event, ModelCompleted, ModelDelta, ModelFailed, ModelRequested, Payload, ReasoningDelta,
    RunStatus, ToolArgs, ToolStarted,
};

use super::{Effect, Failure, Finished, Phase, Step, Trigger, Turn, effect};
use crate::{
    ids::{MessageId, ToolCallId},
    message::{MessageStatus, Metadata, Part, Text, ToolState, ToolUse},
};

impl Turn {
    pub(super) fn open(&mut self, attempt: u32, effects: &mut Vec<Effect>) {
        if attempt == 1 && self.model_calls() >= self.limits.steps {
            let message = format!(
                "the turn reached its limit of {} steps; raise the agent's limit or ask for less at once",
                self.limits.steps
            );
            return self.end_badly("failed", "limit", message, String::new(), true, effects);
        }
        if attempt == 1
            && let Some(most) = self.limits.tokens
            && self.tokens() >= most
        {
            let message = format!(
                "the turn reached its limit of {most} tokens; raise the agent's limit or ask for less at once"
            );
            return self.end_badly("failed", "limit", message, String::new(), true, effects);
        }
        self.phase = Phase::Opening { attempt };
        // A repeated attempt goes on in the same message, which is still empty.
        let message_id = self.open_step().map(|step| step.message_id);
        effects.push(Effect::OpenStep { message_id, attempt });
    }

    pub(super) fn opened(
        &mut self,
        attempt: u32,
        message_id: MessageId,
        request: ModelRequested,
        metadata: Metadata,
        facts: Vec<Event>,
        effects: &mut Vec<Effect>,
    ) {
        self.phase = Phase::Streaming { attempt };
        let status = MessageStatus::Streaming;
        if self.steps.last().is_none_or(|step| step.message_id != message_id) {
            self.steps.push(Step { message_id, status, metadata, parts: vec![] });
        }
        for fact in facts {
            effects.push(Effect::Append(Box::new(self.in_step(fact))));
        }
        effects.push(self.append(Payload::ModelRequested(request)));
        effects.push(Effect::SaveMessage);
    }

    pub(super) fn speak(&mut self, text: String, reasoning: bool, effects: &mut Vec<Effect>) {
        let grows = match self.last_part() {
            Some(Part::Text(part)) => part.streaming && !reasoning,
            // A signature is about what stands before it and nothing else.
            Some(Part::Reasoning(part)) => part.streaming && reasoning && part.signature.is_empty(),
            _ => false,
        };
        if !grows {
            self.close_part(effects);
            let part = Text { streaming: true, ..Text::default() };
            self.last_step().parts.push(match reasoning {
                true => Part::Reasoning(part),
                false => Part::Text(part),
            });
        }
        if let Some(part) = self.last_part() {
            part.extend(&text);
        }
        let step = self.last_step();
        let message_id = step.message_id.to_string();
        let part_index = step.parts.len() as i32 - 1;
        effects.push(self.append(match reasoning {
            true => Payload::ReasoningDelta(ReasoningDelta { message_id, part_index, text }),
            false => Payload::ModelDelta(ModelDelta { message_id, part_index, text }),
        }));
        // After its first delta, because it is stored with that text in it.
        if !grows {
            effects.push(Effect::SavePart(part_index as usize));
        }
    }

    /// Deltas do not carry the signature, so it is stored with the part at once.
    pub(super) fn sign(&mut self, signature: &str, effects: &mut Vec<Effect>) {
        if let Some(Part::Reasoning(part)) = self.last_part()
            && !signature.is_empty()
        {
            part.signature.push_str(signature);
            effects.push(Effect::SavePart(self.last_step().parts.len() - 1));
        }
    }

    pub(super) fn call_started(&mut self, tool_use: ToolUse, effects: &mut Vec<Effect>) {
        self.close_part(effects);
        let id = tool_use.tool_call_id;
        let step = self.last_step();
        let started = ToolStarted {
            message_id: step.message_id.to_string(),
            part_index: step.parts.len() as i32,
            tool: tool_use.tool.clone(),
        };
        step.parts.push(Part::Tool(tool_use));
        effects.push(Effect::SavePart(step.parts.len() - 1));
        effects.push(self.append_call(id, Payload::ToolStarted(started)));
    }

    pub(super) fn call_completed(
        &mut self,
        id: ToolCallId,
        input_json: String,
        effects: &mut Vec<Effect>,
    ) {
        let Some((index, tool_use)) = self.call_mut(id) else { return };
        tool_use.input_json = input_json.clone();
        tool_use.state = ToolState::InputAvailable;
        effects.push(self.append_call(id, Payload::ToolArgs(ToolArgs { input_json })));
        effects.push(Effect::SavePart(index));
    }

    pub(super) fn finished(&mut self, finished: Finished, effects: &mut Vec<Effect>) {
        self.close_part(effects);
        self.usage += finished.usage;
        self.cost_micros += finished.cost_micros;

        let step = self.last_step();
        step.status = MessageStatus::Completed;
        step.metadata.usage = Some(finished.usage);
        step.metadata.cost_micros = Some(finished.cost_micros);
        step.metadata.model = Some(format!("{}/{}", finished.provider, finished.model));
        step.metadata.finish_reason = Some(finished.finish_reason.clone());
        let message_id = step.message_id.to_string();
        effects.push(self.append(Payload::ModelCompleted(ModelCompleted {
            message_id: message_id.clone(),
            provider: finished.provider,
            model: finished.model,
            finish_reason: finished.finish_reason.clone(),
            usage: Some(finished.usage),
            cost_micros: finished.cost_micros,
        })));
        effects.push(Effect::SaveMessage);
        effects.push(Effect::Spend { usage: finished.usage, cost_micros: finished.cost_micros });

        let calls = self.calls();
        if calls.is_empty() {
            self.rest(message_id, finished.finish_reason, effects);
        } else {
            self.phase = Phase::Acting(calls);
            self.act_on(effects);
        }
    }

    pub(super) fn failed(&mut self, attempt: u32, failure: Failure, effects: &mut Vec<Effect>) {
        // Asking again after text was shown would say it twice.
        let silent = self.open_step().is_none_or(|step| step.parts.is_empty());
        let overflow = failure.kind == "context_overflow" && silent;
        let will_retry = overflow || failure.transient && silent && attempt < self.limits.attempts;
        let message_id = self.open_step().map(|step| step.message_id.to_string());
        effects.push(self.append(Payload::ModelFailed(ModelFailed {
            message_id: message_id.unwrap_or_default(),
            kind: failure.kind.clone(),
            message: failure.message.clone(),
            will_retry,
        })));
        if overflow {
            return self.compact(Trigger::Overflow, failure.message, effects);
        }
        if will_retry {
            let delay = failure.retry_after.unwrap_or_else(|| effect::backoff(attempt));
            effects.push(self.append(Payload::RunStatus(RunStatus {
                status: "retrying".into(),
                attempt: attempt as i32 + 1,
                delay_ms: delay.as_millis() as i32,
                message: failure.message.clone(),
            })));
            self.phase = Phase::Resting { attempt: attempt + 1 };
            let message = format!("attempt {} comes next: {}", attempt + 1, failure.message);
            effects.push(Effect::Rest { delay, message });
            return;
        }
        let reason = failure.reason();
        self.end_badly("failed", reason, failure.message, String::new(), true, effects);
    }

    /// Everything that was read and written in this turn.
    fn tokens(&self) -> i64 {
        let usage = self.usage;
        let counts = [usage.input, usage.output, usage.cache_read, usage.cache_write];
        counts.into_iter().map(i64::from).sum()
    }

    pub(super) fn close_part(&mut self, effects: &mut Vec<Effect>) {
        let index = self.last_step().parts.len().wrapping_sub(1);
        if let Some(Part::Text(part) | Part::Reasoning(part)) = self.last_part()
            && part.streaming
        {
            part.streaming = false;
            effects.push(Effect::SavePart(index));
        }
    }
}
