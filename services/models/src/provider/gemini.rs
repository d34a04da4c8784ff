//! Google's Gemini, as its own API has it.

mod answer;

use std::collections::HashMap;

use http::HeaderName;
use serde::Serialize;
use serde_json::value::RawValue;

use self::answer::Answer;
use super::{
    Effort, Request, json, signature,
    wire::{Call, Dialect},
};
use crate::prompt::{Content, Message, Prompt, Role};

pub struct Gemini;

/// Whose the signatures are.
const OWNER: &str = "gemini";

impl Dialect for Gemini {
    type Reader = Answer;

    const CREDENTIAL: (HeaderName, &'static str) = (HeaderName::from_static("x-goog-api-key"), "");

    fn call(&self, request: &Request) -> Call {
        let prompt = &request.prompt;
        let functions = prompt.tools.iter().map(|tool| Function {
            name: &tool.name,
            description: &tool.description,
            parameters_json_schema: json::raw(&tool.input_schema_json),
        });
        let functions: Vec<_> = functions.collect();
        let schema = request.output_schema_json.as_deref();
        let thinking_config = request.effort.map(|effort| ThinkingConfig {
            include_thoughts: effort != Effort::None,
            thinking_budget: effort.budget(),
        });
        let system = Some(&*prompt.system).filter(|system| !system.is_empty());
        let body = Body {
            system_instruction: system.map(|text| System { parts: [Part::Text { text }] }),
            contents: contents(prompt),
            tools: match functions.is_empty() {
                true => vec![],
                false => vec![Tools { function_declarations: functions }],
            },
            generation_config: Config {
                max_output_tokens: request.max_output_tokens,
                temperature: request.temperature,
                response_mime_type: schema.map(|_| "application/json"),
                response_json_schema: schema.map(json::raw),
                thinking_config,
            },
        };
        let path = format!("/models/{}:streamGenerateContent?alt=sse", request.model);
        Call { path, body: json::body(&body) }
    }
}

fn contents(prompt: &Prompt) -> Vec<Turn<'_>> {
    // Results go back under the names of their functions.
    let calls = prompt.messages.iter().flat_map(|message| &message.content);
    let calls = calls.filter_map(|content| match content {
        Content::ToolCall { tool_call_id, tool, .. } => Some((&**tool_call_id, &**tool)),
        _ => None,
    });
    let names: HashMap<_, _> = calls.collect();
    let turns = prompt.messages.iter().map(|message| Turn {
        role: match message.role {
            Role::Assistant => "model",
            Role::User | Role::Tool => "user",
        },
        parts: parts(message, &names),
    });
    turns.filter(|turn| !turn.parts.is_empty()).collect()
}

fn parts<'a>(message: &'a Message, names: &HashMap<&'a str, &'a str>) -> Vec<Part<'a>> {
    let mut parts = Vec::new();
    // A signature stands before the call that it came with.
    let mut thought_signature = None;
    for content in &message.content {
        match content {
            Content::Text(text) if text.is_empty() => (),
            Content::Text(text) => parts.push(Part::Text { text }),
            Content::Image { media_type: mime_type, data } => {
                let data = json::base64(data);
                parts.push(Part::InlineData { inline_data: Blob { mime_type, data } });
            }
            Content::Reasoning { signature, .. } => {
                thought_signature = signature::open(OWNER, signature).or(thought_signature);
            }
            Content::ToolCall { tool, input_json, .. } => parts.push(Part::FunctionCall {
                function_call: Made { name: tool, args: json::raw(input_json) },
                thought_signature: thought_signature.take(),
            }),
            Content::ToolResult { tool_call_id, text, error } => {
                let name = names.get(&**tool_call_id).copied().unwrap_or("unknown");
                let response = match error {
                    true => Outcome::Error { error: text },
                    false => Outcome::Output { output: text },
                };
                parts.push(Part::FunctionResponse {
                    function_response: Answered { name, response },
                });
            }
        }
    }
    parts
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    system_instruction: Option<System<'a>>,
    contents: Vec<Turn<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tools<'a>>,
    generation_config: Config<'a>,
}

#[derive(Serialize)]
struct System<'a> {
    parts: [Part<'a>; 1],
}

#[derive(Serialize)]
struct Turn<'a> {
    role: &'static str,
    parts: Vec<Part<'a>>,
}

#[derive(Serialize)]
#[serde(untagged, rename_all_fields = "camelCase")]
enum Part<'a> {
    Text {
        text: &'a str,
    },
    InlineData {
        inline_data: Blob<'a>,
    },
    FunctionCall {
        function_call: Made<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        thought_signature: Option<&'a str>,
    },
    FunctionResponse {
        function_response: Answered<'a>,
    },
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Blob<'a> {
    mime_type: &'a str,
    data: String,
}

#[derive(Serialize)]
struct Made<'a> {
    name: &'a str,
    args: &'a RawValue,
}

#[derive(Serialize)]
struct Answered<'a> {
    name: &'a str,
    response: Outcome<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Outcome<'a> {
    Output { output: &'a str },
    Error { error: &'a str },
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Tools<'a> {
    function_declarations: Vec<Function<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Function<'a> {
    name: &'a str,
    description: &'a str,
    parameters_json_schema: &'a RawValue,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Config<'a> {
    max_output_tokens: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_mime_type: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_json_schema: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking_config: Option<ThinkingConfig>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ThinkingConfig {
    include_thoughts: bool,
    thinking_budget: i32,
}
