use std::fmt::Write as _;

use crate::text::{clean, unfinished};

/// Which lines of a text are wanted, and how much of them at most.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// The number of the first line, from 1.
    pub first: u64,
    pub lines: u64,

    /// Longer lines are cut.
    pub line_bytes: usize,

    /// No line is begun behind this much text.
    pub bytes: usize,
}

/// Numbered lines out of a text that arrives in pieces.
#[derive(Debug)]
pub struct Excerpt {
    wanted: Wanted,
    text: String,
    shown: u64,

    /// The line that is arriving: its number, its beginning, and how long it is so far.
    number: u64,
    line: Vec<u8>,
    length: u64,
    cut: bool,
}

impl Excerpt {
    pub fn new(wanted: Wanted) -> Excerpt {
        let (text, line) = (String::new(), Vec::new());
        Excerpt { wanted, text, shown: 0, number: 1, line, length: 0, cut: false }
    }

    pub fn push(&mut self, mut bytes: &[u8]) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.extend(&bytes[..end]);
            self.end_line();
            bytes = &bytes[end + 1..];
        }
        self.extend(bytes);
    }

    /// Everything that is wanted has arrived.
    pub fn is_full(&self) -> bool {
        self.number >= self.wanted.first.saturating_add(self.wanted.lines)
            || self.text.len() >= self.wanted.bytes
    }

    /// The excerpt, and how many lines the text has, if that was all of it.
    pub fn finish(mut self) -> Finished {
        if self.length > 0 {
            self.end_line();
        }
        let Excerpt { text, shown, number, cut, .. } = self;
        Finished { text, shown, lines: number - 1, cut }
    }

    fn is_wanted(&self) -> bool {
        self.number >= self.wanted.first && !self.is_full()
    }

    fn extend(&mut self, bytes: &[u8]) {
        self.length += bytes.len() as u64;
        if self.is_wanted() {
            // One more than is shown, for a carriage return at the end.
            let room = (self.wanted.line_bytes + 1).saturating_sub(self.line.len());
            self.line.extend_from_slice(&bytes[..bytes.len().min(room)]);
        }
    }

    fn end_line(&mut self) {
        if self.is_wanted() {
            let mut line = std::mem::take(&mut self.line);
            if self.length == line.len() as u64 && line.last() == Some(&b'\r') {
                line.pop();
                self.length -= 1;
            }
            if line.len() > self.wanted.line_bytes {
                line.truncate(self.wanted.line_bytes);
                line.truncate(line.len() - unfinished(&line));
            }
            let omitted = self.length - line.len() as u64;
            // Writing to a string cannot fail.
            let _ = write!(self.text, "{:>6}\t{}", self.number, clean(&line));
            if omitted > 0 {
                self.cut = true;
                let _ = write!(self.text, "… [{omitted} bytes omitted]");
            }
            self.text.push('\n');
            self.shown += 1;
        }
        self.line.clear();
        self.length = 0;
        self.number += 1;
    }
}

/// An excerpt that is complete.
#[derive(Debug, PartialEq, Eq)]
pub struct Finished {
    pub text: String,

    /// How many lines are in it.
    pub shown: u64,

    /// How many lines arrived.
    pub lines: u64,

    /// Some line is not shown in full.
    pub cut: bool,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: Wanted = Wanted { first: 1, lines: 100, line_bytes: 100, bytes: 10_000 };

    fn excerpt(wanted: Wanted, text: &[u8]) -> Finished {
        let mut excerpt = Excerpt::new(wanted);
        excerpt.push(text);
        excerpt.finish()
    }

    #[test]
    fn lines_are_numbered() {
        let finished = excerpt(Wanted { first: 2, lines: 2, ..ALL }, b"one\r\ntwo\r\nthree\nfour");
        assert_eq!(finished.text, "     2\ttwo\n     3\tthree\n");
        assert_eq!((finished.shown, finished.lines, finished.cut), (2, 4, false));
        assert_eq!(excerpt(ALL, b"").lines, 0);
        assert_eq!(excerpt(ALL, b"\n\n").lines, 2);
    }

    #[test]
    fn long_lines_are_cut_between_characters() {
        let wanted = Wanted { line_bytes: 4, ..ALL };
        let lines = ["abcd", "abcd… [1 bytes omitted]", "äa… [4 bytes omitted]"];
        let numbered = |(index, line)| format!("{:>6}\t{line}\n", index + 1);
        let expected: String = lines.iter().enumerate().map(numbered).collect();
        assert_eq!(excerpt(wanted, "abcd\r\nabcde\näaää\n".as_bytes()).text, expected);
    }

    proptest! {
        #[test]
        fn pieces_make_the_same_excerpt_as_the_whole(
            text in "[a-cä\r\n]{0,60}",
            cuts in prop::collection::vec(0usize..9, 0..20),
            (first, lines) in (1u64..6, 0u64..6),
            (line_bytes, bytes) in (0usize..6, 0usize..60),
        ) {
            let wanted = Wanted { first, lines, line_bytes, bytes };
            let mut pieces = Excerpt::new(wanted);
            let mut rest = text.as_bytes();
            for cut in cuts {
                let (piece, after) = rest.split_at(rest.len().min(cut));
                pieces.push(piece);
                rest = after;
            }
            pieces.push(rest);
            prop_assert_eq!(pieces.finish(), excerpt(wanted, text.as_bytes()));
        }

        #[test]
        fn an_excerpt_keeps_to_its_limits(
            text: Vec<u8>, lines in 0u64..6, line_bytes in 0usize..9, bytes in 0usize..60,
        ) {
            let finished = excerpt(Wanted { first: 1, lines, line_bytes, bytes }, &text);
            prop_assert!(finished.shown <= lines);
            // The last line may cross the border, with its number and the note of a cut.
            prop_assert!(finished.text.len() <= bytes + 3 * line_bytes + 50);
        }
    }
}
