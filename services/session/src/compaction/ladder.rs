//! The ways to summarize a history, from the best to the last: as it is, without tool
//! outputs, piece by piece, without its middle.

use super::{Entry, left_out, told};
use crate::message::{Part, Role, ToolState};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Method {
    #[default]
    Summary,
    Pruned,
    Chunked,
    DroppedMiddle,
}

/// More pieces than this cost more than their summary is worth.
const MOST_PIECES: usize = 8;

/// With less room than this a summarizer cannot read anything.
const LEAST_ROOM: usize = 1024;

impl Method {
    pub fn as_str(self) -> &'static str {
        match self {
            Method::Summary => "summary",
            Method::Pruned => "pruned",
            Method::Chunked => "chunked",
            Method::DroppedMiddle => "dropped_middle",
        }
    }

    /// The next way when this one asks too much of the summarizer.
    pub fn next(self) -> Option<Method> {
        match self {
            Method::Summary => Some(Method::Pruned),
            Method::Pruned => Some(Method::Chunked),
            Method::Chunked => Some(Method::DroppedMiddle),
            Method::DroppedMiddle => None,
        }
    }
}

/// What the summarizer reads, one request after the other; each but the first goes on from
/// the summary before it, for which `summary_bytes` are kept free. `None`: not in this way.
pub fn pieces(
    method: Method,
    summary: Option<&str>,
    head: &[Entry<'_>],
    room: usize,
    summary_bytes: usize,
) -> Option<Vec<String>> {
    if room < LEAST_ROOM {
        return None;
    }
    let prune = method != Method::Summary;
    let mut blocks: Vec<String> = head.iter().map(|entry| block(entry, prune)).collect();
    if let Some(summary) = summary {
        blocks.insert(0, continued(summary));
    }
    let whole = |blocks: &[String]| {
        let text = blocks.join("\n\n");
        (text.len() <= room).then(|| vec![text])
    };
    match method {
        Method::Summary | Method::Pruned => whole(&blocks),
        Method::Chunked => {
            let chunks = chunks(&blocks, room - summary_bytes.min(room / 2));
            (chunks.len() <= MOST_PIECES).then_some(chunks)
        }
        Method::DroppedMiddle => Some(vec![without_middle(&blocks, room)]),
    }
}

/// A summary of what came before, as the summarizer reads it.
pub fn continued(summary: &str) -> String {
    format!("### summary of everything before\n{summary}")
}

/// One message as the summarizer reads it.
fn block(entry: &Entry<'_>, prune: bool) -> String {
    let mut lines = vec![match entry.role {
        Role::User => "### user".to_owned(),
        Role::Assistant => "### assistant".to_owned(),
    }];
    lines.extend(told(entry.parts).map(|told| format!("[{told}]")));
    for part in entry.parts {
        match part {
            Part::Text(text) => lines.push(text.text.clone()),
            Part::File(file) => lines.push(format!("[file {} at {}]", file.name, file.reference)),
            Part::Tool(tool_use) => {
                lines.push(format!("[call {} {}]", tool_use.tool, tool_use.input_json));
                let (word, output) = match tool_use.state {
                    ToolState::OutputAvailable => ("result", &tool_use.output_json),
                    _ => ("error", &tool_use.error_text),
                };
                let output = match prune {
                    true => left_out(tool_use).or_else(|| output.clone()),
                    false => output.clone(),
                };
                lines.push(format!("[{word} {}]", output.unwrap_or_default()));
            }
            Part::Reasoning(_) | Part::Data { .. } => {}
        }
    }
    lines.join("\n")
}

/// Fills chunks with blocks, and cuts a block that is larger than a chunk.
fn chunks(blocks: &[String], room: usize) -> Vec<String> {
    let mut chunks = vec![String::new()];
    for block in blocks {
        let mut rest = block.as_str();
        while !rest.is_empty() {
            let last = chunks.len() - 1;
            let gap = if chunks[last].is_empty() { "" } else { "\n\n" };
            let free = room.saturating_sub(chunks[last].len() + gap.len());
            if rest.len() <= free {
                chunks[last].push_str(gap);
                chunks[last].push_str(rest);
                break;
            }
            if rest.len() <= room {
                chunks.push(String::new());
                continue;
            }
            let (some, more) = rest.split_at(rest.floor_char_boundary(free));
            if !some.is_empty() {
                chunks[last].push_str(gap);
                chunks[last].push_str(some);
            }
            chunks.push(String::new());
            rest = more;
        }
    }
    chunks.retain(|chunk| !chunk.is_empty());
    chunks
}

/// The beginning says what it is about and the end where it stands.
fn without_middle(blocks: &[String], room: usize) -> String {
    let note = |count: usize| format!("[{count} messages are left out here]");
    let room = room - note(usize::MAX).len() - 4;
    let short: Vec<&str> =
        blocks.iter().map(|block| &block[..block.floor_char_boundary(room / 8)]).collect();
    let mut front = 0;
    let mut bytes = 0;
    while front < short.len() && bytes + short[front].len() + 2 <= room / 3 {
        bytes += short[front].len() + 2;
        front += 1;
    }
    let mut back = short.len();
    while back > front && bytes + short[back - 1].len() + 2 <= room {
        bytes += short[back - 1].len() + 2;
        back -= 1;
    }
    let mut kept: Vec<String> = short[..front].iter().map(|block| (*block).to_owned()).collect();
    if back > front {
        kept.push(note(back - front));
    }
    kept.extend(short[back..].iter().map(|block| (*block).to_owned()));
    kept.join("\n\n")
}
