//! `todo`, `skill` and `tool_search`: what an agent needs for its own work.

use std::collections::BTreeSet;

use chassis::Caller;
use proto::tools::v1::Call;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Answer, input, refused};
use crate::{error::parse, host::Host, ids::WorkspaceId, offer, search, surroundings::Skill};

/// How many tools a search finds if nobody says.
const USUAL_TOOLS: usize = 5;

/// How much of a description helps to choose, in characters. All of it is offered with the tool.
const BRIEF: usize = 300;

#[derive(Deserialize)]
struct Todo {
    items: Vec<Item>,
}

#[derive(Deserialize, Serialize)]
struct Item {
    text: String,
    status: Status,
}

#[derive(Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Status {
    Pending,
    InProgress,
    Completed,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

#[derive(Deserialize)]
struct Search {
    query: String,
    limit: Option<usize>,
}

/// The list is what the last call says it is. So it is part of the conversation: whatever takes
/// the call back, takes back what it changed.
pub fn todo(call: &Call) -> Answer {
    let Todo { items } = input(call)?;
    let left = items.iter().filter(|item| item.status != Status::Completed).count();
    Ok(json!({ "items": items, "left": left }))
}

pub async fn skill(host: &Host, caller: &Caller, call: &Call) -> Answer {
    let Named { name } = input(call)?;
    let workspace_id: WorkspaceId = parse("workspace_id", &call.workspace_id)?;
    let surroundings = host.surroundings(caller, workspace_id).await;
    let surroundings = surroundings.map_err(|status| {
        refused("unavailable", format!("the workspace does not answer: {}", status.message()))
    })?;
    let Some(skill) = surroundings.skills.iter().find(|skill| skill.name == name) else {
        let names: Vec<&str> =
            surroundings.skills.iter().map(|skill| skill.name.as_str()).collect();
        return Err(refused(
            "failed",
            match names.as_slice() {
                [] => "this workspace has no skills".to_owned(),
                names => format!("there is no skill {name:?}; there are: {}", names.join(", ")),
            },
        ));
    };
    let Skill { name, path, .. } = skill;
    let Some((text, files)) = host.skill(caller, workspace_id, path).await else {
        return Err(refused("failed", format!("{path} cannot be read")));
    };
    Ok(json!({ "name": name, "path": path, "content": text, "files": files }))
}

/// Finds tools by words. What it finds is offered from the next step on, because the answer is
/// in the conversation by then, see [`offer::found`].
pub async fn tool_search(host: &Host, caller: &Caller, call: &Call) -> Answer {
    let Search { query, limit } = input(call)?;
    let workspace_id: WorkspaceId = parse("workspace_id", &call.workspace_id)?;
    let tools = host.tools_of(caller, workspace_id).await.map_err(|status| {
        let text = format!("the tools service does not answer: {}", status.message());
        refused("unavailable", text)
    })?;
    let names = call.permissions.as_ref().map(|permissions| permissions.tools.as_slice());
    let candidates: Vec<_> = offer::searchable(&tools, names.unwrap_or_default()).collect();
    let texts = candidates.iter().map(|tool| (tool.name.as_str(), tool.description.as_str()));
    let found = search::best(texts, &query, limit.unwrap_or(USUAL_TOOLS));
    let found: Vec<_> = found
        .into_iter()
        .map(|place| {
            let tool = candidates[place];
            json!({ "name": tool.name, "description": brief(&tool.description) })
        })
        .collect();
    if !found.is_empty() {
        return Ok(json!({ "tools": found, "searched": candidates.len() }));
    }
    let servers: BTreeSet<&str> =
        candidates.iter().map(|tool| tool.mcp_server_id.as_str()).collect();
    Ok(json!({ "tools": [], "searched": candidates.len(), "servers": servers }))
}

fn brief(text: &str) -> String {
    match text.char_indices().nth(BRIEF) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
