//! What the model sees: system prompt, history, this turn, tools. Pure, so that
//! the same session gives the same prompt on any replica.

use proto::{event::v1::context_resolved::Section, models::v1 as models};
use sha2::{Digest as _, Sha256};

use crate::{
    agent::Agent,
    compaction::{Entry, View, left_out, told},
    memory::Line,
    message::{Part, Role, ToolState, ToolUse},
    offer::Offer,
    surroundings::Surroundings,
};

/// What an agent is told beside its manifest.
#[derive(Debug, Clone, Copy)]
pub struct Around<'a> {
    pub surroundings: &'a Surroundings,
    pub memories: &'a [Line],
    /// The day the turn was submitted on. Nothing finer: the same prompt again is a
    /// prompt that a provider has in its cache.
    pub day: &'a str,
    pub offer: &'a Offer,
}

/// A system prompt and the name under which its body is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct System {
    /// What the provider gets as the system prompt; tools go beside it.
    pub text: String,
    /// The text and the tools: everything the model sees before the first message.
    pub body: String,
    pub digest: String,
    pub sections: Vec<Section>,
}

impl System {
    /// The digest of one section, or nothing where there is no such section.
    pub fn section(&self, name: &str) -> Option<&str> {
        let section = self.sections.iter().find(|section| section.name == name)?;
        Some(&section.digest)
    }
}

/// When to write a memory and when not: the skill that ships with the tools for it.
const MEMORY_SKILL: &str = "\
Memories last across conversations. Write one with memory_write when the user shares a \
preference, a role or a constraint that matters beyond this conversation, corrects how you \
work, or points to an outside resource worth finding again. Use the scope `user` for what \
holds everywhere and `project` for what holds here. Do not memorize what reading the files \
again would show. Read a memory with memory_read before you rely on it, replace one that is \
out of date, and delete one that is wrong.";

/// Puts the sections together, in an order that never changes.
pub fn system(agent: &Agent, around: Around<'_>) -> System {
    let sections = [
        ("manifest", manifest(agent)),
        ("project_instructions", project_instructions(around.surroundings)),
        ("skills", skills(around.surroundings, around.offer)),
        ("memory", memory(around.memories, around.offer)),
        ("environment", Some(environment(agent, around))),
    ];
    let sections = sections.into_iter().filter_map(|(name, text)| Some((name, text?)));
    let (mut texts, mut listed) = (Vec::new(), Vec::new());
    for (name, text) in sections {
        listed.push(section(name, &text));
        texts.push(text);
    }
    let text = texts.join("\n\n");
    let mut body = text.clone();
    if !around.offer.is_empty() {
        listed.push(Section {
            name: "tools".to_owned(),
            digest: around.offer.digest.clone(),
            tokens: tokens(around.offer.text.len()),
        });
        body.push_str("\n\n# Tools\n\n");
        body.push_str(&around.offer.text);
    }
    System { digest: digest(&body), text, body, sections: listed }
}

fn manifest(agent: &Agent) -> Option<String> {
    let prompt = agent.manifest.prompt.trim_end();
    let caller = "Your caller is another agent; return structured output.";
    match (prompt.is_empty(), agent.manifest.caller == "agent") {
        (true, false) => None,
        (true, true) => Some(caller.to_owned()),
        (false, false) => Some(prompt.to_owned()),
        (false, true) => Some(format!("{prompt}\n\n{caller}")),
    }
}

fn project_instructions(surroundings: &Surroundings) -> Option<String> {
    let text = surroundings.instructions.as_ref()?;
    Some(format!("# Project instructions (AGENTS.md)\n\n{}", text.trim_end()))
}

fn skills(surroundings: &Surroundings, offer: &Offer) -> Option<String> {
    if surroundings.skills.is_empty() {
        return None;
    }
    let lines = surroundings
        .skills
        .iter()
        .map(|skill| format!("- {} ({}): {}", skill.name, skill.path, skill.description));
    let lines: Vec<_> = lines.collect();
    let how = match offer.has("skill") {
        true => "Load a skill with the tool `skill`",
        false => "Read the file of a skill",
    };
    let head = format!("# Skills\n\n{how} before you do what it is for.");
    Some(format!("{head}\n\n{}", lines.join("\n")))
}

fn memory(memories: &[Line], offer: &Offer) -> Option<String> {
    let skill = offer.has("memory_write").then_some(MEMORY_SKILL);
    if memories.is_empty() && skill.is_none() {
        return None;
    }
    let mut text = "# Memory".to_owned();
    if let Some(skill) = skill {
        text.push_str("\n\n");
        text.push_str(skill);
    }
    if !memories.is_empty() {
        text.push('\n');
    }
    for Line { scope, name, description } in memories {
        text.push_str(&format!("\n- {name} ({}): {description}", scope.as_str()));
    }
    Some(text)
}

fn environment(agent: &Agent, around: Around<'_>) -> String {
    let mut text = format!("# Environment\n\nToday is {} (UTC).", around.day);
    if !around.offer.is_empty() {
        let hosts = agent.manifest.permissions.as_ref().map(|permissions| &permissions.hosts);
        let network = match hosts {
            Some(hosts) if !hosts.is_empty() => {
                let hosts = hosts.join(", ");
                format!("that reaches these hosts over HTTP and HTTPS and nothing else: {hosts}")
            }
            _ => "without network".to_owned(),
        };
        text.push_str(&format!(
            " Tools run in a sandbox {network}; the working directory is /workspace."
        ));
    }
    text
}

fn section(name: &str, text: &str) -> Section {
    Section { name: name.to_owned(), digest: digest(text), tokens: tokens(text.len()) }
}

pub fn digest(text: &str) -> String {
    format!("sha256:{:x}", Sha256::digest(text.as_bytes()))
}

/// English prose and code come to about this; it is an estimate and says so.
const BYTES_PER_TOKEN: usize = 4;

/// What providers count for a picture of ordinary size.
const BYTES_PER_IMAGE: usize = 1_000 * BYTES_PER_TOKEN;

/// Bytes as tokens, rounded up.
pub fn tokens(bytes: usize) -> i32 {
    i32::try_from(bytes.div_ceil(BYTES_PER_TOKEN)).unwrap_or(i32::MAX)
}

/// How much a model has to read.
pub fn bytes(prompt: &models::Prompt) -> usize {
    use models::content::Kind;
    let tools = prompt.tools.iter();
    let tools =
        tools.map(|tool| tool.name.len() + tool.description.len() + tool.input_schema_json.len());
    let contents = prompt.messages.iter().flat_map(|message| &message.content);
    let contents = contents.map(|content| match &content.kind {
        Some(Kind::Text(text)) => text.len(),
        Some(Kind::Reasoning(reasoning)) => reasoning.text.len(),
        Some(Kind::ToolCall(call)) => call.tool.len() + call.input_json.len(),
        Some(Kind::ToolResult(result)) => result.text.len(),
        Some(Kind::Image(_)) => BYTES_PER_IMAGE,
        None => 0,
    });
    prompt.system.len() + tools.sum::<usize>() + contents.sum::<usize>()
}

/// The conversation in the words of the models service.
pub fn assemble(system: &System, view: &View<'_>, offer: &Offer) -> models::Prompt {
    models::Prompt {
        system: system.text.clone(),
        messages: messages(view),
        tools: offer
            .tools
            .iter()
            .map(|tool| models::Tool {
                name: tool.name.clone(),
                description: tool.description.clone(),
                input_schema_json: tool.input_schema_json.clone(),
            })
            .collect(),
    }
}

/// The conversation as the model sees it.
pub fn messages(view: &View<'_>) -> Vec<models::Message> {
    let mut messages = Vec::with_capacity(view.entries.len() * 2 + 1);
    if let Some(summary) = &view.summary {
        let text = format!("This conversation began earlier. A summary of it:\n\n{summary}");
        messages
            .push(message(models::message::Role::User, vec![models::content::Kind::Text(text)]));
    }
    for (entry, pruned) in view.entries.iter().zip(view.pruned()) {
        messages.extend(said(entry, pruned));
    }
    messages
}

fn said(entry: &Entry<'_>, pruned: bool) -> Vec<models::Message> {
    // Not as something the assistant said: models go on from there instead of answering it.
    if let Some(told) = told(entry.parts) {
        let told = models::content::Kind::Text(told);
        return vec![message(models::message::Role::User, vec![told])];
    }
    match entry.role {
        Role::User => vec![user(entry.parts)],
        Role::Assistant => assistant(entry.parts, pruned),
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
fn assistant(parts: &[Part], pruned: bool) -> Vec<models::Message> {
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
                results.push(models::content::Kind::ToolResult(result(tool_use, pruned)));
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

fn result(tool_use: &ToolUse, pruned: bool) -> models::ToolResult {
    let error = tool_use.state != ToolState::OutputAvailable;
    let text = match (pruned.then(|| left_out(tool_use)).flatten(), error) {
        (Some(text), _) => Some(text),
        (None, true) => tool_use.error_text.clone(),
        (None, false) => tool_use.output_json.clone(),
    };
    let mut text = text.unwrap_or_default();
    if let Some(metadata) = &tool_use.metadata
        && !metadata.hook_context.is_empty()
    {
        text.push_str(&format!("\n\nA hook says:\n\n{}", metadata.hook_context));
    }
    models::ToolResult { tool_call_id: tool_use.tool_call_id.to_string(), text, error }
}

fn message(role: models::message::Role, content: Vec<models::content::Kind>) -> models::Message {
    let content = content.into_iter().map(|kind| models::Content { kind: Some(kind) }).collect();
    models::Message { role: role.into(), content }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use proto::{
        session::v1::Manifest,
        tools::v1::{Permissions, Tool},
    };

    use super::*;
    use crate::{memory::Scope, surroundings::Skill};

    fn agent() -> Agent {
        let manifest = Manifest { prompt: "Be brief.\n".into(), ..Manifest::default() };
        Agent { id: "default".into(), version: 1, manifest }
    }

    #[test]
    fn an_agent_is_told_whom_it_can_reach() {
        let mut agent = agent();
        let hosts = vec!["example.com".to_owned(), "*.crates.io".to_owned()];
        agent.manifest.permissions = Some(Permissions { hosts, ..Permissions::default() });
        let offer = offer("bash");
        let around = Around {
            surroundings: &Surroundings::default(),
            memories: &[],
            day: "2026-11-16",
            offer: &offer,
        };
        let told = "a sandbox that reaches these hosts over HTTP and HTTPS and nothing else: \
            example.com, *.crates.io; the working directory";
        assert!(system(&agent, around).text.contains(told));
    }

    fn offer(name: &str) -> Offer {
        let (name, description) = (name.to_owned(), "Does it".to_owned());
        let tool = Tool { name, description, input_schema_json: "{}".into(), ..Tool::default() };
        Offer::new(&[tool], &[], &[])
    }

    fn surroundings() -> Surroundings {
        Surroundings {
            instructions: Some("Use tabs.\n".into()),
            skills: vec![Skill {
                name: "pdf".into(),
                description: "Fills forms".into(),
                path: ".agents/skills/pdf/SKILL.md".into(),
            }],
        }
    }

    #[test]
    fn sections_are_in_a_fixed_order_and_each_has_its_digest() {
        let (scope, name, description) = (Scope::User, "tea".into(), "Drinks tea".into());
        let memories = [Line { scope, name, description }];
        let offer = offer("bash");
        let around = Around {
            surroundings: &surroundings(),
            memories: &memories,
            day: "2026-11-16",
            offer: &offer,
        };
        let system = system(&agent(), around);
        expect![[r##"
            Be brief.

            # Project instructions (AGENTS.md)

            Use tabs.

            # Skills

            Read the file of a skill before you do what it is for.

            - pdf (.agents/skills/pdf/SKILL.md): Fills forms

            # Memory

            - tea (user): Drinks tea

            # Environment

            Today is 2026-11-16 (UTC). Tools run in a sandbox without network; the working directory is /workspace.

            # Tools

            {"description":"Does it","input_schema":"{}","name":"bash"}"##]]
        .assert_eq(&system.body);
        assert!(system.body.starts_with(&system.text));
        let names: Vec<_> = system.sections.iter().map(|section| &section.name[..]).collect();
        let order =
            ["manifest", "project_instructions", "skills", "memory", "environment", "tools"];
        assert_eq!(names, order);
        assert_eq!(system.sections[0].digest, digest("Be brief."));
        assert_eq!(system.sections[0].tokens, 3);
    }

    #[test]
    fn what_is_not_there_has_no_section() {
        let surroundings = Surroundings::default();
        let offer = Offer::default();
        let around =
            Around { surroundings: &surroundings, memories: &[], day: "2026-11-16", offer: &offer };
        let bare = system(&agent(), around);
        assert_eq!(bare.text, "Be brief.\n\n# Environment\n\nToday is 2026-11-16 (UTC).");
        assert_eq!((bare.section("tools"), bare.body == bare.text), (None, true));
    }

    #[test]
    fn whoever_can_write_memories_is_taught_when() {
        let (surroundings, offer) = (Surroundings::default(), offer("memory_write"));
        let around =
            Around { surroundings: &surroundings, memories: &[], day: "2026-11-16", offer: &offer };
        assert!(system(&agent(), around).text.contains(MEMORY_SKILL));
    }

    #[test]
    fn the_same_session_has_the_same_prompt_and_another_tool_another() {
        let surroundings = surroundings();
        let digest = |offer: &Offer, day| {
            let around = Around { surroundings: &surroundings, memories: &[], day, offer };
            system(&agent(), around).digest
        };
        let first = digest(&offer("bash"), "2026-11-16");
        assert_eq!(first, digest(&offer("bash"), "2026-11-16"));
        assert_ne!(first, digest(&offer("read"), "2026-11-16"));
        assert_ne!(first, digest(&offer("bash"), "2026-11-17"));
    }
}
