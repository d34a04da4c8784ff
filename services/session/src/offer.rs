//! The tools that a model is offered.

use std::collections::HashSet;

use proto::tools::v1::Tool;
use serde_json::{Value, json};

use crate::{compaction::View, message::ToolState, prompt};

/// The tool that finds others.
pub const TOOL_SEARCH: &str = "tool_search";

/// With more tools than this, those of MCP servers are offered when they were found.
const MOST: usize = 20;

/// Worked out once for many prompts: it changes when tools do.
#[derive(Debug, Default)]
pub struct Offer {
    pub tools: Vec<Tool>,
    /// Those that only read, by name.
    pub read_only: HashSet<String>,
    /// One line of JSON per tool, as prompts are stored with.
    pub text: String,
    /// Of the text, which is most of a prompt.
    pub digest: String,
    /// What the agent has and has to search for.
    hidden: HashSet<String>,
}

impl Offer {
    /// Of the tools there are, those with these names. No names: all of them. Of too many, our
    /// own and those that were found.
    pub fn new(tools: &[Tool], names: &[String], found: &[String]) -> Offer {
        let all = active(tools, names);
        // Nothing is hidden that nobody could find.
        let search = tools.iter().find(|tool| tool.name == TOOL_SEARCH);
        let search = search.filter(|_| all.clone().count() > MOST && all.clone().any(is_foreign));
        let crowded = search.is_some();
        let shown = |tool: &&Tool| !crowded || !is_foreign(tool) || found.contains(&tool.name);
        let mut tools: Vec<Tool> = all.clone().filter(shown).chain(search).cloned().collect();
        tools.sort_by(|one, other| one.name.cmp(&other.name));
        let hidden = all.filter(|tool| !shown(tool)).map(|tool| tool.name.clone()).collect();
        let lines = tools.iter().map(|tool| {
            json!({
                "name": tool.name, "description": tool.description,
                "input_schema": tool.input_schema_json,
            })
            .to_string()
        });
        let text = lines.collect::<Vec<_>>().join("\n");
        let read_only = tools.iter().filter(|tool| tool.read_only);
        let read_only = read_only.map(|tool| tool.name.clone()).collect();
        Offer { tools, read_only, digest: prompt::digest(&text), text, hidden }
    }

    pub fn is_empty(&self) -> bool {
        self.tools.is_empty()
    }

    pub fn has(&self, name: &str) -> bool {
        self.tools.iter().any(|tool| tool.name == name)
    }

    /// Why a tool cannot be called that the agent has and was not shown.
    pub fn refusal(&self, tool: &str) -> Option<String> {
        let hidden = self.hidden.contains(tool);
        hidden.then(|| format!("{tool} was not offered: find it with {TOOL_SEARCH} first"))
    }
}

/// The tools that an agent has, of which the one that finds others is not one.
fn active<'a>(tools: &'a [Tool], names: &'a [String]) -> impl Iterator<Item = &'a Tool> + Clone {
    tools.iter().filter(move |tool| {
        tool.name != TOOL_SEARCH && (names.is_empty() || names.contains(&tool.name))
    })
}

/// Whether a tool is an MCP server's.
pub fn is_foreign(tool: &Tool) -> bool {
    !tool.mcp_server_id.is_empty()
}

/// What an agent can search: of its tools those that may not be shown.
pub fn searchable<'a>(tools: &'a [Tool], names: &'a [String]) -> impl Iterator<Item = &'a Tool> {
    active(tools, names).filter(|tool| is_foreign(tool))
}

/// The tools that were found in what the model can see of a conversation, by name. So what a
/// compaction or a rewind takes out of its sight has to be searched for again.
pub fn found(view: &View<'_>) -> Vec<String> {
    let searches = view.entries.iter().flat_map(|entry| entry.tools()).filter(|tool_use| {
        tool_use.tool == TOOL_SEARCH && tool_use.state == ToolState::OutputAvailable
    });
    let outputs = searches.filter_map(|tool_use| tool_use.output_json.as_deref());
    let mut names: Vec<String> = outputs.flat_map(found_in).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The names in what a search has answered.
fn found_in(output_json: &str) -> Vec<String> {
    let output: Value = serde_json::from_str(output_json).unwrap_or_default();
    let tools = output["tools"].as_array().map(Vec::as_slice).unwrap_or_default();
    tools.iter().filter_map(|tool| tool["name"].as_str()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::{
        compaction,
        ids::{MessageId, ToolCallId, TurnId},
        message::{Message, Metadata, Part, Role, ToolUse},
    };

    fn tools(own: usize, foreign: usize) -> Vec<Tool> {
        let tool = |name: String, server: &str| Tool {
            name,
            mcp_server_id: server.into(),
            ..Tool::default()
        };
        let own = (0..own).map(|number| tool(format!("own{number}"), ""));
        let foreign = (0..foreign).map(|number| tool(format!("s_{number}"), "s"));
        own.chain(foreign).chain([tool(TOOL_SEARCH.into(), "")]).collect()
    }

    #[test]
    fn of_too_many_tools_those_are_offered_that_were_found() {
        let mut lines = String::new();
        for (own, foreign, names, found) in [
            (3, 0, &[][..], &[][..]),
            (3, 17, &[], &[]),
            (3, 18, &[], &[]),
            (3, 18, &[], &["s_7", "s_17", "gone"]),
            (3, 18, &["own1", "s_1"], &["s_2"]),
            (21, 0, &[], &[]),
        ] {
            let list =
                |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
            let offer = Offer::new(&tools(own, foreign), &list(names), &list(found));
            let refused =
                ["own0", "s_7", "s_8", "nothing"].map(|name| offer.refusal(name).is_some());
            let names: Vec<_> = offer.tools.iter().map(|tool| tool.name.as_str()).collect();
            lines +=
                &format!("{own}+{foreign} found {found:?}: {}, {refused:?}\n", names.join(" "));
        }
        expect![[r#"
            3+0 found []: own0 own1 own2, [false, false, false, false]
            3+17 found []: own0 own1 own2 s_0 s_1 s_10 s_11 s_12 s_13 s_14 s_15 s_16 s_2 s_3 s_4 s_5 s_6 s_7 s_8 s_9, [false, false, false, false]
            3+18 found []: own0 own1 own2 tool_search, [false, true, true, false]
            3+18 found ["s_7", "s_17", "gone"]: own0 own1 own2 s_17 s_7 tool_search, [false, false, true, false]
            3+18 found ["s_2"]: own1 s_1, [false, false, false, false]
            21+0 found []: own0 own1 own10 own11 own12 own13 own14 own15 own16 own17 own18 own19 own2 own20 own3 own4 own5 own6 own7 own8 own9, [false, false, false, false]
        "#]].assert_eq(&lines);
    }

    #[test]
    fn what_was_found_is_read_from_the_conversation() {
        let turn_id = TurnId::new();
        let search = |state, output: &str| {
            Part::Tool(ToolUse {
                state,
                output_json: Some(output.into()),
                ..ToolUse::new(ToolCallId::new(), TOOL_SEARCH.into())
            })
        };
        let done = ToolState::OutputAvailable;
        let parts = vec![
            search(done, r#"{"tools": [{"name": "s_b"}, {"name": "s_a"}]}"#),
            search(done, r#"{"tools": [{"name": "s_a"}, {"nam": 1}, 2]}"#),
            search(done, "no JSON"),
            search(ToolState::InputAvailable, r#"{"tools": [{"name": "s_c"}]}"#),
        ];
        let (id, metadata) = (MessageId::new(), Metadata::default());
        let history = [Message { id, turn_id, role: Role::Assistant, metadata, parts }];
        assert_eq!(found(&compaction::view(&history, turn_id, &[])), ["s_a", "s_b"]);
        assert_eq!(found(&compaction::view(&[], turn_id, &[])), [""; 0]);
    }
}
