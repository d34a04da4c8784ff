//! What the events of a session add up to, told by nobody but the log: a second opinion on the read
//! models, written without looking at how they are kept.
//!
//! What people wrote is not in the log, which only says that they did and in which message; it is
//! taken from there. Kept twice it would cost a megabyte at worst, and have to be removed twice.
//! The ids of parts, and the signatures that providers want back with their reasoning, are
//! in no event either: they are names and tokens that no view depends on.

use proto::{
    event::v1::{Event, Payload, Usage},
    session::v1::{
        CostState, LimitState, Message, Part, StepView, ToolCallView, TurnView,
        message::Role,
        part::{Content, Text, ToolUse},
    },
};

#[derive(Debug, Default, Clone, PartialEq)]
pub struct Fold {
    /// In the order of the conversation, what waits at its end; without parts where people wrote.
    pub messages: Vec<Message>,
    pub turns: Vec<Turn>,
    /// The turns that wait, in order.
    pub queue: Vec<String>,
    /// What people are asked, by action and by tool call.
    pub open: Vec<(String, String)>,
    pub active: Option<String>,
    pub input_tokens: i64,
    pub output_tokens: i64,
    pub cost_micros: i64,
    pub model_calls: i32,
    pub last_sequence: i64,
    /// Whether the last turn ended in a way that keeps the queue waiting.
    pub error: bool,
}

#[derive(Debug, Default, Clone, PartialEq)]
pub struct Turn {
    pub message_id: String,
    pub view: TurnView,
}

impl Fold {
    pub fn of<'a>(events: impl IntoIterator<Item = &'a Event>) -> Fold {
        let mut fold = Fold::default();
        events.into_iter().for_each(|event| fold.add(event));
        fold
    }

    /// Adds the next event. One that changes no view only moves the sequence.
    pub fn add(&mut self, event: &Event) {
        self.last_sequence = event.sequence;
        let Some(payload) = &event.payload else { return };
        // A process belongs to no turn.
        if !event.process_id.is_empty() {
            return;
        }
        match payload {
            Payload::TurnSubmitted(submitted) => {
                self.messages.push(Message {
                    message_id: submitted.message_id.clone(),
                    session_id: event.session_id.clone(),
                    role: Role::User.into(),
                    turn_id: event.turn_id.clone(),
                    status: submitted.status.clone(),
                    ..Message::default()
                });
                let waits = submitted.status == "queued";
                let status = if waits { "queued" } else { "preparing" }.to_owned();
                let view =
                    TurnView { turn_id: event.turn_id.clone(), status, ..TurnView::default() };
                self.turns.push(Turn { message_id: submitted.message_id.clone(), view });
                match waits {
                    true => self.queue.push(event.turn_id.clone()),
                    false => self.active = Some(event.turn_id.clone()),
                }
                self.error = false;
            }
            Payload::QueueChanged(changed) if changed.change == "fired" => {
                self.queue.retain(|turn_id| *turn_id != changed.turn_id);
                self.active = Some(changed.turn_id.clone());
                self.view(&changed.turn_id).status = "preparing".into();
                let asked = self.messages.iter().position(|message| {
                    message.turn_id == changed.turn_id && message.role() == Role::User
                });
                let mut message = self.messages.remove(asked.unwrap());
                message.status = "accepted".into();
                let place = self.messages.iter().position(|message| message.status == "queued");
                self.messages.insert(place.unwrap_or(self.messages.len()), message);
            }
            Payload::QueueChanged(changed) if changed.change == "cancelled" => {
                self.queue.retain(|turn_id| *turn_id != changed.turn_id);
                self.messages.retain(|message| message.turn_id != changed.turn_id);
            }
            Payload::QueueChanged(changed) if changed.change == "promoted" => {
                self.queue.retain(|turn_id| *turn_id != changed.turn_id);
                self.queue.insert(0, changed.turn_id.clone());
                self.line_up();
            }
            Payload::QueueChanged(changed) if changed.change == "reordered" => {
                self.queue = changed.turn_ids.clone();
                self.line_up();
            }
            Payload::QueueChanged(changed) if changed.change == "resumed" => self.error = false,
            Payload::ActionRequired(_) => {
                self.open.push((event.action_id.clone(), event.tool_call_id.clone()));
            }
            Payload::ActionResolved(_) => self.open.retain(|(id, _)| *id != event.action_id),
            Payload::TurnStarted(started) => {
                let view = self.view(&event.turn_id);
                view.status = "preparing".into();
                view.started_at = event.timestamp;
                view.agent = started.agent.clone();
                view.agent_version = started.agent_version;
            }
            Payload::ModelRequested(requested) => {
                let view = self.view(&event.turn_id);
                view.status = "running".into();
                view.status_reason.clear();
                let agent = view.agent.clone();
                if self.messages.iter().all(|message| message.message_id != requested.message_id) {
                    let message = Message {
                        message_id: requested.message_id.clone(),
                        session_id: event.session_id.clone(),
                        role: Role::Assistant.into(),
                        turn_id: event.turn_id.clone(),
                        agent,
                        prompt_digest: requested.prompt_digest.clone(),
                        status: "streaming".into(),
                        ..Message::default()
                    };
                    let place = self.messages.iter().position(|message| message.status == "queued");
                    self.messages.insert(place.unwrap_or(self.messages.len()), message);
                }
            }
            Payload::ModelDelta(delta) => {
                self.view(&event.turn_id).status = "streaming".into();
                self.say(&delta.message_id, delta.part_index, "text", &delta.text);
            }
            Payload::ReasoningDelta(delta) => {
                self.view(&event.turn_id).status = "streaming".into();
                self.say(&delta.message_id, delta.part_index, "reasoning", &delta.text);
            }
            Payload::ModelCompleted(completed) => {
                let usage = completed.usage.unwrap_or_default();
                let message = self.message(&completed.message_id);
                close(message);
                message.status = "completed".into();
                message.usage = completed.usage;
                message.cost_micros = completed.cost_micros;
                message.model = format!("{}/{}", completed.provider, completed.model);
                let read = [usage.input, usage.cache_read, usage.cache_write];
                self.input_tokens += read.into_iter().map(i64::from).sum::<i64>();
                self.output_tokens += i64::from(usage.output);
                self.cost_micros += completed.cost_micros;
                self.model_calls += 1;
            }
            Payload::ToolStarted(started) => {
                self.view(&event.turn_id).status = "running".into();
                let message = self.message(&started.message_id);
                close(message);
                assert_eq!(message.parts.len() as i32, started.part_index);
                message.parts.push(Part {
                    part_id: String::new(),
                    index: started.part_index,
                    r#type: format!("tool-{}", started.tool),
                    content: Some(Content::Tool(ToolUse {
                        tool_call_id: event.tool_call_id.clone(),
                        tool: started.tool.clone(),
                        state: "input-streaming".into(),
                        ..ToolUse::default()
                    })),
                });
            }
            Payload::ToolArgs(args) => {
                let call = self.call(&event.tool_call_id);
                call.state = "input-available".into();
                call.input_json = args.input_json.clone();
            }
            Payload::ToolResult(result) => {
                let call = self.call(&event.tool_call_id);
                call.state = "output-available".into();
                call.output_json = result.data_json.clone();
                call.metadata = result.metadata.clone();
            }
            Payload::ToolFailed(failed) => {
                let call = self.call(&event.tool_call_id);
                call.state = "output-error".into();
                call.error_text = failed.error_text.clone();
                call.metadata = failed.metadata.clone();
            }
            Payload::RunStatus(status) => {
                let view = self.view(&event.turn_id);
                view.status = match status.status.as_str() {
                    "retrying" => "retrying",
                    "waiting_on_approval" | "waiting_on_user_input" | "waiting_on_child" => {
                        "blocked"
                    }
                    _ => "running",
                }
                .into();
                view.status_reason = status.message.clone();
            }
            Payload::TurnCompleted(_) => {
                let view = self.view(&event.turn_id);
                view.status = "completed".into();
                view.status_reason.clear();
                view.completed_at = event.timestamp;
                self.active = None;
            }
            Payload::TurnFailed(failed) => {
                let view = self.view(&event.turn_id);
                view.status = failed.status.clone();
                view.status_reason = failed.message.clone();
                view.completed_at = event.timestamp;
                let open = self.messages.iter_mut().filter(|message| {
                    message.turn_id == event.turn_id && message.status == "streaming"
                });
                open.for_each(|message| {
                    close(message);
                    message.status = failed.status.clone();
                });
                // One that was taken out of the queue was never active.
                if self.active.as_deref() == Some(&event.turn_id) {
                    self.active = None;
                    let hard = ["provider_error", "limit", "internal", "context_too_large"];
                    self.error = hard.contains(&failed.reason.as_str());
                }
            }
            Payload::TaskProfileResolved(profile) => {
                self.view(&event.turn_id).task_profile = Some(profile.clone());
            }
            Payload::RoutingCandidatesResolved(candidates) => {
                self.view(&event.turn_id).candidate_model_set = Some(candidates.clone());
            }
            Payload::RoutingDecided(decided) => {
                self.view(&event.turn_id).routing_decision = Some(decided.clone());
            }
            Payload::PermissionEvaluated(evaluated) => {
                self.view(&event.turn_id).permission_state = Some(evaluated.clone());
            }
            Payload::SandboxApplied(applied) => {
                self.view(&event.turn_id).sandbox_profile = Some(applied.clone());
            }
            Payload::CostEstimated(_) => {
                let view = self.view(&event.turn_id);
                view.limit_state.get_or_insert_with(|| LimitState {
                    status: "ok".into(),
                    ..LimitState::default()
                });
            }
            Payload::CostRecorded(cost) => {
                let state =
                    self.view(&event.turn_id).cost_state.get_or_insert_with(CostState::default);
                *state.usage.get_or_insert_with(Usage::default) += cost.usage.unwrap_or_default();
                state.cost_micros += cost.cost_micros;
                state.currency = cost.currency.clone();
                state.model_calls += 1;
            }
            _ => {}
        }
    }

    /// The views of the turns, with the steps that their messages are.
    pub fn views(&self) -> Vec<TurnView> {
        let views = self.turns.iter().map(|turn| {
            let steps = self.messages.iter().filter(|message| {
                message.turn_id == turn.view.turn_id && message.role() == Role::Assistant
            });
            TurnView {
                steps: steps.map(|message| self.step(message)).collect(),
                ..turn.view.clone()
            }
        });
        views.collect()
    }

    /// What waits stands at the end of the conversation, in the order of the queue.
    fn line_up(&mut self) {
        let place = |message: &Message| {
            self.queue.iter().position(|turn_id| *turn_id == message.turn_id).map(|place| place + 1)
        };
        self.messages.sort_by_key(|message| place(message).unwrap_or(0));
    }

    fn step(&self, message: &Message) -> StepView {
        let mut step = step(message);
        for call in &mut step.tool_calls {
            if self.open.iter().any(|(_, tool_call_id)| *tool_call_id == call.tool_call_id) {
                call.status = "blocked".into();
            }
        }
        step
    }

    fn view(&mut self, turn_id: &str) -> &mut TurnView {
        let turn = self.turns.iter_mut().find(|turn| turn.view.turn_id == turn_id);
        &mut turn.expect("an event of a turn that nobody submitted").view
    }

    fn message(&mut self, id: &str) -> &mut Message {
        let message = self.messages.iter_mut().find(|message| message.message_id == id);
        message.expect("an event of a message that nobody asked for")
    }

    fn call(&mut self, id: &str) -> &mut ToolUse {
        let parts = self.messages.iter_mut().flat_map(|message| &mut message.parts);
        let mut calls = parts.filter_map(|part| match &mut part.content {
            Some(Content::Tool(call)) if call.tool_call_id == id => Some(call),
            _ => None,
        });
        calls.next().expect("an event of a call that nobody made")
    }

    fn say(&mut self, message_id: &str, index: i32, kind: &str, text: &str) {
        let message = self.message(message_id);
        if message.parts.len() as i32 == index {
            close(message);
            message.parts.push(Part {
                part_id: String::new(),
                index,
                r#type: kind.to_owned(),
                content: Some(Content::Text(Text { text: String::new(), streaming: true })),
            });
        }
        match &mut message.parts[index as usize].content {
            Some(Content::Text(part)) => part.text.push_str(text),
            other => panic!("a delta of {other:?}"),
        }
    }
}

/// What was said last is said to its end.
fn close(message: &mut Message) {
    if let Some(Part { content: Some(Content::Text(text)), .. }) = message.parts.last_mut() {
        text.streaming = false;
    }
}

fn step(message: &Message) -> StepView {
    let calls = message.parts.iter().filter_map(|part| match &part.content {
        Some(Content::Tool(call)) => Some(ToolCallView {
            tool_call_id: call.tool_call_id.clone(),
            tool: call.tool.clone(),
            status: match call.state.as_str() {
                "input-streaming" => "pending",
                "input-available" => "running",
                "output-available" => "completed",
                _ => "failed",
            }
            .into(),
            error_text: call.error_text.clone(),
        }),
        _ => None,
    });
    StepView {
        step_id: message.message_id.replacen("msg_", "step_", 1),
        message_id: message.message_id.clone(),
        status: message.status.clone(),
        model: message.model.clone(),
        tool_calls: calls.collect(),
    }
}
