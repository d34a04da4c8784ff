//! How many tokens something has, where nobody counted them. One look at a prompt serves
//! every family of models, because what differs between them is mostly a factor.
//!
//! Counting exactly would take each family's vocabulary, and only one family publishes its
//! own; for that one the tests measure how far off the estimate is.

use std::{hash::BuildHasher as _, sync::LazyLock};

use foldhash::fast::RandomState;
use moka::sync::Cache;
use serde::Deserialize;

use crate::prompt::{Content, Prompt};

/// Whose tokens are counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tokenizer {
    /// Four characters each, which is easy to reckon with.
    #[default]
    Plain,
    Openai,
    Anthropic,
    Gemini,
}

/// The size of a text or a prompt, before it is known who reads it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Size {
    characters: usize,
    /// Thousandths of a token of OpenAI's.
    units: usize,
    images: usize,
    /// What is said around messages, tools and calls.
    frames: usize,
    /// What somebody else counted.
    tokens: i32,
}

/// English prose and code come to about this; it is an estimate and says so.
const CHARACTERS_PER_TOKEN: usize = 4;

/// What providers count for a picture of ordinary size.
const TOKENS_PER_IMAGE: usize = 1_000;

/// Roles, names of fields and ends of messages.
const TOKENS_PER_FRAME: usize = 6;

/// Characters as tokens, rounded up.
pub fn plain(characters: usize) -> i32 {
    i32::try_from(characters.div_ceil(CHARACTERS_PER_TOKEN)).unwrap_or(i32::MAX)
}

impl Size {
    /// What somebody counted, whoever reads it.
    pub fn counted(tokens: i32) -> Size {
        Size { tokens, ..Size::default() }
    }

    /// Everything a model reads.
    pub fn of(prompt: &Prompt) -> Size {
        let mut size = Size::default();
        size.add(&prompt.system);
        for tool in &prompt.tools {
            size.frames += 1;
            size.add(&tool.name);
            size.add(&tool.description);
            size.add(&tool.input_schema_json);
        }
        size.frames += prompt.messages.len();
        for content in prompt.messages.iter().flat_map(|message| &message.content) {
            match content {
                Content::Text(text)
                | Content::Reasoning { text, .. }
                | Content::ToolResult { text, .. } => size.add(text),
                Content::ToolCall { tool, input_json, .. } => {
                    size.frames += 1;
                    size.add(tool);
                    size.add(input_json);
                }
                Content::Image { .. } => size.images += 1,
            }
        }
        size
    }

    pub fn add(&mut self, text: &str) {
        let (characters, units) = match text.len() {
            0..LONG => measure(text),
            _ => KNOWN.measure(text),
        };
        self.characters += characters;
        self.units += units;
    }

    /// As tokens of this family, rounded up.
    pub fn tokens(&self, tokenizer: Tokenizer) -> i32 {
        let images = self.images * TOKENS_PER_IMAGE;
        // In hundredths: what another family makes of what is one token of OpenAI's. Rather
        // too many, because a prompt that is too long is refused.
        let percent = match tokenizer {
            Tokenizer::Plain => {
                let count = plain(self.characters).saturating_add(self.tokens);
                return count.saturating_add(i32::try_from(images).unwrap_or(i32::MAX));
            }
            Tokenizer::Openai => 100,
            Tokenizer::Anthropic => 125,
            Tokenizer::Gemini => 105,
        };
        let words = (self.units * percent).div_ceil(100_000);
        let count = words + images + self.frames * TOKENS_PER_FRAME;
        i32::try_from(count).unwrap_or(i32::MAX).saturating_add(self.tokens)
    }
}

/// Texts of this many bytes are measured once: every call of a conversation brings its instructions,
/// its tools and what was said so far again.
const LONG: usize = 256;

static KNOWN: LazyLock<Known> =
    LazyLock::new(|| Known { hasher: RandomState::default(), measured: Cache::new(20_000) });

/// What texts were measured to be, by their length and hash. Of two that had both in common, which
/// nobody can bring about who does not know how this process hashes, the second would be estimated
/// wrongly.
struct Known {
    hasher: RandomState,
    measured: Cache<(usize, u64), (usize, usize)>,
}

impl Known {
    fn measure(&self, text: &str) -> (usize, usize) {
        let key = (text.len(), self.hasher.hash_one(text));
        if let Some(measured) = self.measured.get(&key) {
            return measured;
        }
        let measured = measure(text);
        self.measured.insert(key, measured);
        measured
    }
}

/// Characters, and thousandths of tokens as a vocabulary of some 200,000 pieces cuts them:
/// most words of English are one piece together with the space before them, rarer and
/// longer ones are several, and other scripts have smaller pieces.
///
/// It goes by stretches of one class of bytes and not by single characters.
fn measure(text: &str) -> (usize, usize) {
    let bytes = text.as_bytes();
    let (mut characters, mut units, mut at) = (0, 0, 0);
    let mut run = Run::default();
    while let Some(byte) = bytes.get(at) {
        let class = CLASSES[usize::from(*byte)];
        let (kind, length, end) = match class.kind() {
            Some(kind) => {
                let same = |byte: &u8| CLASSES[usize::from(*byte)] == class;
                let length = bytes[at..].iter().position(|byte| !same(byte));
                let length = length.unwrap_or(bytes.len() - at);
                (kind, length, at + length)
            }
            None => {
                let character = text[at..].chars().next().unwrap_or_default();
                (Kind::of(character), 1, at + character.len_utf8())
            }
        };
        // A capital begins a word of its own: `toString`.
        if kind != run.kind || (class == Class::Upper && run.ends_low) {
            units += run.units();
            run = Run { kind, ..Run::default() };
        }
        run.length += length;
        run.ends_low = class == Class::Lower;
        run.lines |= class == Class::Line;
        characters += length;
        at = end;
    }
    (characters, units + run.units())
}

/// Bytes that make no difference among themselves.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Class {
    Lower,
    Upper,
    Digit,
    Space,
    Line,
    Sign,
    /// Part of a character that is not ASCII.
    Other,
}

const CLASSES: [Class; 256] = {
    let mut classes = [Class::Other; 256];
    let mut byte = 0;
    while byte < 128 {
        classes[byte] = match byte as u8 {
            b'a'..=b'z' => Class::Lower,
            b'A'..=b'Z' => Class::Upper,
            b'0'..=b'9' => Class::Digit,
            b'\n' => Class::Line,
            b' ' | b'\t'..=b'\r' => Class::Space,
            _ => Class::Sign,
        };
        byte += 1;
    }
    classes
};

impl Class {
    /// What its characters are, if they are all the same.
    fn kind(self) -> Option<Kind> {
        match self {
            Class::Lower | Class::Upper => Some(Kind::Letter),
            Class::Digit => Some(Kind::Digit),
            Class::Space | Class::Line => Some(Kind::Space),
            Class::Sign => Some(Kind::Sign),
            Class::Other => None,
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
enum Kind {
    #[default]
    Space,
    Letter,
    Digit,
    Sign,
    /// Letters of alphabets that are not the Latin one.
    Foreign,
    /// One character, one word.
    Ideograph,
    Symbol,
}

impl Kind {
    fn of(character: char) -> Kind {
        match character {
            '\u{c0}'..='\u{24f}' => Kind::Letter,
            _ if character.is_whitespace() => Kind::Space,
            '\u{2e80}'..='\u{9fff}'
            | '\u{ac00}'..='\u{d7af}'
            | '\u{f900}'..='\u{faff}'
            | '\u{ff00}'..='\u{ffef}'
            | '\u{20000}'..='\u{3ffff}' => Kind::Ideograph,
            _ if character.is_alphabetic() => Kind::Foreign,
            '\u{2010}'..='\u{203a}' => Kind::Sign,
            _ => Kind::Symbol,
        }
    }
}

/// Characters of one kind that follow each other.
#[derive(Default)]
struct Run {
    kind: Kind,
    length: usize,
    ends_low: bool,
    lines: bool,
}

impl Run {
    fn units(&self) -> usize {
        let length = self.length;
        match self.kind {
            _ if length == 0 => 0,
            // One space belongs to the word after it; what indents is one piece.
            Kind::Space if length == 1 && !self.lines => 0,
            Kind::Space => 1000 + length / 16 * 1000,
            Kind::Letter => 1000 + length.saturating_sub(7) * 240,
            Kind::Digit => length.div_ceil(3) * 1000,
            Kind::Sign => 850 + (length - 1) * 350,
            Kind::Foreign => 700 + length * 200,
            Kind::Ideograph => length * 750,
            Kind::Symbol => length * 1500,
        }
    }
}

#[cfg(test)]
mod tests;
