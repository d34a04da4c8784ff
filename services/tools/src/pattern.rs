use std::cell::{Cell, OnceCell};

use globset::GlobBuilder;
use regex::bytes::{Regex, RegexBuilder};

use crate::command::Text;

/// The longest pattern that the contract allows, in characters.
const LONGEST: usize = 1_000;

/// A glob, read once: `*` stands for anything, also for `/` and line breaks, `?` for one byte,
/// `[a-z]` and `{a,b}` for choices, and a backslash makes the next character stand for itself.
#[derive(Debug)]
pub struct Pattern {
    /// What stands before the first wildcard.
    prefix: String,

    /// How many characters stand for themselves; choices do not count.
    pub literal: usize,

    /// It ends with a `*`, so whatever begins like a match is one.
    open: bool,

    /// How many steps one byte may take at worst, when much of the pattern fits in many ways.
    steps: u64,

    /// Absent: the prefix is all there is.
    wild: Option<Wild>,
}

#[derive(Debug)]
enum Wild {
    Anything,

    /// Compiled when it is first needed: most rules are about something else.
    Glob {
        glob: String,
        regex: OnceCell<Option<Regex>>,
    },
}

/// Why a pattern cannot be compared with a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Problem {
    /// It is no glob, or too long to be one.
    Malformed,

    /// It would take too long, with all that was compared before.
    TooMuch,
}

/// What comparing may still take, so that nobody's rules keep a server from all others: about
/// nanoseconds, by a careful estimate that is the same everywhere.
#[derive(Debug)]
pub struct Effort(Cell<u64>);

/// For one decision: a thousand patterns and a command of ten thousand characters.
const MOST: u64 = 300_000_000;

/// So many signs that fit in several ways are no more work than letters.
const FEW: usize = 8;

/// What reading a glob takes, and for each of its characters.
const COMPILING: u64 = 20_000;
const COMPILING_EACH: u64 = 200;

impl Default for Effort {
    fn default() -> Effort {
        Effort(Cell::new(MOST))
    }
}

impl Effort {
    /// Whatever was refused once stays refused.
    fn spend(&self, steps: u64) -> Result<(), Problem> {
        match self.0.get().checked_sub(steps) {
            Some(left) => {
                self.0.set(left);
                Ok(())
            }
            None => {
                self.0.set(0);
                Err(Problem::TooMuch)
            }
        }
    }
}

impl Pattern {
    pub fn new(text: &str) -> Result<Pattern, Problem> {
        if text.is_empty() || text.chars().count() > LONGEST {
            return Err(Problem::Malformed);
        }
        if text == "*" {
            let wild = Some(Wild::Anything);
            return Ok(Pattern { prefix: String::new(), literal: 0, open: true, steps: 0, wild });
        }
        let (mut prefix, mut literal, mut wild, mut depth) = (String::new(), 0, false, 0);
        let (mut open, mut anywhere, mut loose) = (false, false, 0);
        let mut rest = text.chars();
        while let Some(next) = rest.next() {
            open = next == '*' && depth == 0;
            match next {
                '*' => {
                    wild = true;
                    anywhere = true;
                }
                '?' => {
                    wild = true;
                    loose += 1;
                }
                '[' => {
                    wild = true;
                    loose += 1;
                    skip_class(&mut rest)?;
                }
                '{' => {
                    wild = true;
                    loose += 1;
                    depth += 1;
                }
                '}' => depth -= 1,
                _ => {
                    let meant =
                        if next == '\\' { rest.next().ok_or(Problem::Malformed)? } else { next };
                    literal += usize::from(depth == 0);
                    if !wild {
                        prefix.push(meant);
                    }
                }
            }
        }
        if depth != 0 {
            return Err(Problem::Malformed);
        }
        // What stands anywhere and fits in many ways is followed in all of them at once.
        let steps = if anywhere && loose > FEW { 10 * text.len() as u64 } else { 2 };
        let wild = wild.then(|| Wild::Glob { glob: text.to_owned(), regex: OnceCell::new() });
        Ok(Pattern { prefix, literal, open, steps, wild })
    }

    /// Whether it can be compared with anything at all. Most that cannot are noticed when they
    /// are read, and the rest when they are first used.
    pub fn check(&self) -> Result<(), Problem> {
        match &self.wild {
            None | Some(Wild::Anything) => Ok(()),
            Some(Wild::Glob { glob, .. }) => compile(glob).map(|_| ()),
        }
    }

    /// It matches one text and no other.
    pub fn is_exact(&self) -> bool {
        self.wild.is_none()
    }

    pub fn is_anything(&self) -> bool {
        matches!(self.wild, Some(Wild::Anything))
    }

    pub fn matches(&self, text: &str, effort: &Effort) -> Result<bool, Problem> {
        let (glob, regex) = match &self.wild {
            None => return Ok(text == self.prefix),
            Some(Wild::Anything) => return Ok(true),
            Some(Wild::Glob { glob, regex }) => (glob, regex),
        };
        if !text.starts_with(&self.prefix) {
            return Ok(false);
        }
        if regex.get().is_none() {
            effort.spend(COMPILING + COMPILING_EACH * glob.len() as u64)?;
        }
        effort.spend(self.steps * text.len() as u64)?;
        let regex = regex.get_or_init(|| compile(glob).ok()).as_ref().ok_or(Problem::Malformed)?;
        Ok(regex.is_match(text.as_bytes()))
    }

    /// It matches whatever the shell may make of a text.
    pub fn covers(&self, text: &Text, effort: &Effort) -> Result<bool, Problem> {
        match text.certain == text.text.len() {
            true => self.matches(&text.text, effort),
            false => Ok(self.open && self.matches(&text.text[..text.certain], effort)?),
        }
    }

    /// It may match what the shell makes of a text. Of what is filled in it counts only what
    /// stands before it.
    pub fn touches(&self, text: &Text, effort: &Effort) -> Result<bool, Problem> {
        let certain = &text.text[..text.certain];
        match text.certain == text.text.len() {
            true => self.matches(certain, effort),
            false => Ok(self.prefix.starts_with(certain) || certain.starts_with(&self.prefix)),
        }
    }
}

/// `globset` compiles too, but panics over what is nested too deeply.
fn compile(glob: &str) -> Result<Regex, Problem> {
    let glob = GlobBuilder::new(glob)
        .literal_separator(false)
        .backslash_escape(true)
        .build()
        .map_err(|_| Problem::Malformed)?;
    RegexBuilder::new(glob.regex())
        .dot_matches_new_line(true)
        .build()
        .map_err(|_| Problem::Malformed)
}

/// Goes past a class whose `[` has been read. A `]` at its beginning is one of its characters.
fn skip_class(rest: &mut std::str::Chars<'_>) -> Result<(), Problem> {
    let mut first = rest.next();
    if matches!(first, Some('!' | '^')) {
        first = rest.next();
    }
    match first.is_some() && rest.any(|next| next == ']') {
        true => Ok(()),
        false => Err(Problem::Malformed),
    }
}

/// The pattern of exactly this text: the escaping that the contract describes.
#[cfg(any(test, feature = "fuzz"))]
pub fn literal(text: &str) -> String {
    let mut pattern = String::new();
    for next in text.chars() {
        if matches!(next, '*' | '?' | '[' | ']' | '{' | '}' | '\\' | '!') {
            pattern.push('\\');
        }
        pattern.push(next);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn patterns_match_whole_texts() {
        let cases = [
            ("*", "", "anything\nat/all"),
            ("git *", "git log", "git log\n--all"),
            ("git *", "git", "agit log"),
            ("*.rs", "src/lib.rs", "lib.rss"),
            ("git {log,diff}*", "git diff HEAD", "git push"),
            ("v[0-9]?", "v1x", "vx1"),
            ("[!a]x", "bx", "ax"),
            ("[]]x", "]x", "[x"),
            (r"\*", "*", "x"),
            (r"a\\b", r"a\b", "ab"),
            ("a,b", "a,b", "a"),
            ("rm -rf /**", "rm -rf /", "rm -rf x"),
        ];
        let mut lines = String::new();
        for (text, one, other) in cases {
            let pattern = Pattern::new(text).unwrap();
            let found = [one, other].map(|text| pattern.matches(text, &Effort::default()).unwrap());
            let (literal, exact) = (pattern.literal, pattern.is_exact());
            lines += &format!("{text}: {one:?} {}, {other:?} {}; ", found[0], found[1]);
            lines += &format!("literal {literal}, exact {exact}\n");
        }
        expect![[r#"
            *: "" true, "anything\nat/all" true; literal 0, exact false
            git *: "git log" true, "git log\n--all" true; literal 4, exact false
            git *: "git" false, "agit log" false; literal 4, exact false
            *.rs: "src/lib.rs" true, "lib.rss" false; literal 3, exact false
            git {log,diff}*: "git diff HEAD" true, "git push" false; literal 4, exact false
            v[0-9]?: "v1x" true, "vx1" false; literal 1, exact false
            [!a]x: "bx" true, "ax" false; literal 1, exact false
            []]x: "]x" true, "[x" false; literal 1, exact false
            \*: "*" true, "x" false; literal 1, exact true
            a\\b: "a\\b" true, "ab" false; literal 3, exact true
            a,b: "a,b" true, "a" false; literal 3, exact true
            rm -rf /**: "rm -rf /" true, "rm -rf x" false; literal 8, exact false
        "#]]
        .assert_eq(&lines);
    }

    #[test]
    fn what_is_no_pattern_is_said_so() {
        let deep = "{".repeat(400) + "a" + &"}".repeat(400);
        let long = "x".repeat(1_001);
        for text in ["", "[", "[!", "[]", "{", "}", "{a", "a\\", "[z-a]", &deep, &long] {
            let found =
                Pattern::new(text).and_then(|pattern| pattern.matches("a", &Effort::default()));
            assert!(found.is_err(), "{text}");
            assert!(Pattern::new(text).and_then(|pattern| pattern.check()).is_err(), "{text}");
        }
    }

    #[test]
    fn what_takes_long_is_refused_before_it_does() {
        let effort = Effort::default();
        let text = "ab".repeat(50_000);
        let usual = Pattern::new("*.rs").unwrap();
        assert_eq!(usual.matches(&text, &effort), Ok(false));
        let slow = Pattern::new(&format!("*a{}", "?".repeat(490))).unwrap();
        assert_eq!(slow.matches(&text, &effort), Err(Problem::TooMuch));
        assert_eq!(slow.matches("b", &Effort::default()), Ok(false));
        // What is left is for nobody, so that it does not matter what is compared first.
        assert_eq!(usual.matches("a.rs", &effort), Err(Problem::TooMuch));
    }

    proptest! {
        #[test]
        fn an_escaped_text_matches_itself_only(text in ".{1,20}", other in ".{0,20}") {
            let pattern = Pattern::new(&literal(&text)).unwrap();
            prop_assert!(pattern.is_exact());
            prop_assert!(pattern.matches(&text, &Effort::default()).unwrap());
            prop_assert_eq!(pattern.matches(&other, &Effort::default()).unwrap(), text == other);
            prop_assert!(compile(&literal(&text)).unwrap().is_match(text.as_bytes()));
        }

        #[test]
        fn whatever_is_written_is_a_pattern_or_none(text in r"[ab*?\[\]{},!\\/-]{1,12}") {
            let ours = Pattern::new(&text).and_then(|pattern| pattern.matches("ab/", &Effort::default()));
            let theirs = compile(&text).map(|regex| regex.is_match(b"ab/"));
            if let (Ok(ours), Ok(theirs)) = (&ours, &theirs) {
                prop_assert_eq!(ours, theirs);
            }
            // What we cannot read, nobody can.
            prop_assert!(ours.is_ok() || theirs.is_err());
        }
    }
}
