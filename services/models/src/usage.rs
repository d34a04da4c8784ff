//! How many tokens something has, where nobody counted them.

use crate::{
    prompt::{Content, Prompt},
    provider::Delta,
};

/// What a request consumed. No token is counted twice: `input` excludes both cache
/// counts, `output` includes `reasoning`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Usage {
    pub input: i32,
    pub output: i32,
    pub reasoning: i32,
    pub cache_read: i32,
    pub cache_write: i32,
}

/// English prose and code come to about this; it is an estimate and says so.
const CHARACTERS_PER_TOKEN: usize = 4;

/// What providers count for a picture of ordinary size.
const TOKENS_PER_IMAGE: i32 = 1_000;

/// Characters as tokens, rounded up.
pub fn tokens(characters: usize) -> i32 {
    i32::try_from(characters.div_ceil(CHARACTERS_PER_TOKEN)).unwrap_or(i32::MAX)
}

/// The size of everything a model reads.
pub fn prompt_tokens(prompt: &Prompt) -> i32 {
    let mut characters = count(&prompt.system);
    let mut images = 0;
    for tool in &prompt.tools {
        characters += count(&tool.name) + count(&tool.description) + count(&tool.input_schema_json);
    }
    for content in prompt.messages.iter().flat_map(|message| &message.content) {
        characters += match content {
            Content::Text(text) | Content::Reasoning { text, .. } => count(text),
            Content::ToolCall { tool, input_json, .. } => count(tool) + count(input_json),
            Content::ToolResult { text, .. } => count(text),
            Content::Image { .. } => {
                images += 1;
                0
            }
        };
    }
    tokens(characters).saturating_add(TOKENS_PER_IMAGE.saturating_mul(images))
}

/// Counts an answer as it streams past, for when the provider does not, or does not
/// get to.
#[derive(Debug, Default)]
pub struct Meter {
    characters: usize,
    reasoning: usize,
}

impl Meter {
    pub fn count(&mut self, delta: &Delta) {
        match delta {
            Delta::Text(text) => self.characters += count(text),
            Delta::Reasoning { text, .. } => {
                self.characters += count(text);
                self.reasoning += count(text);
            }
            Delta::ToolCallStarted { tool, .. } => self.characters += count(tool),
            Delta::ToolCallInput { input_json, .. } => self.characters += count(input_json),
            Delta::ToolCallCompleted { .. } => (),
        }
    }

    pub fn usage(&self, input: i32) -> Usage {
        let (output, reasoning) = (tokens(self.characters), tokens(self.reasoning));
        Usage { input, output, reasoning, ..Usage::default() }
    }
}

fn count(text: &str) -> usize {
    text.chars().count()
}
