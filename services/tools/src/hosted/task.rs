//! The tool with which an agent has another one work for it.

use serde_json::json;

use super::about;
use crate::catalog::{About, Effect};

pub fn task() -> About {
    about(
        "task",
        "Has another agent, a subagent, do a piece of work in this workspace and returns its \
         final message. It sees nothing of this conversation but your prompt, and you see nothing \
         of its work but the end, so use it for what would fill this conversation with things \
         that do not matter later: exploring code, reading much to find little, reviews, work that \
         can be described completely. Several calls at once run side by side. Do not use it for \
         what takes one or two calls of your own. `explore` looks around and changes nothing; \
         your instructions may name others, and an unknown name is answered with those there are.",
        Effect::Delegates,
        json!({
            "subagent_type": {
                "type": "string",
                "pattern": "^[a-z0-9-]{1,64}$",
                "description": "The name of the agent that does the work.",
            },
            "prompt": {
                "type": "string",
                "minLength": 1,
                "maxLength": 262_144,
                "description": "What to do, complete in itself: what you want to know or have \
                    done, where to begin, and what the answer should contain.",
            },
            "background": {
                "type": "boolean",
                "description": "Whether to go on at once. The end is then told to you as soon as \
                    you are between two steps, or with the next message. Use it for long work \
                    whose result you do not need to go on. Default: false.",
            },
            "metadata": {
                "type": "object",
                "maxProperties": 50,
                "description": "Kept with the session of the subagent, for programs that look \
                    there. The subagent does not see it.",
            },
        }),
        &["subagent_type", "prompt"],
    )
}
