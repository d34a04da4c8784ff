use std::borrow::Cow;

use super::Text;

/// A word of a command, as far as it is known before the shell expands it.
#[derive(Debug, Clone, Default)]
pub struct Word {
    pieces: Vec<Piece>,

    /// How many bytes at its beginning stand for themselves without any quoting.
    pub lead: usize,

    /// There are quotes or backslashes in it.
    pub quoted: bool,

    /// It has characters that look like blanks and are none, or cannot be seen.
    pub odd: bool,
}

#[derive(Debug, Clone)]
enum Piece {
    Literal(String),

    /// Filled in by the shell. `splits`: maybe with several words.
    Hole {
        raw: String,
        splits: bool,
    },
}

impl Word {
    pub fn literal(text: &str) -> Word {
        let pieces = vec![Piece::Literal(text.to_owned())];
        Word { pieces, lead: text.len(), ..Word::default() }
    }

    pub fn hole(raw: &str) -> Word {
        let mut word = Word::default();
        word.push_hole(raw, true);
        word
    }

    pub fn push(&mut self, text: &str, quoted: bool) {
        if !quoted && !self.quoted && !self.has_hole() {
            self.lead += text.len();
        }
        self.quoted |= quoted;
        match self.pieces.last_mut() {
            Some(Piece::Literal(literal)) => literal.push_str(text),
            _ => self.pieces.push(Piece::Literal(text.to_owned())),
        }
    }

    pub fn push_hole(&mut self, raw: &str, splits: bool) {
        self.pieces.push(Piece::Hole { raw: raw.to_owned(), splits });
    }

    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty() && !self.quoted
    }

    pub fn has_hole(&self) -> bool {
        self.pieces.iter().any(|piece| matches!(piece, Piece::Hole { .. }))
    }

    /// Nothing in it is quoted or filled in, so it can be a keyword.
    pub fn is_bare(&self) -> bool {
        !self.quoted && !self.has_hole()
    }

    /// What the program is given, with what the shell fills in as it is written.
    pub fn value(&self) -> Cow<'_, str> {
        match &self.pieces[..] {
            [] => Cow::Borrowed(""),
            [Piece::Literal(text)] => Cow::Borrowed(text),
            pieces => {
                let text = pieces.iter().map(|piece| match piece {
                    Piece::Literal(text) => text.as_str(),
                    Piece::Hole { raw, .. } => raw,
                });
                Cow::Owned(text.collect())
            }
        }
    }

    /// What is certain at its beginning.
    pub fn start(&self) -> &str {
        match self.pieces.first() {
            Some(Piece::Literal(text)) => text,
            Some(Piece::Hole { .. }) | None => "",
        }
    }

    /// Without the folders in front of a program's name.
    pub fn base(&self) -> &str {
        self.start().rsplit('/').next().unwrap_or_default()
    }

    pub fn is(&self, text: &str) -> bool {
        !self.has_hole() && self.value() == text
    }

    /// The shell may make several words of it.
    pub fn may_split(&self) -> bool {
        self.pieces.iter().any(|piece| matches!(piece, Piece::Hole { splits: true, .. }))
    }

    /// The shell may make an option of it.
    pub fn may_be_option(&self) -> bool {
        self.has_hole() && (matches!(self.start(), "" | "-") || self.may_split())
    }

    /// The shell may make this of it.
    pub fn may_become(&self, text: &str) -> bool {
        self.has_hole() && text.starts_with(self.start())
    }

    /// It is one of some options, given by the beginnings of their names, or may be one. A letter is
    /// found among others (`-f` in `-uf`), and of what has two dashes an abbreviation counts. What is
    /// the value of another option, or is filled in behind a dash, may be taken for one: better once
    /// too often.
    pub fn is_option(&self, options: &[&str]) -> bool {
        let start = self.start();
        let is = |option: &&str| match (start.strip_prefix("--"), option.strip_prefix("--")) {
            (Some(given), Some(name)) => {
                let given = given.split('=').next().unwrap_or_default();
                given.starts_with(name) || self.abbreviates(name)
            }
            (None, None) if option.len() == 2 => {
                let letters = start.strip_prefix('-');
                letters.is_some_and(|known| self.has_hole() || known.contains(&option[1..]))
            }
            (None, None) => {
                start.starts_with(*option) || (start.starts_with('-') && self.may_become(option))
            }
            (Some(_), None) | (None, Some(_)) => false,
        };
        options.iter().any(is)
    }

    /// It has two dashes and the beginning of a name, which is taken for the name.
    pub fn abbreviates(&self, name: &str) -> bool {
        let given = self.start().strip_prefix("--").and_then(|rest| rest.split('=').next());
        given.is_some_and(|given| (self.has_hole() || !given.is_empty()) && name.starts_with(given))
    }

    /// As people see it, with quotes where they are needed.
    fn show(&self, text: &mut Joined) {
        if !self.has_hole() {
            text.push(&quote(&self.value()));
            return;
        }
        for piece in &self.pieces {
            match piece {
                Piece::Literal(literal) if literal.is_empty() => (),
                Piece::Literal(literal) => text.push(&quote(literal)),
                Piece::Hole { raw, .. } => text.push_hole(raw),
            }
        }
    }

    fn plain(&self, text: &mut Joined) {
        for piece in &self.pieces {
            match piece {
                Piece::Literal(literal) => text.push(literal),
                Piece::Hole { raw, .. } => text.push_hole(raw),
            }
        }
    }
}

/// All ways to write a command: with quotes, without, and both without the program's folder.
pub fn texts(words: &[Word]) -> Vec<Text> {
    let mut texts = vec![joined(words, Word::show), joined(words, Word::plain)];
    if let Some(name) = words.first()
        && !name.has_hole()
        && name.base().len() < name.value().len()
    {
        let mut words = words.to_vec();
        words[0] = Word::literal(name.base());
        texts.extend([joined(&words, Word::show), joined(&words, Word::plain)]);
    }
    texts.dedup();
    texts
}

fn joined(words: &[Word], write: fn(&Word, &mut Joined)) -> Text {
    let mut joined = Joined::default();
    for (at, word) in words.iter().enumerate() {
        if at > 0 {
            joined.push(" ");
        }
        write(word, &mut joined);
    }
    Text { certain: joined.hole.unwrap_or(joined.text.len()), text: joined.text }
}

#[derive(Default)]
struct Joined {
    text: String,
    hole: Option<usize>,
}

impl Joined {
    fn push(&mut self, text: &str) {
        self.text.push_str(text);
    }

    fn push_hole(&mut self, raw: &str) {
        self.hole.get_or_insert(self.text.len());
        self.text.push_str(raw);
    }
}

/// A text as one word that every shell reads as that text.
fn quote(text: &str) -> Cow<'_, str> {
    let safe = |next: char| next.is_alphanumeric() || "-_./:=@%+,^]".contains(next);
    let plain = matches!(text, "[" | "[[" | "{}" | "!" | "{" | "}");
    if plain || (!text.is_empty() && text.chars().all(safe)) {
        return Cow::Borrowed(text);
    }
    let quoted = |text: &str| format!("'{}'", text.replace('\'', r"'\''"));
    Cow::Owned(match text.split_once('=') {
        Some((name, value)) if !name.is_empty() && name.chars().all(safe) => {
            format!("{name}={}", quoted(value))
        }
        _ => quoted(text),
    })
}
