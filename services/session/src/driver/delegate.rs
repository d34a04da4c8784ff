//! Finds the child that a call asks for, and tells the turn of those that ended in the background.

use chassis::telemetry;
use proto::{
    event::v1::{Payload, SessionCreated, ToolMetadata, TurnSubmitted},
    session::v1::{Manifest, manifest::Mode},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tracing::warn;

use super::{
    Driver, Inputs,
    own::{Refusal, refused},
};
use crate::{
    agent::Agent,
    error::{Error, Result},
    flusher::Stopped,
    ids::{MessageId, PartId, ToolCallId},
    message::{Metadata, Role},
    store,
    subagent::{self, Origin, Spawn},
    turn::{Input, Outcome, Told},
};

/// How large the metadata of a child may be, as that of any session.
const MOST_METADATA: usize = 16 * 1024;

/// How many agents are named to somebody who asked for one that is not there.
const NAMED: i64 = 100;

/// The input of `task`.
#[derive(Deserialize)]
struct Task {
    subagent_type: String,
    prompt: String,
    #[serde(default)]
    background: bool,
    metadata: Option<Value>,
}

/// An agent as it is in a child: with the permissions that were worked out when it was spawned. One
/// that a client put in its place is confined to them.
pub fn confined(agent: &Agent, origin: &Origin) -> Agent {
    let own = agent.manifest.permissions.clone().unwrap_or_default();
    let permissions = match agent.id == origin.agent {
        true => origin.permissions.clone(),
        false => own.of_child(&origin.permissions),
    };
    let manifest = Manifest { permissions: Some(permissions), ..agent.manifest.clone() };
    Agent { manifest, ..agent.clone() }
}

impl Driver {
    /// The session whose tree this one belongs to.
    pub(super) fn root(&self) -> String {
        self.origin.as_ref().map(|origin| origin.root_id.to_string()).unwrap_or_default()
    }

    /// Ends in `Spawned`, or in `ToolEnded` with why there is no child.
    pub(super) async fn spawn(&mut self, id: ToolCallId, inputs: &Inputs) -> Result<(), Stopped> {
        if self.children.is_none_or(|running| running >= self.host.config.max_children) {
            // What was spawned a moment ago is to be counted, too.
            self.flush().await?;
            self.children = None;
        }
        let input = match self.child(id).await {
            Ok(spawn) => Input::Spawned { id, spawn: Box::new(spawn) },
            Err(Refusal { kind, text }) => {
                let (kind, metadata) = (kind.to_owned(), ToolMetadata::default());
                Input::ToolEnded { id, outcome: Outcome::Error { text, kind, metadata } }
            }
        };
        self.hear(input, inputs);
        Ok(())
    }

    /// Takes this next. Not at once: a move that makes a move that makes a move has no end.
    fn hear(&mut self, input: Input, inputs: &Inputs) {
        let inputs = inputs.clone();
        self.tasks.spawn(async move {
            let _ = inputs.send(vec![input]).await;
        });
    }

    /// Tells the turn of a child that has ended in the background, if it has not heard of one.
    pub(super) async fn tell(&mut self, inputs: &Inputs) -> bool {
        match self.next_ended().await {
            Some(told) => {
                self.hear(Input::Told(Box::new(told)), inputs);
                true
            }
            None => false,
        }
    }

    async fn child(&mut self, id: ToolCallId) -> Result<Spawn, Refusal> {
        let input_json = self.turn.call(id).map(|tool_use| tool_use.input_json.as_str());
        let task: Task = serde_json::from_str(input_json.unwrap_or_default())
            .map_err(|error| refused("schema", format!("invalid input: {error}")))?;
        let metadata = task.metadata.clone().unwrap_or_else(|| json!({}));
        if metadata.to_string().len() > MOST_METADATA {
            return Err(refused("schema", "metadata: at most 16 KiB"));
        }
        let agent = self.soon(self.callee(&task.subagent_type)).await?;
        let (depth, most_depth) = self.depths(&agent)?;
        self.count_child().await?;
        Ok(self.describe(id, task, metadata, &agent, depth, most_depth))
    }

    /// The agent of this name, if others may call it.
    async fn callee(&self, name: &str) -> Result<std::sync::Arc<Agent>, Refusal> {
        match self.host.agent(&self.claim.tenant, name).await {
            Ok(agent) if is_callable(&agent.manifest) => Ok(agent),
            Ok(_) => {
                let text = format!(
                    "the agent {name} works for people and cannot be called; its mode is primary"
                );
                Err(refused("failed", text))
            }
            Err(Error::AgentNotFound(_)) => {
                let names = self.callable().await?.join(", ");
                Err(refused("failed", format!("there is no subagent {name:?}; there are: {names}")))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The agents that can be called, by name.
    async fn callable(&self) -> Result<Vec<String>> {
        let stored = store::agents::list(&self.host.db, &self.claim.tenant, "", NAMED).await?;
        let stored: Vec<Agent> = stored.into_iter().map(|stored| stored.agent).collect();
        let shipped = self.host.shipped.iter();
        let shipped = shipped.filter(|agent| stored.iter().all(|other| other.id != agent.id));
        let all = shipped.chain(&stored).filter(|agent| is_callable(&agent.manifest));
        let mut names: Vec<_> = all.map(|agent| agent.id.clone()).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// How deep a child would be and how deep its own may be.
    fn depths(&self, child: &Agent) -> Result<(i32, i32), Refusal> {
        let usual = self.host.config.max_depth;
        let (depth, most) = match &self.origin {
            Some(origin) => (origin.depth, origin.most_depth),
            None => (0, self.agent.depth().unwrap_or(usual)),
        };
        let depth = depth + 1;
        if depth > most {
            let text = format!(
                "subagents may nest {most} deep and this would be number {depth}; do it yourself"
            );
            return Err(refused("failed", text));
        }
        Ok((depth, child.depth().map_or(most, |own| most.min(depth.saturating_add(own)))))
    }

    /// Makes sure that one more child may run. Only this turn spawns, so what it counted once
    /// only becomes less until it counts again.
    async fn count_child(&mut self) -> Result<(), Refusal> {
        let most = self.host.config.max_children;
        if self.children.is_none() {
            let running = store::subagents::running(&self.host.db, self.claim.session_id).await?;
            self.children = Some(running + self.coming);
        }
        match &mut self.children {
            Some(running) if *running < most => {
                *running += 1;
                self.coming += 1;
                Ok(())
            }
            _ => {
                let text =
                    format!("{most} subagents run already; wait until some of them are done");
                Err(refused("failed", text))
            }
        }
    }

    fn describe(
        &self,
        id: ToolCallId,
        task: Task,
        metadata: Value,
        agent: &Agent,
        depth: i32,
        most_depth: i32,
    ) -> Spawn {
        let subagent_id = id.subagent();
        let (session_id, message_id) = (subagent_id.session(), subagent_id.message());
        let parent_id = self.claim.session_id;
        let asked =
            self.history.iter().rev().find(|message| {
                message.role == Role::User && message.turn_id == self.claim.turn_id
            });
        // The letters of a turn are those of its message.
        let parent_message_id =
            asked.map_or_else(|| MessageId::from_uuid(self.claim.turn_id.uuid()), |said| said.id);
        let own = agent.manifest.permissions.clone().unwrap_or_default();
        let origin = Origin {
            subagent_id,
            session_id,
            parent_id,
            parent_message_id,
            root_id: self.origin.as_ref().map_or(parent_id, |origin| origin.root_id),
            tool_call_id: id,
            agent: agent.id.clone(),
            background: task.background,
            inspectable: agent.manifest.inspectable,
            depth,
            most_depth,
            permissions: own.of_child(&self.permissions),
        };
        let title = subagent::title(&task.prompt);
        let created = Payload::SessionCreated(SessionCreated {
            title: title.clone(),
            agent: agent.id.clone(),
            parent_session_id: parent_id.to_string(),
            parent_message_id: parent_message_id.to_string(),
            workspace_id: self.workspace_id.to_string(),
            ephemeral: !origin.inspectable,
        });
        let submitted = Payload::TurnSubmitted(TurnSubmitted {
            status: "accepted".into(),
            message_id: message_id.to_string(),
            subject: self.caller.subject.clone(),
            source: "parent".into(),
        });
        let metadata_of_message = Metadata { headless: self.headless, ..Metadata::default() };
        Spawn {
            origin,
            step_id: self
                .turn
                .steps()
                .last()
                .map(|step| step.message_id.step())
                .unwrap_or_else(|| parent_message_id.step()),
            title,
            subject: self.caller.subject.clone(),
            workspace_id: self.workspace_id,
            metadata,
            message_id,
            turn_id: message_id.turn(),
            part_id: PartId::new(),
            prompt: task.prompt,
            message_metadata: json!(metadata_of_message),
            created: payload(&created),
            submitted: payload(&submitted),
            trace_parent: telemetry::traceparent(),
        }
    }

    /// A child that ended in the background and of which the turn has not heard.
    async fn next_ended(&mut self) -> Option<Told> {
        if self.ended.is_empty() && self.background {
            let known = self.turn.steps().iter().map(|step| step.message_id).collect::<Vec<_>>();
            match store::subagents::untold(&self.host.db, self.claim.session_id).await {
                Ok(ended) => {
                    let new = ended.into_iter();
                    self.ended = new
                        .filter(|told| !known.contains(&told.note.subagent_id.message()))
                        .collect();
                    // The oldest is taken from the end.
                    self.ended.reverse();
                }
                // The end of the turn says it.
                Err(error) => warn!(%error, "cannot read how subagents have ended"),
            }
        }
        self.ended.pop()
    }
}

fn is_callable(manifest: &Manifest) -> bool {
    matches!(manifest.mode(), Mode::Subagent | Mode::All)
}

fn payload(payload: &Payload) -> Value {
    payload.to_json().ok().and_then(|json| serde_json::from_str(&json).ok()).unwrap_or_default()
}
