//! Anthropic's messages: prompts that are cached up to the newest word, and thinking that
//! goes back as it came.

mod answer;

use http::HeaderName;
use serde::Serialize;
use serde_json::value::RawValue;

use self::answer::Answer;
use super::{
    Effort, Request, json, signature,
    wire::{Call, Dialect},
};
use crate::{
    catalogue::Thinking,
    prompt::{Content, Message, Prompt, Role},
};

pub struct Anthropic;

/// Whose the signatures are: those of thinking that was shown, and of thinking that was not.
const SHOWN: &str = "anthropic";
const REDACTED: &str = "anthropic-redacted";

/// The least that may be thought.
const MIN_BUDGET: i32 = 1024;

impl Dialect for Anthropic {
    type Reader = Answer;

    const CREDENTIAL: (HeaderName, &'static str) = (HeaderName::from_static("x-api-key"), "");

    const HEADER: Option<(HeaderName, &'static str)> =
        Some((HeaderName::from_static("anthropic-version"), "2023-06-01"));

    fn call(&self, request: &Request) -> Call {
        let prompt = &request.prompt;
        let (thinking, effort) = thinking(request);
        let mut messages: Vec<_> = prompt.messages.iter().filter_map(said).collect();
        // Up to here the next request of this conversation is the same, so it is read from
        // the cache; the first mark is for conversations that begin alike.
        if let Some(block) = messages.last_mut().and_then(|said| said.content.last_mut()) {
            block.cache_control = Some(EPHEMERAL);
        }
        let system = (!prompt.system.is_empty())
            .then(|| vec![Block::cached(Kind::Text { text: &prompt.system })]);
        let tools = prompt.tools.iter().map(|tool| Tool {
            name: &tool.name,
            description: &tool.description,
            input_schema: json::raw(&tool.input_schema_json),
            cache_control: None,
        });
        let mut tools: Vec<_> = tools.collect();
        if let (None, Some(tool)) = (&system, tools.last_mut()) {
            tool.cache_control = Some(EPHEMERAL);
        }
        let format = request.output_schema_json.as_deref();
        let format =
            format.map(|schema| Format { r#type: "json_schema", schema: json::raw(schema) });
        let body = Body {
            model: &request.model,
            max_tokens: request.max_output_tokens,
            system,
            messages,
            tools,
            stream: true,
            // Whoever thinks has no temperature.
            temperature: request.temperature.filter(|_| thinking.is_none()).map(|one| one.min(1.0)),
            thinking,
            output_config: (effort.is_some() || format.is_some())
                .then_some(OutputConfig { effort, format }),
        };
        Call { path: "/messages".to_owned(), body: json::body(&body) }
    }
}

/// How much is thought, and under which of the two ways to say so.
fn thinking(request: &Request) -> (Option<Budget>, Option<&'static str>) {
    let effort = match request.effort {
        None | Some(Effort::None) => return (None, None),
        Some(effort) => effort,
    };
    if is_amid_tools_without_thinking(&request.prompt) {
        return (None, None);
    }
    match request.thinking {
        Thinking::Adaptive => {
            (Some(Budget { r#type: "adaptive", budget_tokens: None }), Some(effort.as_str()))
        }
        Thinking::Budget => {
            let budget = effort.budget().min(request.max_output_tokens - 1);
            let enabled = Budget { r#type: "enabled", budget_tokens: Some(budget) };
            ((budget >= MIN_BUDGET).then_some(enabled), None)
        }
    }
}

/// Thinking cannot begin between a call and what follows its result. Whoever changes to us
/// there has calls in front that somebody else thought of.
fn is_amid_tools_without_thinking(prompt: &Prompt) -> bool {
    let [.., assistant, Message { role: Role::Tool, .. }] = prompt.messages.as_slice() else {
        return false;
    };
    !assistant.content.iter().any(|content| match content {
        Content::Reasoning { signature, .. } => {
            [SHOWN, REDACTED].iter().any(|owner| signature::open(owner, signature).is_some())
        }
        _ => false,
    })
}

fn said(message: &Message) -> Option<Said<'_>> {
    let role = match message.role {
        Role::Assistant => "assistant",
        Role::User | Role::Tool => "user",
    };
    let content: Vec<_> = message.content.iter().filter_map(block).collect();
    (!content.is_empty()).then_some(Said { role, content })
}

fn block(content: &Content) -> Option<Block<'_>> {
    let kind = match content {
        Content::Text(text) if text.is_empty() => return None,
        Content::Text(text) => Kind::Text { text },
        Content::Image { media_type, data } => Kind::Image {
            source: Source { r#type: "base64", media_type, data: json::base64(data) },
        },
        Content::Reasoning { text, signature } => {
            match (signature::open(SHOWN, signature), signature::open(REDACTED, signature)) {
                (Some(signature), _) => Kind::Thinking { thinking: text, signature },
                (None, Some(data)) => Kind::RedactedThinking { data },
                (None, None) => return None,
            }
        }
        Content::ToolCall { tool_call_id, tool, input_json } => {
            Kind::ToolUse { id: tool_call_id, name: tool, input: json::raw(input_json) }
        }
        Content::ToolResult { tool_call_id, text, error } => {
            Kind::ToolResult { tool_use_id: tool_call_id, content: text, is_error: *error }
        }
    };
    Some(Block { kind, cache_control: None })
}

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    max_tokens: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    system: Option<Vec<Block<'a>>>,
    messages: Vec<Said<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tool<'a>>,
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking: Option<Budget>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_config: Option<OutputConfig<'a>>,
}

#[derive(Serialize)]
struct Said<'a> {
    role: &'static str,
    content: Vec<Block<'a>>,
}

#[derive(Serialize)]
struct Block<'a> {
    #[serde(flatten)]
    kind: Kind<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_control: Option<Cache>,
}

impl Block<'_> {
    fn cached(kind: Kind<'_>) -> Block<'_> {
        Block { kind, cache_control: Some(EPHEMERAL) }
    }
}

#[derive(Serialize)]
struct Cache {
    r#type: &'static str,
}

const EPHEMERAL: Cache = Cache { r#type: "ephemeral" };

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Kind<'a> {
    Text { text: &'a str },
    Image { source: Source<'a> },
    Thinking { thinking: &'a str, signature: &'a str },
    RedactedThinking { data: &'a str },
    ToolUse { id: &'a str, name: &'a str, input: &'a RawValue },
    ToolResult { tool_use_id: &'a str, content: &'a str, is_error: bool },
}

#[derive(Serialize)]
struct Source<'a> {
    r#type: &'static str,
    media_type: &'a str,
    data: String,
}

#[derive(Serialize)]
struct Tool<'a> {
    name: &'a str,
    description: &'a str,
    input_schema: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_control: Option<Cache>,
}

#[derive(Serialize)]
struct Budget {
    r#type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    budget_tokens: Option<i32>,
}

#[derive(Serialize)]
struct OutputConfig<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    effort: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    format: Option<Format<'a>>,
}

#[derive(Serialize)]
struct Format<'a> {
    r#type: &'static str,
    schema: &'a RawValue,
}
