//! The tools that a model is offered.

use std::collections::HashSet;

use proto::tools::v1::Tool;
use serde_json::json;

/// Worked out once for many prompts: it changes when tools do.
#[derive(Debug, Default)]
pub struct Offer {
    pub tools: Vec<Tool>,
    /// Those that only read, by name.
    pub read_only: HashSet<String>,
    /// One line of JSON per tool, as prompts are stored with.
    pub text: String,
}

impl Offer {
    /// Of the tools there are, those with these names. No names: all of them.
    pub fn new(tools: &[Tool], names: &[String]) -> Offer {
        let offered = |tool: &&Tool| names.is_empty() || names.contains(&tool.name);
        let tools: Vec<_> = tools.iter().filter(offered).cloned().collect();
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
        Offer { tools, read_only, text }
    }

    pub fn is_empty(&self) -> bool {
        self.tools.is_empty()
    }

    pub fn has(&self, name: &str) -> bool {
        self.tools.iter().any(|tool| tool.name == name)
    }
}
