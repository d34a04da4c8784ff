//! The replacement of a piece of text by another. Touches no files.

use std::borrow::Cow;

/// A change to a text.
#[derive(Debug, Clone, Copy)]
pub struct Change<'a> {
    pub old: &'a str,
    pub new: &'a str,

    /// Wherever it occurs. Otherwise it must occur once.
    pub all: bool,
}

/// Why a change cannot be made. Nothing was changed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("old_text and new_text are the same, so there is nothing to change")]
    Nothing,

    #[error("old_text is not in the file; read it again, and copy the text exactly")]
    Absent,

    #[error(
        "old_text is in the file {0} times; add lines around it until it is there once, or set \
         replace_all"
    )]
    Ambiguous(usize),
}

impl Change<'_> {
    /// The text after the change, and how many places are different.
    ///
    /// In a text all of whose lines end in CRLF, so do those of the change, however they are
    /// written: models see lines, and not what they end in.
    pub fn apply(&self, text: &str) -> Result<(String, usize), Refusal> {
        let (old, new) = match ends_in_crlf(text) {
            true => (with_crlf(self.old), with_crlf(self.new)),
            false => (self.old.into(), self.new.into()),
        };
        if old == new || old.is_empty() {
            return Err(Refusal::Nothing);
        }
        match occurrences(text, &old) {
            0 => Err(Refusal::Absent),
            1 => Ok((text.replacen(&*old, &new, 1), 1)),
            _ if self.all => Ok((text.replace(&*old, &new), text.matches(&*old).count())),
            several => Err(Refusal::Ambiguous(several)),
        }
    }
}

/// How often a piece occurs, also where occurrences overlap: which of those is meant is just as
/// unclear.
fn occurrences(text: &str, piece: &str) -> usize {
    let step = piece.chars().next().map_or(1, char::len_utf8);
    let (mut count, mut from) = (0, 0);
    while let Some(found) = text[from..].find(piece) {
        count += 1;
        from += found + step;
    }
    count
}

fn ends_in_crlf(text: &str) -> bool {
    text.contains("\r\n") && text.matches('\n').count() == text.matches("\r\n").count()
}

fn with_crlf(text: &str) -> Cow<'_, str> {
    match text.contains('\n') {
        true => text.replace("\r\n", "\n").replace('\n', "\r\n").into(),
        false => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn once<'a>(old: &'a str, new: &'a str) -> Change<'a> {
        Change { old, new, all: false }
    }

    #[test]
    fn a_change_is_made_where_it_fits_once() {
        assert_eq!(once("b", "x").apply("abc"), Ok(("axc".into(), 1)));
        assert_eq!(once("b", "").apply("abc"), Ok(("ac".into(), 1)));
        assert_eq!(once("d", "x").apply("abc"), Err(Refusal::Absent));
        assert_eq!(once("b", "b").apply("abc"), Err(Refusal::Nothing));
        assert_eq!(once("a", "x").apply("aba"), Err(Refusal::Ambiguous(2)));
        assert_eq!(once("aa", "x").apply("aaa"), Err(Refusal::Ambiguous(2)));
        assert_eq!(Change { all: true, ..once("a", "x") }.apply("aba"), Ok(("xbx".into(), 2)));
    }

    #[test]
    fn line_endings_are_kept() {
        let (text, _) = once("b\nc", "x\ny").apply("a\r\nb\r\nc\r\n").unwrap();
        assert_eq!(text, "a\r\nx\r\ny\r\n");
        let (text, _) = once("b", "x\r\ny").apply("a\r\nb\r\n").unwrap();
        assert_eq!(text, "a\r\nx\r\ny\r\n");
        // Who mixes them means what they write.
        assert_eq!(once("b\nc", "x").apply("a\nb\r\nc"), Err(Refusal::Absent));
        assert_eq!(once("a\nb", "x\ny").apply("a\nb\r\nc"), Ok(("x\ny\r\nc".into(), 1)));
    }

    proptest! {
        #[test]
        fn a_change_and_its_reverse_give_the_original(
            before in "[ab\n]{0,8}", old in "[abc\n]{1,4}", after in "[ab\n]{0,8}",
            new in "[bcd\n]{1,4}",
        ) {
            let original = format!("{before}{old}{after}");
            if let Ok((changed, 1)) = once(&old, &new).apply(&original)
                && let Ok((reversed, 1)) = once(&new, &old).apply(&changed)
            {
                prop_assert_eq!(reversed, original);
            }
        }

        #[test]
        fn a_change_in_crlf_and_its_reverse_give_the_original(
            before in "[ab\n]{0,8}", old in "[abc\n]{1,4}", after in "[ab\n]{0,8}",
            new in "[bcd\n]{1,4}",
        ) {
            let original = with_crlf(&format!("{before}\n{old}{after}\n")).into_owned();
            if let Ok((changed, 1)) = once(&old, &new).apply(&original)
                && let Ok((reversed, 1)) = once(&new, &old).apply(&changed)
            {
                prop_assert!(ends_in_crlf(&changed));
                prop_assert_eq!(reversed, original);
            }
        }

        #[test]
        fn only_what_matches_changes(
            text in "[ab\r\n]{0,20}", old in "[ab]{1,3}", new in "[cd]{0,3}", all: bool,
        ) {
            match (Change { old: &old, new: &new, all }).apply(&text) {
                Ok((changed, places)) => {
                    let grown = changed.len() + places * old.len();
                    prop_assert_eq!(grown, text.len() + places * new.len());
                    prop_assert!(all || places == 1);
                }
                Err(Refusal::Absent) => prop_assert!(!text.contains(&old)),
                Err(Refusal::Ambiguous(count)) => prop_assert!(!all && count > 1),
                Err(Refusal::Nothing) => prop_assert_eq!(old, new),
            }
        }
    }
}
