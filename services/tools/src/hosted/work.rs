//! Tools for an agent's own work: what is to do, what it knows how to do, what it can use.

use serde_json::json;

use super::{TOOL_SEARCH, about};
use crate::catalog::{About, Effect};

pub fn todo() -> About {
    about(
        "todo",
        "Keeps your list of what is to do, which the person you work for sees, too. Each call \
         replaces the whole list. Use it for work of three steps or more, or when you are given \
         several tasks: write the list before you begin, have exactly one item in progress, and \
         mark an item completed as soon as it is, not later together with others. Do not use it \
         for what takes one step.",
        // It is in the conversation and nowhere else.
        Effect::Reads,
        json!({
            "items": {
                "type": "array",
                "maxItems": 100,
                "items": {
                    "type": "object",
                    "properties": {
                        "text": {
                            "type": "string",
                            "minLength": 1,
                            "maxLength": 500,
                            "description": "What is to do, as a sentence that begins with a verb.",
                        },
                        "status": {
                            "type": "string",
                            "enum": ["pending", "in_progress", "completed"],
                        },
                    },
                    "required": ["text", "status"],
                    "additionalProperties": false,
                },
                "description": "The whole list, in the order in which it is to be done.",
            },
        }),
        &["items"],
    )
}

pub fn skill() -> About {
    about(
        "skill",
        "Loads a skill: instructions for a kind of task, written for agents that work here. Use \
         it before you begin with something that one of the skills you were told of is for, and \
         then follow what it says. Returns its text, and the paths of the files beside it, which \
         you can read with `read`.",
        Effect::Reads,
        json!({
            "name": {
                "type": "string",
                "minLength": 1,
                "maxLength": 200,
                "description": "The name of the skill, as it was told to you.",
            },
        }),
        &["name"],
    )
}

pub fn tool_search() -> About {
    about(
        TOOL_SEARCH,
        "Finds tools that you have and do not see: there are too many to show them all. Returns \
         the names and descriptions of those that fit best; from your next step on you can call \
         them like any other. Search before you say that you cannot do something.",
        Effect::Reads,
        json!({
            "query": {
                "type": "string",
                "minLength": 1,
                "maxLength": 500,
                "description": "What the tool should do, in a few words: `create github issue`.",
            },
            "limit": {
                "type": "integer",
                "minimum": 1,
                "maximum": 10,
                "description": "How many tools at most. Default: 5.",
            },
        }),
        &["query"],
    )
}
