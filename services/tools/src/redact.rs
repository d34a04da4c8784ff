//! Secrets of the host that must not be seen in what tools print.

use std::{borrow::Cow, fs, path::Path};

use aho_corasick::{AhoCorasick, MatchKind};
use anyhow::{Context as _, ensure};

/// What stands where a secret was.
const REPLACEMENT: &[u8] = b"[redacted]";

/// Shorter ones would be found in what is no secret.
const SHORTEST: usize = 8;
const MOST: usize = 1_000;

/// The secrets that are known.
#[derive(Debug, Default, Clone)]
pub struct Redactor {
    secrets: Vec<Vec<u8>>,
    finder: Option<AhoCorasick>,
}

impl Redactor {
    /// Reads a file with one secret per line.
    pub fn read(path: &Path) -> anyhow::Result<Redactor> {
        let text = fs::read_to_string(path)
            .with_context(|| format!("cannot read REDACT_FILE {}", path.display()))?;
        let secrets: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        Redactor::new(&secrets)
    }

    fn new(secrets: &[&str]) -> anyhow::Result<Redactor> {
        ensure!(secrets.len() <= MOST, "REDACT_FILE has more than {MOST} secrets");
        ensure!(
            secrets.iter().all(|secret| secret.len() >= SHORTEST),
            "REDACT_FILE has a secret of less than {SHORTEST} characters"
        );
        let finder = match secrets {
            [] => None,
            secrets => {
                Some(AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(secrets)?)
            }
        };
        let secrets = secrets.iter().map(|secret| secret.as_bytes().to_vec()).collect();
        Ok(Redactor { secrets, finder })
    }

    /// These secrets and more. Those that are too short to be told from other text stay visible.
    pub fn with(&self, more: &[&str]) -> Redactor {
        let known = self.secrets.iter().filter_map(|secret| std::str::from_utf8(secret).ok());
        let more = more.iter().copied().filter(|secret| secret.len() >= SHORTEST);
        let secrets: Vec<&str> = known.chain(more).collect();
        // It fails for what is larger than any machine's memory.
        Redactor::new(&secrets[..secrets.len().min(MOST)]).unwrap_or_default()
    }

    /// A text in which no secret is seen.
    pub fn text(&self, text: &str) -> String {
        let mut stream = self.stream();
        let mut shown = stream.push(text.as_bytes()).into_owned();
        shown.extend(stream.finish());
        String::from_utf8_lossy(&shown).into_owned()
    }

    /// A stream in which no secret is seen.
    pub fn stream(&self) -> Redacted<'_> {
        Redacted { redactor: self, held: Vec::new() }
    }

    /// How much of the end of a text could be the beginning of a secret.
    fn begun(&self, text: &[u8]) -> usize {
        let begun = |secret: &Vec<u8>| {
            let most = text.len().min(secret.len() - 1);
            (1..=most).rev().find(|length| text.ends_with(&secret[..*length])).unwrap_or(0)
        };
        self.secrets.iter().map(begun).max().unwrap_or(0)
    }
}

/// Bytes that arrive in pieces, which need not end where secrets do.
#[derive(Debug)]
pub struct Redacted<'a> {
    redactor: &'a Redactor,
    /// What may be the beginning of a secret.
    held: Vec<u8>,
}

impl Redacted<'_> {
    /// What can be shown by now.
    pub fn push<'b>(&mut self, bytes: &'b [u8]) -> Cow<'b, [u8]> {
        let Some(finder) = &self.redactor.finder else { return Cow::Borrowed(bytes) };
        self.held.extend_from_slice(bytes);
        let mut shown = Vec::with_capacity(self.held.len());
        let (mut end, mut sure) = (0, self.sure(0));
        for found in finder.find_iter(&self.held) {
            // What may become a secret that begins earlier, or one that is longer, waits for it.
            if found.start() >= sure {
                break;
            }
            shown.extend_from_slice(&self.held[end..found.start()]);
            shown.extend_from_slice(REPLACEMENT);
            end = found.end();
            sure = self.sure(end);
        }
        shown.extend_from_slice(&self.held[end..sure]);
        self.held.drain(..sure);
        Cow::Owned(shown)
    }

    /// Up to where no secret can begin that is not there as a whole, after what is dealt with.
    fn sure(&self, dealt_with: usize) -> usize {
        self.held.len() - self.redactor.begun(&self.held[dealt_with..])
    }

    /// What is left when nothing more arrives.
    pub fn finish(self) -> Vec<u8> {
        match &self.redactor.finder {
            Some(finder) => finder
                .replace_all_bytes(&self.held, &vec![REPLACEMENT; self.redactor.secrets.len()]),
            None => self.held,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn redacted(secrets: &[&str], pieces: &[&[u8]]) -> Vec<u8> {
        let redactor = Redactor::new(secrets).unwrap();
        let mut stream = redactor.stream();
        let mut shown: Vec<u8> =
            pieces.iter().flat_map(|piece| stream.push(piece).into_owned()).collect();
        shown.extend(stream.finish());
        shown
    }

    #[test]
    fn a_secret_is_found_however_it_arrives() {
        let pieces: [&[u8]; 4] = [b"key=corr", b"ect-h", b"orse", b"-battery!\n"];
        assert_eq!(redacted(&["correct-horse"], &pieces), b"key=[redacted]-battery!\n");
        assert_eq!(redacted(&["correct-horse"], &[b"correct-hors"]), b"correct-hors");
    }

    #[test]
    fn what_cannot_become_a_secret_is_shown_at_once() {
        let redactor = Redactor::new(&["correct-horse"]).unwrap();
        let mut stream = redactor.stream();
        assert_eq!(&*stream.push(b"Password: "), b"Password: ");
        assert_eq!(&*stream.push(b"corr"), b"");
        assert_eq!(&*stream.push(b"upt"), b"corrupt");
    }

    #[test]
    fn of_secrets_that_begin_alike_the_longer_counts() {
        let secrets = ["password", "password-of-the-king"];
        assert_eq!(redacted(&secrets, &[b"password", b"-of-the-king."]), b"[redacted].");
        assert_eq!(
            redacted(&secrets, &[b"password", b"-of-the-queen"]),
            b"[redacted]-of-the-queen"
        );
        assert_eq!(redacted(&secrets, &[b"password"]), b"[redacted]");
    }

    #[test]
    fn a_secret_that_is_too_short_is_refused() {
        assert!(Redactor::new(&["1234567"]).is_err());
    }

    proptest! {
        #[test]
        fn pieces_show_what_the_whole_shows(
            text in "(abcabcab|abcabcabd|abc|[abcd]){0,20}",
            cuts in prop::collection::vec(1usize..9, 0..40),
        ) {
            let secrets = ["abcabcab", "abcabcabdd", "bcabcabca"];
            let mut pieces: Vec<&[u8]> = Vec::new();
            let mut rest = text.as_bytes();
            for cut in cuts {
                let (piece, after) = rest.split_at(rest.len().min(cut));
                pieces.push(piece);
                rest = after;
            }
            pieces.push(rest);
            let whole = redacted(&secrets, &[text.as_bytes()]);
            let shown = redacted(&secrets, &pieces);
            prop_assert_eq!(&shown, &whole);
            prop_assert!(!String::from_utf8(shown).unwrap().contains("abcabcab"));
        }
    }
}
