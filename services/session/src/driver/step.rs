//! Opens a step: assembles the prompt and calls the model.

use std::{future::ready, sync::Arc};

use proto::{
    event::v1::{ContextResolved, Event, ModelRequested, Payload, ToolCatalogResolved},
    models::v1 as models,
};
use tonic::Status;
use tracing::{Instrument as _, warn};

use super::{Driver, Inputs, compact::CAUTIOUS_BYTES_PER_TOKEN, model};
use crate::{
    compaction,
    flusher::Stopped,
    ids::MessageId,
    message::{Metadata, Role},
    offer::{self, Offer},
    passing,
    prompt::{self, Around, System},
    surroundings::Surroundings,
    turn::{Failure, Input, Step, Trigger},
};

/// How large a prompt is and may be.
struct Size {
    tokens: i32,
    /// Zero: nobody knows.
    usable_tokens: i32,
    /// Why it cannot be sent, if it is too large.
    problem: Option<String>,
}

impl Driver {
    pub(super) async fn open_step(
        &mut self,
        message_id: Option<MessageId>,
        attempt: u32,
        inputs: &Inputs,
    ) -> Result<(), Stopped> {
        // A step that was begun is not told in the middle of it.
        if message_id.is_none() && attempt == 1 && self.tell(inputs).await {
            return Ok(());
        }
        let attempts = self.agent.limits().attempts;
        let (surroundings, offer) = match self.soon(self.around(attempt == attempts)).await {
            Ok(around) => around,
            Err(status) => {
                let failure = Failure {
                    kind: "unavailable".into(),
                    message: format!("the tools service does not answer: {}", status.message()),
                    transient: true,
                    retry_after: Some(passing::rest(&self.host, attempt, attempts)),
                };
                return Box::pin(self.take(Input::Failed(failure), inputs)).await;
            }
        };
        let around = Around {
            surroundings: &surroundings,
            memories: &self.memories,
            day: &self.day,
            offer: &offer,
        };
        let system = prompt::system(&self.agent, around);
        let view = compaction::view(&self.history, self.claim.turn_id, self.turn.steps());
        let prompt = prompt::assemble(&system, &view, &offer);
        let size = self.soon(self.size(&prompt, &offer)).await;
        // A step that was begun had a prompt that fits.
        if let Some(why) = size.problem.clone()
            && message_id.is_none()
        {
            let too_large = Input::TooLarge { trigger: self.trigger(), why };
            return Box::pin(self.take(too_large, inputs)).await;
        }
        let message_id = message_id.unwrap_or_else(MessageId::new);
        let opened = self.opened(message_id, attempt, &system, &prompt, size);
        if !self.host.prompts.contains_key(&(self.claim.tenant.clone(), system.digest.clone())) {
            self.writer.add(|pending| pending.save_prompt(system.digest, system.body));
        }
        Box::pin(self.take(opened, inputs)).await?;
        self.writer.add(|pending| pending.show("busy", String::new()));
        if self.answer_again(&offer, inputs) {
            return Ok(());
        }

        let manifest = &self.agent.manifest;
        let request = models::GenerateRequest {
            session_id: self.claim.session_id.to_string(),
            root_session_id: self.root(),
            turn_id: self.claim.turn_id.to_string(),
            step_id: message_id.step().to_string(),
            prompt: Some(prompt),
            target: Some(self.target(&offer)),
            options: Some(models::Options {
                max_output_tokens: manifest.max_output_tokens,
                temperature: manifest.temperature,
                ..models::Options::default()
            }),
            attempt: attempt as i32,
            budget_id: String::new(),
        };
        let (host, caller) = (self.host.clone(), self.caller.clone());
        let generate = model::generate(host, caller, request, offer, inputs.clone());
        self.tasks.spawn(generate.in_current_span());
        self.asked = true;
        Ok(())
    }

    /// What the workspace says and offers. Whoever asks for the last time goes on without the first.
    async fn around(&self, is_last: bool) -> Result<(Arc<Surroundings>, Arc<Offer>), Status> {
        let load = || self.host.surroundings(&self.caller, self.workspace_id);
        let surroundings = match self.surroundings.get_or_try_init(load).await {
            Err(status) if is_last => {
                let id = self.workspace_id;
                warn!(%status, workspace.id = %id, "cannot read workspace {id}, going on without");
                self.surroundings.get_or_init(|| ready(Arc::default())).await
            }
            found => found?,
        };
        Ok((surroundings.clone(), self.offer(self.turn.steps()).await?))
    }

    /// What the model is offered after these steps of the turn.
    pub(super) async fn offer(&self, steps: &[Step]) -> Result<Arc<Offer>, Status> {
        let list = || self.host.tools_of(&self.caller, self.workspace_id);
        let tools = self.tools.get_or_try_init(list).await?.clone();
        let found = || offer::found(&compaction::view(&self.history, self.claim.turn_id, steps));
        let (tenant, id) = (&self.claim.tenant, self.workspace_id);
        Ok(self.host.offer(tenant, id, &self.agent, tools, found))
    }

    /// Why a call of the last step cannot be made, because the model was not offered the tool.
    pub(super) async fn not_offered(&self, tool: &str) -> Option<String> {
        let (_, before) = self.turn.steps().split_last()?;
        self.offer(before).await.ok()?.refusal(tool)
    }

    fn opened(
        &self,
        message_id: MessageId,
        attempt: u32,
        system: &System,
        prompt: &models::Prompt,
        size: Size,
    ) -> Input {
        let manifest = &self.agent.manifest;
        let catalog_digest = system.section("tools").map(str::to_owned);
        let mut facts = vec![Event::fact(Payload::ContextResolved(ContextResolved {
            prompt_digest: system.digest.clone(),
            sections: system.sections.clone(),
            messages: prompt.messages.len() as i32,
            tokens: size.tokens,
            usable_tokens: size.usable_tokens,
        }))];
        if catalog_digest.as_ref() != self.last_catalog() {
            facts.push(Event::fact(Payload::ToolCatalogResolved(ToolCatalogResolved {
                tools: prompt.tools.iter().map(|tool| tool.name.clone()).collect(),
                digest: catalog_digest.clone().unwrap_or_default(),
            })));
        }
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
                catalog_digest,
                ..Metadata::default()
            },
            facts,
        }
    }

    /// How large a prompt is. Nobody is asked while it is small by any count.
    async fn size(&self, prompt: &models::Prompt, offer: &Offer) -> Size {
        let bytes = prompt::bytes(prompt);
        let estimate = prompt::tokens(bytes);
        let Some((model, usable_tokens)) = self.usable_with(offer).await else {
            return Size { tokens: estimate, usable_tokens: 0, problem: None };
        };
        if bytes / CAUTIOUS_BYTES_PER_TOKEN <= usable_tokens as usize {
            return Size { tokens: estimate, usable_tokens, problem: None };
        }
        let counted = self.host.count_tokens(&self.caller, prompt.clone(), &model).await;
        let tokens = counted.unwrap_or(estimate);
        let problem = (tokens > usable_tokens).then(|| {
            format!("the prompt has about {tokens} tokens and {model} has room for {usable_tokens}")
        });
        Size { tokens, usable_tokens, problem }
    }

    /// The model that would answer this turn and how many tokens it can take.
    pub(super) async fn usable(&self) -> Option<(String, i32)> {
        let offer = self.offer(self.turn.steps()).await.ok()?;
        self.usable_with(&offer).await
    }

    async fn usable_with(&self, offer: &Offer) -> Option<(String, i32)> {
        let rooms = self.host.rooms(&self.caller, &self.target(offer)).await;
        let room = rooms.first()?;
        Some((room.model.clone(), room.usable_tokens(self.agent.manifest.max_output_tokens)))
    }

    fn target(&self, offer: &Offer) -> models::Target {
        models::Target {
            model: self.model.clone(),
            profile: self.agent.manifest.profile.clone(),
            capabilities: if offer.is_empty() { vec![] } else { vec!["tools".into()] },
            previous_model: self.previous_model().cloned().unwrap_or_default(),
        }
    }

    /// The model that answered last.
    fn previous_model(&self) -> Option<&String> {
        let steps = self.turn.steps().iter().rev().map(|step| &step.metadata);
        let answers = self.history.iter().rev().filter(|message| message.role == Role::Assistant);
        steps.chain(answers.map(|message| &message.metadata)).find_map(|said| said.model.as_ref())
    }

    /// Why the prompt does not fit: its message asked for another model, or it just grew.
    fn trigger(&self) -> Trigger {
        let asked = self.history.iter().rev().find(|message| message.role == Role::User);
        let switched = asked.is_some_and(|message| message.metadata.model.is_some());
        match switched && self.turn.steps().is_empty() && self.previous_model() != Some(&self.model)
        {
            true => Trigger::ModelSwitch,
            false => Trigger::Auto,
        }
    }

    /// The digest of the tools that a model saw last.
    fn last_catalog(&self) -> Option<&String> {
        let steps = self.turn.steps().iter().rev().map(|step| &step.metadata);
        let history = self.history.iter().rev().map(|message| &message.metadata);
        let mut answers = steps.chain(history).filter(|metadata| metadata.prompt_digest.is_some());
        answers.next()?.catalog_digest.as_ref()
    }
}
