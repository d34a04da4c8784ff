//! What a command line would run, part by part. Reads and touches nothing.
//!
//! Rules are about commands, and a shell can hide one in many places. So a line is taken apart
//! as bash would: every program it starts is a part, and so is every variable it sets and every
//! file it writes by redirection. A wrapper like `timeout` or `bash -c` and what it wraps are
//! both parts. Where it cannot be told for sure what would run, the part says so; nothing is
//! guessed. Lines are hostile: nesting and the number of parts are bounded, and what is beyond
//! the bounds is not understood.

mod word;
mod scan;
mod expand;
mod shell;
mod compound;
mod redirect;
mod here;
mod wrapper;
mod options;
mod runs;
mod git;
mod variable;
pub mod danger;
pub mod reads;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
#[cfg(test)]
mod tests;

use self::{shell::Shell, word::Word};

/// How many parts a line may have, and how deep they may be nested.
const MOST_PARTS: usize = 256;
const DEEPEST: usize = 24;

/// A command line and all that it would do. There is always a part.
#[derive(Debug)]
pub struct Line {
    pub text: String,
    pub parts: Vec<Part>,
}

/// One thing that a line does.
#[derive(Debug)]
pub struct Part {
    pub kind: Kind,

    /// The words of a program and its arguments, of one assignment, or the file written to.
    words: Vec<Word>,

    /// How it can be written. The first way is the one that people see and that an allow is
    /// compared with: words with one blank between them, in single quotes where they need any.
    texts: Vec<Text>,

    /// Why it cannot be told for sure what it does.
    pub unclear: Option<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Starts a program, a builtin or a function.
    Program,

    /// Only starts what is another part, and is known to do so.
    Wrapper,
    Assignment,

    /// Empties a file and writes to it.
    Overwrite,
    Append,

    /// Cannot be read at all.
    Unknown,
}

/// A way to write a part, and how much of it is certain: from there on, what the shell fills in
/// is unknown.
#[derive(Debug, PartialEq, Eq)]
pub struct Text {
    pub text: String,
    pub certain: usize,
}

/// Why a line cannot be read.
#[derive(Debug)]
pub struct Unclear(pub &'static str);

type Step<T> = Result<T, Unclear>;

impl Line {
    pub fn split(text: &str) -> Line {
        let mut found = Found::default();
        found.script(text);
        if found.parts.is_empty() {
            // Nothing but blanks and comments.
            found.parts.push(Part::new(Kind::Program, vec![Word::literal(text.trim())]));
        }
        Line { text: text.to_owned(), parts: found.parts }
    }
}

impl Part {
    fn new(kind: Kind, words: Vec<Word>) -> Part {
        let texts = word::texts(&words);
        Part { kind, words, texts, unclear: None }
    }

    /// A file that is written by redirection. No program can be written like this, as its name
    /// would be in quotes.
    fn write(kind: Kind, file: Word) -> Part {
        let sign = if kind == Kind::Append { ">> " } else { "> " };
        let mut part = Part::new(kind, vec![file]);
        for text in &mut part.texts {
            text.text.insert_str(0, sign);
            text.certain += sign.len();
        }
        part
    }

    /// What may do anything at all.
    fn unknown(text: &str, why: &'static str) -> Part {
        let texts = vec![Text { text: text.trim().to_owned(), certain: 0 }];
        Part { kind: Kind::Unknown, words: vec![], texts, unclear: Some(why) }
    }

    /// It may start anything, whatever it looks like.
    fn may_be_anything(&mut self, why: &'static str) {
        self.unclear = Some(why);
        self.texts.iter_mut().for_each(|text| text.certain = 0);
    }

    /// As people see it.
    pub fn text(&self) -> &str {
        &self.texts[0].text
    }

    pub fn shown(&self) -> &Text {
        &self.texts[0]
    }

    /// All ways to write it, which a deny is compared with.
    pub fn texts(&self) -> &[Text] {
        &self.texts
    }

    /// The program's name without its folder.
    fn name(&self) -> &str {
        self.words.first().map_or("", Word::base)
    }

    fn arguments(&self) -> &[Word] {
        self.words.get(1..).unwrap_or_default()
    }
}

/// What was found so far.
#[derive(Debug, Default)]
struct Found {
    parts: Vec<Part>,
    depth: usize,
}

impl Found {
    fn push(&mut self, part: Part) -> Step<()> {
        if self.parts.len() >= MOST_PARTS {
            return Err(Unclear("it has too many parts"));
        }
        self.parts.push(part);
        Ok(())
    }

    /// Does something one level deeper.
    fn deeper<T>(&mut self, step: impl FnOnce(&mut Found) -> Step<T>) -> Step<T> {
        if self.depth >= DEEPEST {
            return Err(Unclear("it is nested too deeply"));
        }
        self.depth += 1;
        let result = step(self);
        self.depth -= 1;
        result
    }

    /// Takes a script apart. What cannot be read is a part by itself.
    fn script(&mut self, text: &str) {
        let read = self.deeper(|found| Shell::new(text, found).all());
        if let Err(Unclear(why)) = read {
            self.parts.push(Part::unknown(text, why));
        }
    }
}
