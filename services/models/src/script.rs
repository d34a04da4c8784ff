//! The language that drives the scripted model. `SCRIPT.md` is its manual.
//!
//! Everything here is pure: a text becomes steps, or an error with a line. Playing
//! them is `provider::scripted`'s work.

mod text;
mod verb;

use std::{num::NonZeroUsize, time::Duration};

use crate::{provider::FinishReason, usage::Usage};

pub use text::{Text, Variables};

/// The line below which a message is a script.
pub const MARKER: &str = "#!script";

const MAX_BYTES: usize = 64 * 1024;
const MAX_LINES: usize = 1_000;

/// One step for each answer of the model.
#[derive(Debug, Default, PartialEq)]
pub struct Script {
    pub steps: Vec<Step>,
}

/// What the model does in one answer.
#[derive(Debug, Default, PartialEq)]
pub struct Step {
    pub actions: Vec<Action>,
    /// The counts to report; `None`: leave them to be estimated.
    pub usage: Option<Usage>,
    /// `None`: `tool_calls` after a call and `stop` otherwise.
    pub finish: Option<FinishReason>,
}

#[derive(Debug, PartialEq)]
pub enum Action {
    Say { text: Text, rhythm: Rhythm },
    Think { text: Text, rhythm: Rhythm },
    Repeat { count: u32, text: Text, rhythm: Rhythm },
    Call { tool: String, input: Text, rhythm: Rhythm },
    Delay(Duration),
    Fail { fault: Fault, attempts: Attempts },
    Hang,
    Cut,
}

/// How a text is streamed. `chunk` and `pace` set it for the lines below them, so
/// that every action knows its own and playing one needs no state.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Rhythm {
    /// Characters in a delta; `None`: one word.
    pub chunk: Option<NonZeroUsize>,
    /// The wait between two deltas.
    pub pace: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fault {
    Transient,
    RateLimit(Duration),
    Auth,
    Overflow,
    Refused,
    Invalid,
}

/// Which attempts at a request a fault hits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Attempts {
    All,
    First(u32),
}

/// Where a script is wrong, counted from the line below the marker, and how.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("script line {line}: {problem}")]
pub struct Error {
    pub line: usize,
    pub problem: String,
}

impl Script {
    pub fn parse(text: &str) -> Result<Script, Error> {
        let mut parser = verb::Parser::default();
        let mut size = 0;
        for (index, line) in text.lines().enumerate() {
            let at = |problem| Error { line: index + 1, problem };
            size += line.len() + 1;
            if index == MAX_LINES {
                return Err(at(format!("a script has at most {MAX_LINES} lines")));
            }
            if size > MAX_BYTES {
                return Err(at(format!("a script has at most {MAX_BYTES} bytes")));
            }
            parser.line(line).map_err(at)?;
        }
        Ok(parser.finish())
    }
}

impl Attempts {
    pub fn include(self, attempt: u32) -> bool {
        match self {
            Attempts::All => true,
            Attempts::First(count) => attempt <= count,
        }
    }
}

/// Divides a text at the first [`MARKER`]: what a person reads, and the script.
///
/// The marker is a line of its own and starts it, so quoting a script, with `>`
/// or by indenting it, is enough to talk about one without running it.
pub fn split(text: &str) -> (&str, Option<&str>) {
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let end = start + line.len();
        if line.trim_end() == MARKER {
            return (text[..start].trim_end(), Some(&text[end..]));
        }
        start = end;
    }
    (text, None)
}

#[cfg(test)]
mod tests;
