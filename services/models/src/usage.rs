//! What a request consumed, counted one way whoever counted it.

use crate::{provider::Delta, tokens::plain};

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

/// What a provider counted, and in which way it counts.
#[derive(Debug, Clone, Copy)]
pub struct Counts {
    pub input: i64,
    pub output: i64,
    pub reasoning: i64,
    /// How `output` counts `reasoning`.
    pub reasoning_is: Counting,
    pub cache_read: i64,
    pub cache_write: i64,
    /// How `input` counts both.
    pub cache_is: Counting,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Counting {
    Included,
    Separate,
}

impl Usage {
    /// The one place where providers' ways to count become ours.
    pub fn normalised(counts: Counts) -> Usage {
        // A count that cannot be is no reason to lose an answer.
        let bounded = |count: i64| i32::try_from(count.max(0)).unwrap_or(i32::MAX);
        let (cache_read, cache_write) = (bounded(counts.cache_read), bounded(counts.cache_write));
        let (input, output) = (bounded(counts.input), bounded(counts.output));
        let reasoning = bounded(counts.reasoning);
        let input = match counts.cache_is {
            Counting::Included => {
                input.saturating_sub(cache_read).saturating_sub(cache_write).max(0)
            }
            Counting::Separate => input,
        };
        let output = match counts.reasoning_is {
            Counting::Included => output,
            Counting::Separate => output.saturating_add(reasoning),
        };
        Usage { input, output, reasoning: reasoning.min(output), cache_read, cache_write }
    }

    pub fn plus(self, other: Usage) -> Usage {
        Usage {
            input: self.input.saturating_add(other.input),
            output: self.output.saturating_add(other.output),
            reasoning: self.reasoning.saturating_add(other.reasoning),
            cache_read: self.cache_read.saturating_add(other.cache_read),
            cache_write: self.cache_write.saturating_add(other.cache_write),
        }
    }
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
        let (output, reasoning) = (plain(self.characters), plain(self.reasoning));
        Usage { input, output, reasoning, ..Usage::default() }
    }
}

fn count(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_token_is_counted_twice() {
        let counts = Counts {
            input: 100,
            output: 50,
            reasoning: 20,
            reasoning_is: Counting::Included,
            cache_read: 60,
            cache_write: 10,
            cache_is: Counting::Included,
        };
        let usage = Usage { input: 30, output: 50, reasoning: 20, cache_read: 60, cache_write: 10 };
        assert_eq!(Usage::normalised(counts), usage);
        let separate =
            Counts { cache_is: Counting::Separate, reasoning_is: Counting::Separate, ..counts };
        assert_eq!(Usage::normalised(separate), Usage { input: 100, output: 70, ..usage });
    }

    #[test]
    fn counts_that_cannot_be_stay_harmless() {
        let counts = Counts {
            input: 10,
            output: -1,
            reasoning: 5,
            reasoning_is: Counting::Included,
            cache_read: 20,
            cache_write: i64::MIN,
            cache_is: Counting::Included,
        };
        assert_eq!(Usage::normalised(counts), Usage { cache_read: 20, ..Usage::default() });
    }
}
