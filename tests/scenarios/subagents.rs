//! Agents that have other agents work for them.

mod bounds;
mod delegation;
mod shown;
mod tree;

use proto::{
    event::v1::{Event, Payload},
    session::v1::{
        ListSubagentsRequest, Manifest, Subagent, WaitSubagentRequest, manifest::Mode,
        part::Content, part::ToolUse,
    },
    tools::v1::{Permissions, Rule, rule::Action},
};
use serde_json::{Value, json};
use tests::{Client, Session};

/// Plays scripts, and only other agents call it.
const WORKER: &str = "worker";

/// A line of a script that has `agent` do what another script says.
fn task(agent: &str, script: &str) -> String {
    task_with(agent, script, json!({}))
}

fn in_background(agent: &str, script: &str) -> String {
    task_with(agent, script, json!({ "background": true }))
}

fn task_with(agent: &str, script: &str, more: Value) -> String {
    let prompt = format!("Please.\n#!script\n{script}");
    let mut input = json!({ "subagent_type": agent, "prompt": prompt });
    input.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    format!("call task {input}")
}

/// Stores an agent that others can call and that may use every tool.
async fn put_worker(client: &Client) {
    client.put_manifest(WORKER, worker()).await;
}

fn worker() -> Manifest {
    Manifest {
        mode: Mode::Subagent.into(),
        prompt: "You work.".into(),
        model: "scripted/demo".into(),
        permissions: Some(Permissions {
            rules: vec![rule("bash", "*", Action::Allow)],
            ..Permissions::default()
        }),
        ..Manifest::default()
    }
}

fn rule(permission: &str, pattern: &str, action: Action) -> Rule {
    Rule {
        permission: permission.into(),
        pattern: pattern.into(),
        action: action.into(),
        ..Rule::default()
    }
}

/// The children of a session, oldest first.
async fn children(session: &Session) -> Vec<Subagent> {
    list(session, false).await
}

async fn list(session: &Session, recursive: bool) -> Vec<Subagent> {
    let mut subagents = Vec::new();
    let mut request = ListSubagentsRequest {
        session_id: session.id.clone(),
        recursive,
        page_size: 37,
        ..ListSubagentsRequest::default()
    };
    loop {
        let page = session.client.subagents().list_subagents(request.clone()).await.unwrap();
        let page = page.into_inner();
        subagents.extend(page.subagents);
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            return subagents;
        }
    }
}

/// The session of a child.
fn session_of(session: &Session, child: &Subagent) -> Session {
    Session { client: session.client.clone(), id: child.session_id.clone() }
}

/// The child as it is once it has ended.
async fn ended(session: &Session, subagent_id: &str) -> Subagent {
    loop {
        let request = WaitSubagentRequest { subagent_id: subagent_id.to_owned() };
        let response = session.client.subagents().wait_subagent(request).await.unwrap();
        let subagent = response.into_inner().subagent.unwrap();
        if !["running", "waiting"].contains(&subagent.status.as_str()) {
            return subagent;
        }
    }
}

/// What calls came to, in order: their data or their error.
fn results(events: &[Event]) -> Vec<String> {
    let ends = events.iter().filter_map(|event| match &event.payload {
        Some(Payload::ToolResult(result)) => Some(result.data_json.clone()),
        Some(Payload::ToolFailed(failed)) => Some(failed.error_text.clone()),
        _ => None,
    });
    ends.collect()
}

/// The names of the events about one child, in the order of the log.
fn about<'a>(events: &'a [Event], subagent_id: &str) -> Vec<&'a str> {
    let events = events.iter().filter(|event| event.subagent_id == subagent_id);
    events.map(|event| event.r#type.as_str()).collect()
}

/// The parts of a session's messages that are tool calls.
async fn tool_uses(session: &Session) -> Vec<ToolUse> {
    let parts = session.messages().await.into_iter().flat_map(|message| message.parts);
    let calls = parts.filter_map(|part| match part.content {
        Some(Content::Tool(tool)) => Some(tool),
        _ => None,
    });
    calls.collect()
}

/// What the calls of a session came to, in the order in which they were made.
async fn came_to(session: &Session) -> Vec<String> {
    let calls = tool_uses(session).await.into_iter();
    calls
        .map(|call| if call.error_text.is_empty() { call.output_json } else { call.error_text })
        .collect()
}

/// What synthetic messages say about children, in order.
async fn notes(session: &Session) -> Vec<Value> {
    let messages = session.messages().await.into_iter().filter(|message| message.synthetic);
    let parts = messages.flat_map(|message| message.parts);
    let notes = parts.filter(|part| part.r#type == "data-subagent");
    let notes = notes.filter_map(|part| match part.content {
        Some(Content::DataJson(json)) => Some(serde_json::from_str(&json).unwrap()),
        _ => None,
    });
    notes.collect()
}
