use std::cell::OnceCell;

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

/// The pattern is no glob, or too long to be one.
#[derive(Debug)]
pub struct Malformed;

impl Pattern {
    pub fn new(text: &str) -> Result<Pattern, Malformed> {
        if text.is_empty() || text.chars().count() > LONGEST {
            return Err(Malformed);
        }
        if text == "*" {
            let wild = Some(Wild::Anything);
            return Ok(Pattern { prefix: String::new(), literal: 0, open: true, wild });
        }
        let (mut prefix, mut literal, mut wild, mut depth) = (String::new(), 0, false, 0);
        let mut open = false;
        let mut rest = text.chars();
        while let Some(next) = rest.next() {
            open = next == '*' && depth == 0;
            match next {
                '*' | '?' => wild = true,
                '[' => {
                    wild = true;
                    skip_class(&mut rest)?;
                }
                '{' => {
                    wild = true;
                    depth += 1;
                }
                '}' => depth -= 1,
                _ => {
                    let meant = if next == '\\' { rest.next().ok_or(Malformed)? } else { next };
                    literal += usize::from(depth == 0);
                    if !wild {
                        prefix.push(meant);
                    }
                }
            }
        }
        if depth != 0 {
            return Err(Malformed);
        }
        let wild = wild.then(|| Wild::Glob { glob: text.to_owned(), regex: OnceCell::new() });
        Ok(Pattern { prefix, literal, open, wild })
    }

    /// Whether it can be compared with anything at all. Most that cannot are noticed when they
    /// are read, and the rest when they are first used.
    pub fn check(&self) -> Result<(), Malformed> {
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

    pub fn matches(&self, text: &str) -> Result<bool, Malformed> {
        let (glob, regex) = match &self.wild {
            None => return Ok(text == self.prefix),
            Some(Wild::Anything) => return Ok(true),
            Some(Wild::Glob { glob, regex }) => (glob, regex),
        };
        if !text.starts_with(&self.prefix) {
            return Ok(false);
        }
        let regex = regex.get_or_init(|| compile(glob).ok()).as_ref().ok_or(Malformed)?;
        Ok(regex.is_match(text.as_bytes()))
    }

    /// It matches whatever the shell may make of a text.
    pub fn covers(&self, text: &Text) -> Result<bool, Malformed> {
        match text.certain == text.text.len() {
            true => self.matches(&text.text),
            false => Ok(self.open && self.matches(&text.text[..text.certain])?),
        }
    }

    /// It may match what the shell makes of a text. Of what is filled in it counts only what
    /// stands before it.
    pub fn touches(&self, text: &Text) -> Result<bool, Malformed> {
        let certain = &text.text[..text.certain];
        match text.certain == text.text.len() {
            true => self.matches(certain),
            false => Ok(self.prefix.starts_with(certain) || certain.starts_with(&self.prefix)),
        }
    }
}

/// `globset` compiles too, but panics over what is nested too deeply.
fn compile(glob: &str) -> Result<Regex, Malformed> {
    let glob = GlobBuilder::new(glob)
        .literal_separator(false)
        .backslash_escape(true)
        .build()
        .map_err(|_| Malformed)?;
    RegexBuilder::new(glob.regex()).dot_matches_new_line(true).build().map_err(|_| Malformed)
}

/// Goes past a class whose `[` has been read. A `]` at its beginning is one of its characters.
fn skip_class(rest: &mut std::str::Chars<'_>) -> Result<(), Malformed> {
    let mut first = rest.next();
    if matches!(first, Some('!' | '^')) {
        first = rest.next();
    }
    match first.is_some() && rest.any(|next| next == ']') {
        true => Ok(()),
        false => Err(Malformed),
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
            let found = [one, other].map(|text| pattern.matches(text).unwrap());
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
            let found = Pattern::new(text).and_then(|pattern| pattern.matches("a"));
            assert!(found.is_err(), "{text}");
            assert!(Pattern::new(text).and_then(|pattern| pattern.check()).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn an_escaped_text_matches_itself_only(text in ".{1,20}", other in ".{0,20}") {
            let pattern = Pattern::new(&literal(&text)).unwrap();
            prop_assert!(pattern.is_exact());
            prop_assert!(pattern.matches(&text).unwrap());
            prop_assert_eq!(pattern.matches(&other).unwrap(), text == other);
            prop_assert!(compile(&literal(&text)).unwrap().is_match(text.as_bytes()));
        }

        #[test]
        fn whatever_is_written_is_a_pattern_or_none(text in r"[ab*?\[\]{},!\\/-]{1,12}") {
            let ours = Pattern::new(&text).and_then(|pattern| pattern.matches("ab/"));
            let theirs = compile(&text).map(|regex| regex.is_match(b"ab/"));
            if let (Ok(ours), Ok(theirs)) = (&ours, &theirs) {
                prop_assert_eq!(ours, theirs);
            }
            // What we cannot read, nobody can.
            prop_assert!(ours.is_ok() || theirs.is_err());
        }
    }
}
