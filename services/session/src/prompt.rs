//! What the model sees: system prompt, history, this turn, tools. Pure, so that
//! the same session gives the same prompt on any replica.

use proto::{models::v1 as models, tools::v1 as tools};
use sha2::{Digest as _, Sha256};

use crate::{
    agent::Agent,
    message::{Message, Part, Role, ToolState, ToolUse},
    turn::Step,
};

/// A system prompt and the name under which its body is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct System {
    pub text: String,
    pub digest: String,
}

/// Puts the sections together, in an order that never changes.
pub fn system(agent: &Agent, tools: &[tools::Tool]) -> System {
    let mut sections = Vec::new();
    if !agent.manifest.prompt.is_empty() {
        sections.push(agent.manifest.prompt.trim_end().to_owned());
    }
    if agent.manifest.caller == "agent" {
        sections.push("Your caller is another agent; return structured output.".to_owned());
    }
    if !tools.is_empty() {
        sections.push(
            "Environment: tools run in a sandbox without network; the working directory is /workspace."
                .to_owned(),
        );
    }
    let text = sections.join("\n\n");
    let digest = format!("sha256:{:x}", Sha256::digest(text.as_bytes()));
    System { text, digest }
}

/// The conversation in the words of the models service.
pub fn assemble(
    system: &System,
    history: &[Message],
    steps: &[Step],
    tools: &[tools::Tool],
) -> models::Prompt {
    let mut messages = Vec::with_capacity(history.len() + steps.len() * 2);
    for message in history {
        match message.role {
            Role::User => messages.push(user(&message.parts)),
            Role::Assistant => messages.extend(assistant(&message.parts)),
        }
    }
    for step in steps {
        messages.extend(assistant(&step.parts));
    }
    models::Prompt {
        system: system.text.clone(),
        messages,
        tools: tools
            .iter()
            .map(|tool| models::Tool {
                name: tool.name.clone(),
                description: tool.description.clone(),
                input_schema_json: tool.input_schema_json.clone(),
            })
            .collect(),
    }
}

fn user(parts: &[Part]) -> models::Message {
    let mut content: Vec<_> = parts
        .iter()
        .filter_map(|part| match part {
            Part::Text(text) => Some(models::content::Kind::Text(text.text.clone())),
            Part::File(file) if file.media_type.starts_with("image/") && !file.data.is_empty() => {
                let (media_type, data) = (file.media_type.clone(), file.data.clone());
                Some(models::content::Kind::Image(models::Image { media_type, data }))
            }
            Part::File(file) => Some(models::content::Kind::Text(format!(
                "[file {} at {}]",
                file.name, file.reference
            ))),
            Part::Reasoning(_) | Part::Tool(_) | Part::Data { .. } => None,
        })
        .collect();
    // A message that only switches the agent still is the user's turn to speak.
    if content.is_empty() {
        content.push(models::content::Kind::Text("Continue.".to_owned()));
    }
    message(models::message::Role::User, content)
}

/// An assistant message, and what its tools answered.
fn assistant(parts: &[Part]) -> Vec<models::Message> {
    let (mut said, mut results) = (Vec::new(), Vec::new());
    for part in parts {
        match part {
            Part::Text(text) if !text.text.is_empty() => {
                said.push(models::content::Kind::Text(text.text.clone()));
            }
            Part::Reasoning(text) => {
                said.push(models::content::Kind::Reasoning(models::Reasoning {
                    text: text.text.clone(),
                    signature: text.signature.clone(),
                }));
            }
            // A call that never got its whole input cannot be shown to a model again.
            Part::Tool(tool_use) if tool_use.input_json.is_empty() => {}
            Part::Tool(tool_use) => {
                said.push(models::content::Kind::ToolCall(models::ToolCall {
                    tool_call_id: tool_use.tool_call_id.to_string(),
                    tool: tool_use.tool.clone(),
                    input_json: tool_use.input_json.clone(),
                }));
                results.push(models::content::Kind::ToolResult(result(tool_use)));
            }
            Part::Text(_) | Part::File(_) | Part::Data { .. } => {}
        }
    }
    let mut messages = Vec::new();
    if !said.is_empty() {
        messages.push(message(models::message::Role::Assistant, said));
    }
    if !results.is_empty() {
        messages.push(message(models::message::Role::Tool, results));
    }
    messages
}

fn result(tool_use: &ToolUse) -> models::ToolResult {
    let error = tool_use.state != ToolState::OutputAvailable;
    let text = match error {
        true => tool_use.error_text.clone(),
        false => tool_use.output_json.clone(),
    };
    models::ToolResult {
        tool_call_id: tool_use.tool_call_id.to_string(),
        text: text.unwrap_or_default(),
        error,
    }
}

fn message(role: models::message::Role, content: Vec<models::content::Kind>) -> models::Message {
    let content = content.into_iter().map(|kind| models::Content { kind: Some(kind) }).collect();
    models::Message { role: role.into(), content }
}
