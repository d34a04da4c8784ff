//! Chat completions: OpenAI's, and those of everybody who speaks like it.

mod answer;

use http::{HeaderName, header};
use serde::Serialize;
use serde_json::value::RawValue;

use self::answer::Answer;
use super::{
    Effort, Request, json,
    wire::{Call, Dialect},
};
use crate::{
    catalogue::OutputLimitField,
    prompt::{Content, Message, Role},
};

pub struct OpenaiChat {
    pub output_limit_field: OutputLimitField,
}

impl Dialect for OpenaiChat {
    type Reader = Answer;

    const CREDENTIAL: (HeaderName, &'static str) = (header::AUTHORIZATION, "Bearer ");

    fn call(&self, request: &Request) -> Call {
        let prompt = &request.prompt;
        let mut messages = Vec::with_capacity(prompt.messages.len() + 1);
        if !prompt.system.is_empty() {
            messages.push(Said::System { content: &prompt.system });
        }
        messages.extend(prompt.messages.iter().flat_map(said));
        let limit = Some(request.max_output_tokens);
        let (max_tokens, max_completion_tokens) = match self.output_limit_field {
            OutputLimitField::MaxTokens => (limit, None),
            OutputLimitField::MaxCompletionTokens => (None, limit),
        };
        let tools = prompt.tools.iter().map(|tool| Tool {
            r#type: "function",
            function: Function {
                name: &tool.name,
                description: &tool.description,
                parameters: json::raw(&tool.input_schema_json),
            },
        });
        let response_format = request.output_schema_json.as_deref().map(|schema| Format {
            r#type: "json_schema",
            json_schema: Schema { name: "answer", schema: json::raw(schema), strict: true },
        });
        let body = Body {
            model: &request.model,
            messages,
            tools: tools.collect(),
            stream: true,
            stream_options: StreamOptions { include_usage: true },
            max_tokens,
            max_completion_tokens,
            temperature: request.temperature,
            reasoning_effort: request.effort.map(Effort::as_str),
            response_format,
        };
        Call { path: "/chat/completions".to_owned(), body: json::body(&body) }
    }
}

fn said(message: &Message) -> Vec<Said<'_>> {
    match message.role {
        Role::User => {
            vec![Said::User { content: message.content.iter().filter_map(part).collect() }]
        }
        Role::Assistant => {
            let calls = message.content.iter().filter_map(|content| match content {
                Content::ToolCall { tool_call_id, tool, input_json } => Some(Made {
                    id: tool_call_id,
                    r#type: "function",
                    function: MadeFunction { name: tool, arguments: input_json },
                }),
                _ => None,
            });
            let text = message.texts().collect::<Vec<_>>().join("\n\n");
            let calls: Vec<_> = calls.collect();
            // Nobody here takes reasoning back, and what is left must not be empty.
            match text.is_empty() && calls.is_empty() {
                true => vec![],
                false => vec![Said::Assistant {
                    content: (!text.is_empty()).then_some(text),
                    tool_calls: calls,
                }],
            }
        }
        Role::Tool => {
            let results = message.content.iter().filter_map(|content| match content {
                Content::ToolResult { tool_call_id, text, .. } => {
                    Some(Said::Tool { tool_call_id, content: text })
                }
                _ => None,
            });
            results.collect()
        }
    }
}

fn part(content: &Content) -> Option<Part<'_>> {
    match content {
        Content::Text(text) => Some(Part::Text { text }),
        Content::Image { media_type, data } => {
            Some(Part::ImageUrl { image_url: Image { url: json::data_url(media_type, data) } })
        }
        Content::Reasoning { .. } | Content::ToolCall { .. } | Content::ToolResult { .. } => None,
    }
}

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    messages: Vec<Said<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tool<'a>>,
    stream: bool,
    stream_options: StreamOptions,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_completion_tokens: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_effort: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_format: Option<Format<'a>>,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

#[derive(Serialize)]
#[serde(tag = "role", rename_all = "snake_case")]
enum Said<'a> {
    System {
        content: &'a str,
    },
    User {
        content: Vec<Part<'a>>,
    },
    Assistant {
        content: Option<String>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<Made<'a>>,
    },
    Tool {
        tool_call_id: &'a str,
        content: &'a str,
    },
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Part<'a> {
    Text { text: &'a str },
    ImageUrl { image_url: Image },
}

#[derive(Serialize)]
struct Image {
    url: String,
}

#[derive(Serialize)]
struct Made<'a> {
    id: &'a str,
    r#type: &'static str,
    function: MadeFunction<'a>,
}

#[derive(Serialize)]
struct MadeFunction<'a> {
    name: &'a str,
    arguments: &'a str,
}

#[derive(Serialize)]
struct Tool<'a> {
    r#type: &'static str,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    description: &'a str,
    parameters: &'a RawValue,
}

#[derive(Serialize)]
struct Format<'a> {
    r#type: &'static str,
    json_schema: Schema<'a>,
}

#[derive(Serialize)]
struct Schema<'a> {
    name: &'static str,
    schema: &'a RawValue,
    strict: bool,
}
