//! What a replay needs: what the model saw and said, and what tools answered.

use std::collections::HashSet;

use chassis::Caller;
use data_encoding::BASE64;
use proto::models::v1::{self as models, content::Kind};
use serde_json::{Value, json};
use sqlx::PgConnection;

use super::{Subject, pack::Pack};
use crate::{
    api::{export, snapshot},
    compaction,
    error::Result,
    evidence::{Signal, State},
    host::Host,
    message::{Message, Part},
    prompt,
    store::{agents, evidence, messages, turns::Recorded},
    turn::Step,
};

/// One turn, loaded.
struct Past {
    recorded: Recorded,
    /// What came before its steps, its user message included.
    history: Vec<Message>,
    steps: Vec<Step>,
}

#[derive(Default)]
struct Counts {
    turns: u64,
    messages: u64,
    prompts: HashSet<String>,
    lost_prompts: u64,
    answers: u64,
    results: u64,
}

/// The sections, in order: each goes through all turns, so that one turn at a time is in memory.
const SECTIONS: [&str; 5] = ["turns", "prompts", "messages", "answers", "results"];

pub async fn write(
    host: &Host,
    caller: &Caller,
    subject: &Subject,
    pack: &mut Pack,
) -> Result<Vec<Signal>> {
    let mut state = snapshot::one_state(&host.db).await?;
    let mut counts = Counts::default();
    for section in SECTIONS {
        for selection in &subject.selections {
            let db: &mut PgConnection = &mut state;
            let mut after = String::new();
            loop {
                let page = evidence::turns(&mut *db, selection, &after, export::PAGE).await?;
                let Some(last) = page.last() else { break };
                after = last.id.to_string();
                for recorded in page {
                    let id = selection.session_id;
                    let stored = messages::past(db, id, recorded.id, section == "messages").await?;
                    let (history, steps) = messages::split(stored, recorded.id)?;
                    let past = Past { recorded, history, steps };
                    for line in lines(host, caller, db, section, &past, &mut counts).await? {
                        pack.line(Some(db), section, &line).await?;
                    }
                }
            }
        }
    }
    state.commit().await?;
    Ok(vec![
        Signal::of("turns", counts.turns, "there is no turn"),
        Signal::of("messages", counts.messages, "no model was asked"),
        Signal::of("prompts", counts.prompts.len() as u64, "no model was asked")
            .unless_missing(counts.lost_prompts, "prompts are not stored"),
        Signal::of("tool_catalogue", counts.prompts.len() as u64, "no model was asked"),
        Signal::of("answers", counts.answers, "no model answered"),
        Signal::of("tool_results", counts.results, "no tool was called"),
        Signal::new(
            "provider_state",
            State::Unsupported,
            0,
            "what a provider remembers, or draws by lot, cannot be exported",
        ),
    ])
}

async fn lines(
    host: &Host,
    caller: &Caller,
    db: &mut PgConnection,
    section: &str,
    past: &Past,
    counts: &mut Counts,
) -> Result<Vec<Value>> {
    let turn_id = past.recorded.id;
    let answers = || past.steps.iter().filter(|step| !step.is_compaction() && !step.is_note());
    Ok(match section {
        "turns" => {
            counts.turns += 1;
            vec![turn(host, caller, db, past).await?]
        }
        "prompts" => {
            let mut lines = Vec::new();
            for digest in answers().filter_map(|step| step.metadata.prompt_digest.clone()) {
                if counts.prompts.contains(&digest) {
                    continue;
                }
                match evidence::prompt(&mut *db, &caller.tenant, &digest).await? {
                    Some(body) => {
                        let tools = tools(&body);
                        lines.push(json!({ "digest": digest, "body": body, "tools": tools }));
                        counts.prompts.insert(digest);
                    }
                    None => counts.lost_prompts += 1,
                }
            }
            lines
        }
        "messages" => {
            let lines = seen(past);
            counts.messages += lines.len() as u64;
            lines
        }
        "answers" => {
            let line = |step: &Step| {
                let parts: Vec<_> = step
                    .parts
                    .iter()
                    .map(|part| json!({ "type": part.kind(), "data": part.data() }))
                    .collect();
                json!({
                    "turnId": turn_id, "stepId": step.message_id.step(),
                    "messageId": step.message_id, "status": step.status.as_str(),
                    "metadata": step.metadata, "parts": parts,
                })
            };
            let lines: Vec<_> = past.steps.iter().map(line).collect();
            counts.answers += answers().count() as u64;
            lines
        }
        _ => {
            let results = answers().flat_map(|step| {
                let step_id = step.message_id.step();
                step.parts.iter().filter_map(move |part| match part {
                    Part::Tool(call) => Some(json!({
                        "turnId": turn_id, "stepId": step_id, "tool": call.tool, "call": call,
                    })),
                    _ => None,
                })
            });
            let lines: Vec<_> = results.collect();
            counts.results += lines.len() as u64;
            lines
        }
    })
}

/// A turn, and with what it ran.
async fn turn(host: &Host, caller: &Caller, db: &mut PgConnection, past: &Past) -> Result<Value> {
    let Recorded { id, message_id, status, subject, submitted_at, view } = &past.recorded;
    let view = &view.0;
    let stored = agents::get(&mut *db, &caller.tenant, &view.agent, view.agent_version).await?;
    let manifest = match stored {
        Some(stored) => Some(stored.agent.manifest),
        None => host.shipped.get(&view.agent).map(|agent| agent.manifest.clone()),
    };
    let asked = past.history.iter().rev().find(|message| message.id == *message_id);
    Ok(json!({
        "turnId": id, "messageId": message_id, "status": status, "subject": subject,
        "submittedAt": submitted_at.to_jiff(), "agent": view.agent,
        "agentVersion": view.agent_version, "manifest": manifest,
        "asked": asked.map(|message| &message.metadata),
        "routing": view.routing_decision,
    }))
}

/// The tools in the body of a prompt.
fn tools(body: &str) -> Vec<Value> {
    let (_, tools) = body.rsplit_once("\n\n# Tools\n\n").unwrap_or_default();
    tools.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// The messages of each step as the model saw them: how many of the step before stay, and those
/// that follow them.
fn seen(past: &Past) -> Vec<Value> {
    let mut lines = Vec::new();
    let mut before: Vec<Value> = Vec::new();
    for (index, step) in past.steps.iter().enumerate() {
        if step.is_compaction() || step.is_note() {
            continue;
        }
        let view = compaction::view(&past.history, past.recorded.id, &past.steps[..index]);
        let now: Vec<_> = prompt::messages(&view).iter().map(shown).collect();
        let keeps = before.iter().zip(&now).take_while(|(one, other)| one == other).count();
        lines.push(json!({
            "turnId": past.recorded.id, "stepId": step.message_id.step(), "keeps": keeps,
            "messages": now[keeps..],
        }));
        before = now;
    }
    lines
}

fn shown(message: &models::Message) -> Value {
    let role = models::message::Role::try_from(message.role).unwrap_or_default();
    let content = message.content.iter().filter_map(|content| {
        Some(match content.kind.as_ref()? {
            Kind::Text(text) => json!({ "text": text }),
            Kind::Reasoning(reasoning) => {
                json!({ "reasoning": reasoning.text, "signature": reasoning.signature })
            }
            Kind::ToolCall(call) => json!({
                "toolCallId": call.tool_call_id, "tool": call.tool, "inputJson": call.input_json,
            }),
            Kind::ToolResult(result) => json!({
                "toolCallId": result.tool_call_id, "result": result.text, "error": result.error,
            }),
            Kind::Image(image) => {
                json!({ "mediaType": image.media_type, "base64": BASE64.encode(&image.data) })
            }
        })
    });
    let content: Vec<_> = content.collect();
    json!({ "role": role.as_str_name(), "content": content })
}
