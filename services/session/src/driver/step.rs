//! Opens a step: assembles the prompt and calls the model.

use proto::{event::v1::ModelRequested, models::v1 as models, tools::v1::Tool};
use tokio::sync::mpsc;
use tracing::Instrument as _;

use super::{Driver, model};
use crate::{
    flusher::Stopped,
    ids::MessageId,
    message::Metadata,
    prompt::{self, System},
    turn::{Failure, Input},
};

impl Driver {
    pub(super) async fn open_step(
        &mut self,
        message_id: Option<MessageId>,
        attempt: u32,
        inputs: &mpsc::Sender<Input>,
    ) -> Result<(), Stopped> {
        let tools = match self.host.catalogue(&self.caller).await {
            Ok(tools) => self.allowed(&tools),
            Err(status) => {
                let failure = Failure {
                    kind: "unavailable".into(),
                    message: format!("the tools service does not answer: {}", status.message()),
                    transient: true,
                    retry_after: None,
                };
                return Box::pin(self.take(Input::Failed(failure), inputs)).await;
            }
        };
        let system = prompt::system(&self.agent, &tools);
        let prompt = prompt::assemble(&system, &self.history, self.turn.steps(), &tools);
        let message_id = message_id.unwrap_or_else(MessageId::new);
        let opened = self.opened(message_id, attempt, &system, &prompt);
        self.writer.add(|pending| pending.save_prompt(system.digest, system.text));
        Box::pin(self.take(opened, inputs)).await?;
        self.writer.add(|pending| pending.show("busy", String::new()));

        let manifest = &self.agent.manifest;
        let request = models::GenerateRequest {
            session_id: self.claim.session_id.to_string(),
            root_session_id: String::new(),
            turn_id: self.claim.turn_id.to_string(),
            step_id: message_id.step().to_string(),
            prompt: Some(prompt),
            target: Some(models::Target {
                model: self.model.clone(),
                profile: manifest.profile.clone(),
                capabilities: if tools.is_empty() { vec![] } else { vec!["tools".into()] },
            }),
            options: Some(models::Options {
                max_output_tokens: manifest.max_output_tokens,
                temperature: manifest.temperature,
                ..models::Options::default()
            }),
            attempt: attempt as i32,
            budget_id: String::new(),
        };
        let generate =
            model::generate(self.host.clone(), self.caller.clone(), request, inputs.clone());
        self.tasks.spawn(generate.in_current_span());
        Ok(())
    }

    fn opened(
        &self,
        message_id: MessageId,
        attempt: u32,
        system: &System,
        prompt: &models::Prompt,
    ) -> Input {
        let manifest = &self.agent.manifest;
        Input::StepOpened {
            message_id,
            request: ModelRequested {
                message_id: message_id.to_string(),
                model: match self.model.is_empty() {
                    true => manifest.profile.clone(),
                    false => self.model.clone(),
                },
                prompt_digest: system.digest.clone(),
                messages: prompt.messages.len() as i32,
                tools: prompt.tools.len() as i32,
                attempt: attempt as i32,
            },
            metadata: Metadata {
                agent: Some(self.agent.id.clone()),
                prompt_digest: Some(system.digest.clone()),
                ..Metadata::default()
            },
        }
    }

    /// The tools that exist for this agent.
    fn allowed(&self, tools: &[Tool]) -> Vec<Tool> {
        let names = self.agent.manifest.permissions.as_ref().map(|p| p.tools.as_slice());
        let listed = |tool: &&Tool| match names {
            None | Some([]) => true,
            Some(names) => names.contains(&tool.name),
        };
        tools.iter().filter(listed).cloned().collect()
    }
}
