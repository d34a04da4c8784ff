//! Has the history summarized, by the agent for that and over the same path as any answer;
//! only that nobody reads along.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use chassis::Caller;
use proto::{event::v1::CompactionCompleted, models::v1 as models};
use tokio::sync::mpsc;
use tracing::Instrument as _;

use super::{Driver, Inputs, Ladder, model};
use crate::{
    agent::{self, Agent},
    compaction::{self, Marker, Plan, View},
    flusher::Stopped,
    host::Host,
    ids::MessageId,
    message::Metadata,
    prompt,
    turn::{Compaction, Failure, Finished, Input, Trigger},
};

/// Fewer bytes for a token than in an average text, so that it fits when we say so.
pub(super) const CAUTIOUS_BYTES_PER_TOKEN: usize = 3;

/// For what stands around a text in a request.
const SLACK_BYTES: usize = 512;

/// What a summarizer says at most, where its manifest leaves that to the model.
const SUMMARY_TOKENS: i32 = 2000;

impl Driver {
    pub(super) async fn compact(
        &mut self,
        trigger: Trigger,
        attempt: u32,
        inputs: &Inputs,
    ) -> Result<(), Stopped> {
        self.writer.add(|pending| pending.show("busy", String::new()));
        self.writer.send();
        if attempt == 1 {
            *lock(&self.ladder) = Ladder::default();
        }
        let agent = match self.host.agent(&self.claim.tenant, agent::COMPACTION).await {
            Ok(agent) => agent,
            Err(error) => {
                let failure = Failure {
                    kind: "unavailable".into(),
                    message: format!("the agent {} cannot be read: {error}", agent::COMPACTION),
                    transient: true,
                    retry_after: None,
                };
                return Box::pin(self.take(Input::Failed(failure), inputs)).await;
            }
        };
        let target = target(&agent);
        let rooms = self.host.rooms(&self.caller, &target).await;
        let usable = rooms.iter().map(|room| room.usable_tokens(agent.manifest.max_output_tokens));
        let room = match usable.max() {
            Some(tokens) => {
                let bytes = tokens as usize * CAUTIOUS_BYTES_PER_TOKEN;
                bytes.saturating_sub(agent.manifest.prompt.len() + SLACK_BYTES)
            }
            // The summarizer itself will say.
            None => usize::MAX / 2,
        };
        let usable = self.usable().await.map_or(i32::MAX, |(_, tokens)| tokens);

        let view = compaction::view(&self.history, self.claim.turn_id, self.turn.steps());
        let automatic = trigger != Trigger::Manual;
        let Some(plan) = compaction::plan(&view, self.claim.turn_id, usable, automatic) else {
            return Box::pin(self.take(Input::NothingToCompact, inputs)).await;
        };
        let tokens_before = view.tokens();
        let Plan { head, tail_start_id, turn_ids, evidence_refs } = plan;
        let summarized = View { summary: view.summary, entries: head };
        let turn_ids: Vec<_> = turn_ids.into_iter().map(|id| id.to_string()).collect();
        let began = Input::CompactionBegan { turn_ids: turn_ids.clone(), tokens_before };

        let summary_bytes = match agent.manifest.max_output_tokens {
            0 => SUMMARY_TOKENS,
            tokens => tokens,
        } as usize
            * CAUTIOUS_BYTES_PER_TOKEN;
        // Every way that is open, the best first; what is tried in which order is decided
        // now, so that nothing of the history has to be kept while the summarizer works.
        let mut ways = Vec::new();
        let mut method = Some(compaction::Method::default());
        while let Some(way) = method {
            let View { summary, entries } = &summarized;
            let pieces = compaction::pieces(way, summary.as_deref(), entries, room, summary_bytes);
            ways.extend(pieces.map(|pieces| (way, pieces)));
            method = way.next();
        }
        let job = Job {
            host: self.host.clone(),
            caller: self.caller.clone(),
            session_id: self.claim.session_id.to_string(),
            root_session_id: self.root(),
            turn_id: self.claim.turn_id.to_string(),
            message_id: MessageId::new(),
            agent,
            target,
            attempt,
            ways,
            auto: automatic,
            tail_start_id,
            // No action is open: a turn that waits for people prepares no step.
            completed: CompactionCompleted {
                trigger: trigger.as_str().to_owned(),
                tail_start_id: tail_start_id.map(|id| id.to_string()).unwrap_or_default(),
                turn_ids,
                tokens_before,
                tokens_after: tokens_before - summarized.tokens(),
                evidence_refs,
                ..CompactionCompleted::default()
            },
            agent_of_turn: self.agent.id.clone(),
            ladder: self.ladder.clone(),
            inputs: inputs.clone(),
        };
        let begun = std::mem::replace(&mut lock(&self.ladder).begun, true);
        if !begun {
            Box::pin(self.take(began, inputs)).await?;
        }
        self.tasks.spawn(job.run().in_current_span());
        Ok(())
    }
}

fn target(agent: &Agent) -> models::Target {
    let manifest = &agent.manifest;
    models::Target {
        model: manifest.model.clone(),
        profile: match manifest.profile.as_str() {
            "" => agent::SUMMARY.to_owned(),
            profile => profile.to_owned(),
        },
        capabilities: vec![],
        previous_model: String::new(),
    }
}

/// A summary to be made.
struct Job {
    host: Arc<Host>,
    caller: Caller,
    session_id: String,
    root_session_id: String,
    turn_id: String,
    message_id: MessageId,
    agent: Arc<Agent>,
    target: models::Target,
    attempt: u32,
    ways: Vec<(compaction::Method, Vec<String>)>,
    auto: bool,
    tail_start_id: Option<MessageId>,
    completed: CompactionCompleted,
    agent_of_turn: String,
    ladder: Arc<Mutex<Ladder>>,
    inputs: Inputs,
}

impl Job {
    /// Always ends in `Compacted` or `Failed`.
    async fn run(self) {
        let end = match self.climb().await {
            Ok(summary) => Input::Compacted(Box::new(self.compaction(summary))),
            Err(failure) => Input::Failed(failure),
        };
        let _ = self.inputs.send(vec![end]).await;
    }

    /// Tries one way after the other; only what is too much for the summarizer leads to the next.
    async fn climb(&self) -> Result<String, Failure> {
        let mut problem = "it is too large for every way to summarize it".to_owned();
        for (method, pieces) in &self.ways {
            {
                let mut ladder = lock(&self.ladder);
                // A way that was given up in an earlier try is not tried again.
                if (ladder.method as u8) > *method as u8 {
                    continue;
                }
                if ladder.method != *method {
                    ladder.method = *method;
                    ladder.done.clear();
                }
            }
            match self.summarize(pieces).await {
                Ok(summary) => return Ok(summary),
                Err(failure) if failure.kind == "context_overflow" => problem = failure.message,
                Err(failure) => return Err(failure),
            }
        }
        Err(Failure {
            kind: "context_overflow".into(),
            message: problem,
            transient: false,
            retry_after: None,
        })
    }

    /// Each piece goes on from the summary of those before it.
    async fn summarize(&self, pieces: &[String]) -> Result<String, Failure> {
        loop {
            let (index, before) = {
                let ladder = lock(&self.ladder);
                (ladder.done.len(), ladder.done.last().cloned())
            };
            let text = match (pieces.get(index), before) {
                (None, before) => return Ok(before.unwrap_or_default()),
                (Some(piece), None) => piece.clone(),
                (Some(piece), Some(before)) => {
                    format!("{}\n\n{piece}", compaction::continued(&before))
                }
            };
            let (summary, finished) = self.ask(text).await?;
            if summary.trim().is_empty() {
                return Err(Failure {
                    kind: "refused".into(),
                    message: "the summarizer said nothing".into(),
                    transient: false,
                    retry_after: None,
                });
            }
            let mut ladder = lock(&self.ladder);
            ladder.usage += finished.usage;
            ladder.cost_micros += finished.cost_micros;
            ladder.model = format!("{}/{}", finished.provider, finished.model);
            ladder.done.push(summary);
        }
    }

    /// One request, and all of its answer.
    async fn ask(&self, text: String) -> Result<(String, Finished), Failure> {
        let manifest = &self.agent.manifest;
        let content = models::Content { kind: Some(models::content::Kind::Text(text)) };
        let message =
            models::Message { role: models::message::Role::User.into(), content: vec![content] };
        let request = models::GenerateRequest {
            session_id: self.session_id.clone(),
            root_session_id: self.root_session_id.clone(),
            turn_id: self.turn_id.clone(),
            step_id: self.message_id.step().to_string(),
            prompt: Some(models::Prompt {
                system: manifest.prompt.clone(),
                messages: vec![message],
                tools: vec![],
            }),
            target: Some(self.target.clone()),
            options: Some(models::Options {
                max_output_tokens: manifest.max_output_tokens,
                temperature: manifest.temperature,
                ..models::Options::default()
            }),
            attempt: self.attempt as i32,
            budget_id: String::new(),
        };
        let (answers, mut answer) = mpsc::channel(64);
        let (host, caller) = (self.host.clone(), self.caller.clone());
        let generate = model::generate(host, caller, request, Arc::default(), answers);
        let listen = async {
            let mut text = String::new();
            while let Some(said) = answer.recv().await {
                for input in said {
                    match input {
                        Input::Text(more) => text.push_str(&more),
                        Input::Fact(_) => {
                            let _ = self.inputs.send(vec![input]).await;
                        }
                        Input::Finished(finished) => {
                            let Finished { usage, cost_micros, .. } = finished;
                            let summarized = Input::Summarized { usage, cost_micros };
                            let _ = self.inputs.send(vec![summarized]).await;
                            return Ok((text, finished));
                        }
                        Input::Failed(failure) => return Err(failure),
                        _ => {}
                    }
                }
            }
            Err(Failure {
                kind: "cut".into(),
                message: "the summary broke off".into(),
                transient: true,
                retry_after: None,
            })
        };
        let ((), listened) = tokio::join!(generate, listen);
        listened
    }

    fn compaction(&self, summary: String) -> Compaction {
        let ladder = lock(&self.ladder);
        let mut summary = summary.trim().to_owned();
        if !self.completed.evidence_refs.is_empty() {
            let refs = self.completed.evidence_refs.join("\n- ");
            summary.push_str(&format!("\n\nStored outputs that can still be read:\n- {refs}"));
        }
        let summary_tokens = prompt::tokens(summary.len());
        let marker =
            Marker { summary, tail_start_id: self.tail_start_id, auto: self.auto, summary_tokens };
        Compaction {
            message_id: self.message_id,
            marker: marker.part(),
            completed: CompactionCompleted {
                message_id: self.message_id.to_string(),
                method: ladder.method.as_str().to_owned(),
                tokens_after: self.completed.tokens_after.saturating_add(summary_tokens),
                ..self.completed.clone()
            },
            metadata: Metadata {
                agent: Some(self.agent_of_turn.clone()),
                model: Some(ladder.model.clone()),
                usage: Some(ladder.usage),
                cost_micros: Some(ladder.cost_micros),
                ..Metadata::default()
            },
        }
    }
}

fn lock(ladder: &Mutex<Ladder>) -> MutexGuard<'_, Ladder> {
    ladder.lock().unwrap_or_else(PoisonError::into_inner)
}
