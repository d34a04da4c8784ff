//! How many tokens something has, where nobody counted them. One look at a prompt serves
//! every family of models, because what differs between them is mostly a factor.
//!
//! Counting exactly would take each family's vocabulary, and only one family publishes its
//! own; for that one the tests measure how far off the estimate is.

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
        let (characters, units) = measure(text);
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

/// Characters, and thousandths of tokens as a vocabulary of some 200,000 pieces cuts them:
/// most words of English are one piece together with the space before them, rarer and
/// longer ones are several, and other scripts have smaller pieces.
///
/// Every request is measured from end to end, so it goes by stretches of letters and signs of one
/// kind and not by single ones.
fn measure(text: &str) -> (usize, usize) {
    let (mut characters, mut units) = (0, 0);
    let mut run = Run::default();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let (stretch, bytes) = match Stretch::ASCII.get(first as usize) {
            Some(stretch) => {
                let same = |byte: &u8| Stretch::ASCII.get(usize::from(*byte)) == Some(stretch);
                (*stretch, rest.as_bytes().iter().take_while(|byte| same(byte)).count())
            }
            None => (Stretch::of(first), first.len_utf8()),
        };
        let length = if first.is_ascii() { bytes } else { 1 };
        // A capital begins a word of its own: `toString`.
        if stretch.kind != run.kind || (stretch.case == Case::Upper && run.ends_low) {
            units += run.units();
            run = Run { kind: stretch.kind, ..Run::default() };
        }
        run.length += length;
        run.ends_low = stretch.case == Case::Lower;
        run.lines |= stretch.line;
        characters += length;
        rest = &rest[bytes..];
    }
    (characters, units + run.units())
}

/// Characters that follow each other and make no difference among themselves.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Stretch {
    kind: Kind,
    case: Case,
    line: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Case {
    Lower,
    Upper,
    None,
}

impl Stretch {
    const ASCII: [Stretch; 128] = {
        let none = Stretch { kind: Kind::Sign, case: Case::None, line: false };
        let mut table = [none; 128];
        let mut byte = 0;
        while byte < table.len() {
            let (kind, case) = match byte as u8 {
                b'a'..=b'z' => (Kind::Letter, Case::Lower),
                b'A'..=b'Z' => (Kind::Letter, Case::Upper),
                b'0'..=b'9' => (Kind::Digit, Case::None),
                b' ' | b'\t'..=b'\r' => (Kind::Space, Case::None),
                _ => (Kind::Sign, Case::None),
            };
            table[byte] = Stretch { kind, case, line: byte as u8 == b'\n' };
            byte += 1;
        }
        table
    };

    /// Of a character that is not ASCII.
    fn of(character: char) -> Stretch {
        Stretch { kind: Kind::of(character), case: Case::None, line: false }
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
