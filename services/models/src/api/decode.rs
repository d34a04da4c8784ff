//! From what a caller sent to what we work with. What does not pass here is refused
//! with the field at fault, before anything happens.

use std::{collections::BTreeSet, ops::RangeInclusive};

use chassis::{Caller, Tenant};
use data_encoding::BASE64URL_NOPAD;
use jiff::SignedDuration;
use prost::Message as _;
use proto::models::v1 as pb;
use serde::{
    Serialize,
    de::{DeserializeOwned, IgnoredAny},
};

use crate::{
    admission::Account,
    catalogue::Capability,
    error::{Error, Result},
    facts::Correlation,
    generate::{Generation, Options},
    limit::{Limit, Scope, Terms},
    prompt::{Content, Message, Prompt, Role, Tool},
    routing::Task,
    store::usage::{DIMENSIONS, Question},
    time::from_proto,
    tokens::Size,
};

const MAX_PROMPT_BYTES: usize = 4 * 1024 * 1024;

/// The largest prompt and everything beside it.
pub const MAX_REQUEST_BYTES: usize = 2 * MAX_PROMPT_BYTES;

const MAX_SYSTEM_BYTES: usize = 1024 * 1024;
const MAX_IMAGE_BYTES: usize = 10 * 1024 * 1024;
const MAX_MESSAGES: usize = 100_000;
const MAX_TOOLS: usize = 500;

/// The longest an id, a name or a profile may be.
const MAX_NAME_BYTES: usize = 128;

/// The longest subject there is.
const MAX_KEY: usize = 256;

/// What scripts can count exactly, with room for sums.
const MAX_AMOUNT: i64 = 1_000_000_000_000_000;
const MAX_PERIOD: SignedDuration = SignedDuration::from_hours(366 * 24);
const QUEUES: RangeInclusive<i32> = 0..=60_000;

const TEMPERATURES: RangeInclusive<f64> = 0.0..=2.0;
const IMAGES: [&str; 4] = ["image/png", "image/jpeg", "image/webp", "image/gif"];

pub fn generation(caller: Caller, request: pb::GenerateRequest) -> Result<Generation> {
    let budget_id = match request.budget_id.as_str() {
        "" => None,
        // An id that is none of ours names no budget either.
        id => Some(id.parse().map_err(|_| Error::BudgetNotFound(id.to_owned()))?),
    };
    let options = options(request.options.unwrap_or_default())?;
    let root_session_id = match named("root_session_id", request.root_session_id)? {
        root if root.is_empty() => request.session_id.clone(),
        root => root,
    };
    let account =
        Account { tenant: caller.tenant, subject: caller.subject, root_session_id, budget_id };
    let correlation = Correlation {
        session_id: named("session_id", request.session_id)?,
        turn_id: named("turn_id", request.turn_id)?,
        step_id: named("step_id", request.step_id)?,
    };
    let prompt = prompt(request.prompt)?;
    let mut task = task(request.target, Size::of(&prompt))?;
    task.capabilities.extend(needs(&prompt, &options));
    Ok(Generation {
        correlation,
        account,
        task,
        prompt,
        options,
        attempt: match u32::try_from(request.attempt) {
            Ok(attempt) => attempt.max(1),
            Err(_) => return invalid("attempt", "must not be negative"),
        },
    })
}

/// What somebody says they counted.
pub fn counted(tokens: i32) -> Result<Size> {
    match tokens {
        0.. => Ok(Size::counted(tokens)),
        _ => invalid("tokens", "must not be negative"),
    }
}

pub fn task(target: Option<pb::Target>, size: Size) -> Result<Task> {
    let target = target.unwrap_or_default();
    let mut capabilities = BTreeSet::new();
    for (index, name) in target.capabilities.iter().enumerate() {
        match name.parse() {
            Ok(capability) => capabilities.insert(capability),
            Err(problem) => return invalid(format!("target.capabilities[{index}]"), problem),
        };
    }
    let model = named("target.model", target.model)?;
    let profile = match named("target.profile", target.profile)? {
        profile if profile.is_empty() => "chat".to_owned(),
        profile => profile,
    };
    let previous = named("target.previous_model", target.previous_model)?;
    Ok(Task {
        model: Some(model).filter(|model| !model.is_empty()),
        profile,
        capabilities,
        size,
        previous: Some(previous).filter(|previous| !previous.is_empty()),
    })
}

pub fn prompt(prompt: Option<pb::Prompt>) -> Result<Prompt> {
    let Some(prompt) = prompt else {
        return invalid("prompt", "is missing");
    };
    if prompt.encoded_len() > MAX_PROMPT_BYTES {
        return invalid("prompt", "must be at most 4 MiB");
    }
    if prompt.system.len() > MAX_SYSTEM_BYTES {
        return invalid("prompt.system", "must be at most 1 MiB");
    }
    if prompt.messages.is_empty() || prompt.messages.len() > MAX_MESSAGES {
        return invalid("prompt.messages", "must be 1 to 100,000 messages");
    }
    if prompt.tools.len() > MAX_TOOLS {
        return invalid("prompt.tools", "must be at most 500 tools");
    }
    let messages = prompt.messages.into_iter().enumerate();
    let tools = prompt.tools.into_iter().enumerate();
    Ok(Prompt {
        system: prompt.system,
        messages: messages.map(|(index, one)| message(index, one)).collect::<Result<_>>()?,
        tools: tools.map(|(index, one)| tool(index, one)).collect::<Result<_>>()?,
    })
}

fn message(index: usize, message: pb::Message) -> Result<Message> {
    let role = match message.role() {
        pb::message::Role::User => Role::User,
        pb::message::Role::Assistant => Role::Assistant,
        pb::message::Role::Tool => Role::Tool,
        pb::message::Role::Unspecified => {
            return invalid(format!("prompt.messages[{index}].role"), "is missing");
        }
    };
    let mut contents = Vec::with_capacity(message.content.len());
    for (place, one) in message.content.into_iter().enumerate() {
        contents.push(content(role, one).map_err(|problem| Error::Invalid {
            field: format!("prompt.messages[{index}].content[{place}]"),
            problem: problem.to_owned(),
        })?);
    }
    Ok(Message { role, content: contents })
}

/// Each role says its own kinds of things.
fn content(role: Role, content: pb::Content) -> Result<Content, &'static str> {
    use pb::content::Kind;
    match (role, content.kind.ok_or("is empty")?) {
        (Role::User | Role::Assistant, Kind::Text(text)) => Ok(Content::Text(text)),
        (Role::User, Kind::Image(pb::Image { media_type, data })) => {
            if !IMAGES.contains(&media_type.as_str()) {
                return Err("must be image/png, image/jpeg, image/webp or image/gif");
            }
            if data.is_empty() || data.len() > MAX_IMAGE_BYTES {
                return Err("must be an image of 1 byte to 10 MiB");
            }
            Ok(Content::Image { media_type, data })
        }
        (Role::Assistant, Kind::Reasoning(pb::Reasoning { text, signature })) => {
            Ok(Content::Reasoning { text, signature })
        }
        (Role::Assistant, Kind::ToolCall(pb::ToolCall { tool_call_id, tool, input_json })) => {
            Ok(Content::ToolCall { tool_call_id, tool, input_json })
        }
        (Role::Tool, Kind::ToolResult(pb::ToolResult { tool_call_id, text, error })) => {
            Ok(Content::ToolResult { tool_call_id, text, error })
        }
        (Role::User, _) => Err("must be text or an image in a user message"),
        (Role::Assistant, _) => Err("must be text, reasoning or a tool call of the assistant"),
        (Role::Tool, _) => Err("must be a tool result in a tool message"),
    }
}

fn tool(index: usize, tool: pb::Tool) -> Result<Tool> {
    let pb::Tool { name, description, input_schema_json } = tool;
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        return invalid(format!("prompt.tools[{index}].name"), "must be 1 to 128 bytes");
    }
    if !is_object(&input_schema_json) {
        return invalid(
            format!("prompt.tools[{index}].input_schema_json"),
            "must be a JSON object",
        );
    }
    Ok(Tool { name, description, input_schema_json })
}

fn options(options: pb::Options) -> Result<Options> {
    if options.max_output_tokens < 0 {
        return invalid("options.max_output_tokens", "must not be negative");
    }
    if options.temperature.is_some_and(|temperature| !TEMPERATURES.contains(&temperature)) {
        return invalid("options.temperature", "must be from 0 to 2");
    }
    let effort = match options.reasoning_effort.as_str() {
        "" => None,
        effort => match effort.parse() {
            Ok(effort) => Some(effort),
            Err(problem) => return invalid("options.reasoning_effort", problem),
        },
    };
    let schema = Some(options.output_schema_json).filter(|schema| !schema.is_empty());
    if schema.as_deref().is_some_and(|schema| !is_object(schema)) {
        return invalid("options.output_schema_json", "must be a JSON object");
    }
    Ok(Options {
        max_output_tokens: Some(options.max_output_tokens).filter(|tokens| *tokens > 0),
        temperature: options.temperature,
        effort,
        output_schema_json: schema,
    })
}

/// What a model must be able to do because of what it is sent.
fn needs(prompt: &Prompt, options: &Options) -> impl Iterator<Item = Capability> {
    let mut contents = prompt.messages.iter().flat_map(|message| &message.content);
    let images = contents.any(|content| matches!(content, Content::Image { .. }));
    let needs = [
        (!prompt.tools.is_empty(), Capability::Tools),
        (images, Capability::Images),
        (options.output_schema_json.is_some(), Capability::StructuredOutput),
    ];
    needs.into_iter().filter_map(|(needed, capability)| needed.then_some(capability))
}

pub fn page_size(page_size: i32) -> Result<usize> {
    size(page_size, 100, 500)
}

/// How many of a list are wanted; zero: as many as is usual.
pub fn size(size: i32, usual: usize, most: usize) -> Result<usize> {
    match usize::try_from(size) {
        Ok(0) => Ok(usual),
        Ok(size) if size <= most => Ok(size),
        _ => invalid("page_size", &format!("must be from 0 to {most}")),
    }
}

/// The place after which the next page begins.
pub fn page_token<T: DeserializeOwned>(token: &str) -> Result<Option<T>> {
    if token.is_empty() {
        return Ok(None);
    }
    let json = BASE64URL_NOPAD.decode(token.as_bytes()).map_err(|_| Error::InvalidCursor)?;
    serde_json::from_slice(&json).map(Some).map_err(|_| Error::InvalidCursor)
}

pub fn to_page_token<T: Serialize>(place: &T) -> String {
    BASE64URL_NOPAD.encode(&serde_json::to_vec(place).unwrap_or_default())
}

pub fn limit(limit: Option<pb::Limit>, tenant: &Tenant) -> Result<Limit> {
    let Some(limit) = limit else {
        return invalid("limit", "is missing");
    };
    let name = limit.limit.parse().or_else(|problem| invalid("limit.limit", problem))?;
    let scope = limit.scope.parse().or_else(|problem| invalid("limit.scope", problem))?;
    let key = match limit.key {
        key if scope == Scope::Tenant && (key.is_empty() || key == tenant.as_str()) => {
            String::new()
        }
        _ if scope == Scope::Tenant => {
            return invalid("limit.key", "must be empty: a tenant limits itself");
        }
        key if key.chars().count() > MAX_KEY || key.chars().any(char::is_control) => {
            return invalid("limit.key", "must be at most 256 printable characters");
        }
        key => key,
    };
    if !(0..=MAX_AMOUNT).contains(&limit.value) {
        return invalid("limit.value", "must be from 0, which removes the limit, to 10^15");
    }
    if !QUEUES.contains(&limit.queue_ms) {
        return invalid("limit.queue_ms", "must be from 0 to 60,000");
    }
    Ok(Limit { name, scope, key, terms: Terms { value: limit.value, queue_ms: limit.queue_ms } })
}

pub fn amount(micros: i64) -> Result<i64> {
    match (0..=MAX_AMOUNT).contains(&micros) {
        true => Ok(micros),
        false => invalid("amount_micros", "must be from 0 to 10^15"),
    }
}

pub fn question(request: pb::QueryUsageRequest) -> Result<Question> {
    let time = |field, time: Option<_>| match time.and_then(from_proto) {
        Some(time) => Ok(time),
        None => invalid(field, "is missing or no time"),
    };
    let start = time("start_time", request.start_time)?;
    let end = time("end_time", request.end_time)?;
    if start >= end || end.duration_since(start) > MAX_PERIOD {
        return invalid("end_time", "must be later than start_time, by at most 366 days");
    }
    if request.group_by.len() > 3 {
        return invalid("group_by", "must be at most 3");
    }
    let mut by = [false; 6];
    for (index, name) in request.group_by.iter().enumerate() {
        match DIMENSIONS.iter().position(|dimension| dimension == name) {
            Some(place) => by[place] = true,
            None => {
                let problem = "expected subject, session, session_tree, provider, model or day";
                return invalid(format!("group_by[{index}]"), problem);
            }
        }
    }
    let root_session_id = named("root_session_id", request.root_session_id)?;
    Ok(Question { start, end, by, root_session_id })
}

pub fn required(field: &str, text: String) -> Result<String> {
    match text.is_empty() {
        true => invalid(field, "is missing"),
        false => named(field, text),
    }
}

/// Looks at all of it and keeps nothing: every prompt has the schemas of all its tools.
fn is_object(json: &str) -> bool {
    json.trim_start().starts_with('{') && serde_json::from_str::<IgnoredAny>(json).is_ok()
}

pub fn named(field: &str, name: String) -> Result<String> {
    short(field, &name)?;
    Ok(name)
}

fn short(field: &str, name: &str) -> Result<()> {
    match name.len() > MAX_NAME_BYTES || name.chars().any(char::is_control) {
        true => invalid(field, "must be at most 128 printable characters"),
        false => Ok(()),
    }
}

fn invalid<T>(field: impl Into<String>, problem: &str) -> Result<T> {
    Err(Error::Invalid { field: field.into(), problem: problem.to_owned() })
}
