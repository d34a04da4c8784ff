//! OpenAI's responses. Nothing is stored there: everything goes along each time, and
//! reasoning as the sealed items that OpenAI wants back.

mod answer;

use http::{HeaderName, header};
use serde::Serialize;
use serde_json::value::RawValue;

use self::answer::Answer;
use super::{
    Effort, Request, json, signature,
    wire::{Call, Dialect},
};
use crate::prompt::{Content, Message, Role};

pub struct OpenaiResponses;

/// Whose the signatures are.
const OWNER: &str = "openai";

impl Dialect for OpenaiResponses {
    type Reader = Answer;

    const CREDENTIAL: (HeaderName, &'static str) = (header::AUTHORIZATION, "Bearer ");

    fn call(&self, request: &Request) -> Call {
        let prompt = &request.prompt;
        let tools = prompt.tools.iter().map(|tool| Tool {
            r#type: "function",
            name: &tool.name,
            description: &tool.description,
            parameters: json::raw(&tool.input_schema_json),
            strict: false,
        });
        let text = request.output_schema_json.as_deref().map(|schema| Text {
            format: Format {
                r#type: "json_schema",
                name: "answer",
                schema: json::raw(schema),
                strict: true,
            },
        });
        let reasoning =
            request.effort.map(|effort| Reasoning { effort: effort.as_str(), summary: "auto" });
        let body = Body {
            model: &request.model,
            instructions: Some(&*prompt.system).filter(|system| !system.is_empty()),
            input: prompt.messages.iter().flat_map(items).collect(),
            tools: tools.collect(),
            stream: true,
            store: false,
            include: ["reasoning.encrypted_content"],
            max_output_tokens: request.max_output_tokens,
            // Whoever reasons has no temperature.
            temperature: request
                .temperature
                .filter(|_| matches!(request.effort, None | Some(Effort::None))),
            reasoning,
            text,
        };
        Call { path: "/responses".to_owned(), body: json::body(&body) }
    }
}

fn items(message: &Message) -> Vec<Item<'_>> {
    let mut items = Vec::new();
    let mut parts = Vec::new();
    for content in &message.content {
        match content {
            Content::Text(text) if message.role == Role::Assistant => {
                parts.push(Part::OutputText { text });
            }
            Content::Text(text) => parts.push(Part::InputText { text }),
            Content::Image { media_type, data } => {
                parts.push(Part::InputImage { image_url: json::data_url(media_type, data) });
            }
            Content::Reasoning { text, signature } => {
                let sealed = signature::open(OWNER, signature).and_then(|one| one.split_once(':'));
                let Some((id, encrypted_content)) = sealed else { continue };
                let summary = Some(text).filter(|text| !text.is_empty());
                let summary = summary.map(|text| Part::SummaryText { text }).into_iter().collect();
                items.push(Item::Reasoning { id, summary, encrypted_content });
            }
            Content::ToolCall { tool_call_id, tool, input_json } => {
                flush(message, &mut parts, &mut items);
                let (call_id, name, arguments) = (tool_call_id, tool, input_json);
                items.push(Item::FunctionCall { call_id, name, arguments });
            }
            Content::ToolResult { tool_call_id, text, .. } => {
                items.push(Item::FunctionCallOutput { call_id: tool_call_id, output: text });
            }
        }
    }
    flush(message, &mut parts, &mut items);
    items
}

/// What was said so far, as one item.
fn flush<'a>(message: &Message, parts: &mut Vec<Part<'a>>, items: &mut Vec<Item<'a>>) {
    if parts.is_empty() {
        return;
    }
    let role = match message.role {
        Role::Assistant => "assistant",
        Role::User | Role::Tool => "user",
    };
    items.push(Item::Message { role, content: std::mem::take(parts) });
}

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    instructions: Option<&'a str>,
    input: Vec<Item<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tool<'a>>,
    stream: bool,
    store: bool,
    include: [&'static str; 1],
    max_output_tokens: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<Reasoning>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<Text<'a>>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Item<'a> {
    Message { role: &'static str, content: Vec<Part<'a>> },
    Reasoning { id: &'a str, summary: Vec<Part<'a>>, encrypted_content: &'a str },
    FunctionCall { call_id: &'a str, name: &'a str, arguments: &'a str },
    FunctionCallOutput { call_id: &'a str, output: &'a str },
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Part<'a> {
    InputText { text: &'a str },
    InputImage { image_url: String },
    OutputText { text: &'a str },
    SummaryText { text: &'a str },
}

#[derive(Serialize)]
struct Tool<'a> {
    r#type: &'static str,
    name: &'a str,
    description: &'a str,
    parameters: &'a RawValue,
    strict: bool,
}

#[derive(Serialize)]
struct Reasoning {
    effort: &'static str,
    summary: &'static str,
}

#[derive(Serialize)]
struct Text<'a> {
    format: Format<'a>,
}

#[derive(Serialize)]
struct Format<'a> {
    r#type: &'static str,
    name: &'static str,
    schema: &'a RawValue,
    strict: bool,
}
