use std::{
    io,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use grep_searcher::{Searcher, Sink, SinkContext, SinkFinish, SinkMatch};

use super::Mode;
use crate::text::unfinished;

/// How much text a model gets to see.
const MOST_BYTES: u64 = 64 * 1024;

/// A longer line is cut, in bytes.
const LONGEST_LINE: usize = 500;

/// What all threads together may still find.
pub struct Budget {
    /// Lines, or files when no lines are asked for.
    places: AtomicU64,
    bytes: AtomicU64,
    exceeded: AtomicBool,
}

impl Budget {
    pub fn new(mode: Mode, limit: u64) -> Budget {
        let bytes = if mode == Mode::Content { MOST_BYTES } else { u64::MAX };
        let (places, bytes) = (AtomicU64::new(limit), AtomicU64::new(bytes));
        Budget { places, bytes, exceeded: AtomicBool::new(false) }
    }

    /// Something was found that there was no room for.
    pub fn is_exceeded(&self) -> bool {
        self.exceeded.load(Ordering::Relaxed)
    }

    fn take_place(&self) -> bool {
        self.take(&self.places, 1)
    }

    fn take_bytes(&self, bytes: usize) -> bool {
        self.take(&self.bytes, bytes as u64)
    }

    fn take(&self, left: &AtomicU64, amount: u64) -> bool {
        let taken = left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(amount));
        if taken.is_err() {
            self.exceeded.store(true, Ordering::Relaxed);
        }
        taken.is_ok()
    }
}

/// Collects what is found in one file.
pub struct Lines<'a> {
    mode: Mode,
    budget: &'a Budget,
    matches: u64,
    text: String,
    places: u64,
    binary: bool,
}

impl<'a> Lines<'a> {
    pub fn new(mode: Mode, budget: &'a Budget) -> Lines<'a> {
        Lines { mode, budget, matches: 0, text: String::new(), places: 0, binary: false }
    }

    /// How many lines matched, and the lines; nothing if none did or the file is no text.
    pub fn finish(self) -> Option<(u64, String)> {
        match self.binary {
            true => {
                self.give_up();
                None
            }
            false => (self.matches > 0).then_some((self.matches, self.text)),
        }
    }

    /// Leaves to others what it took and does not use.
    pub fn give_up(self) {
        self.budget.places.fetch_add(self.places, Ordering::Relaxed);
        self.budget.bytes.fetch_add(self.text.len() as u64, Ordering::Relaxed);
    }

    fn take_place(&mut self) -> bool {
        let taken = self.budget.take_place();
        self.places += u64::from(taken);
        taken
    }

    /// Adds a line; false if there is no room for it.
    fn add(&mut self, number: Option<u64>, mark: char, line: &[u8]) -> bool {
        let before = self.text.len();
        if let Some(number) = number {
            push_number(&mut self.text, number);
        }
        self.text.push(mark);
        push_line(&mut self.text, line);
        let fits = self.budget.take_bytes(self.text.len() - before);
        if !fits {
            self.text.truncate(before);
        }
        fits
    }
}

impl Sink for Lines<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> io::Result<bool> {
        let goes_on = match self.mode {
            Mode::Content => self.take_place() && self.add(found.line_number(), ':', found.bytes()),
            Mode::Files => {
                self.matches = u64::from(self.take_place());
                return Ok(false);
            }
            Mode::Count => self.matches > 0 || self.take_place(),
        };
        self.matches += u64::from(goes_on);
        Ok(goes_on)
    }

    fn context(&mut self, _: &Searcher, context: &SinkContext<'_>) -> io::Result<bool> {
        Ok(self.add(context.line_number(), '-', context.bytes()))
    }

    fn context_break(&mut self, _: &Searcher) -> io::Result<bool> {
        let fits = self.budget.take_bytes(3);
        if fits {
            self.text.push_str("--\n");
        }
        Ok(fits)
    }

    fn finish(&mut self, _: &Searcher, end: &SinkFinish) -> io::Result<()> {
        self.binary = end.binary_byte_offset().is_some();
        Ok(())
    }
}

fn push_number(text: &mut String, number: u64) {
    use std::fmt::Write as _;
    // Writing to a string cannot fail.
    let _ = write!(text, "{number}");
}

fn push_line(text: &mut String, line: &[u8]) {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let short = &line[..line.len().min(LONGEST_LINE)];
    let cut = short.len() < line.len();
    let short = if cut { &short[..short.len() - unfinished(short)] } else { short };
    text.push_str(&String::from_utf8_lossy(short));
    text.push_str(if cut { "…\n" } else { "\n" });
}
