//! Bytes that programs print, made into text that JSON and Postgres can hold.

use std::borrow::Cow;

/// Stands for what is no text: broken UTF-8, and NUL, which Postgres refuses.
const REPLACEMENT: char = char::REPLACEMENT_CHARACTER;

/// The whole of some output as text.
pub fn clean(bytes: &[u8]) -> String {
    without_nul(String::from_utf8_lossy(bytes))
}

fn without_nul(text: Cow<'_, str>) -> String {
    match text.contains('\0') {
        true => text.replace('\0', REPLACEMENT.encode_utf8(&mut [0; 4])),
        false => text.into_owned(),
    }
}

/// What a program printed, for people to look at. A terminal obeys control characters: it could
/// be renamed, emptied or made to show what was never printed. So each of them is shown as a
/// sign for itself, but those that only lay out text.
pub fn harmless(bytes: &[u8]) -> String {
    let text = clean(bytes);
    match text.contains(obeyed) {
        true => text.chars().map(|next| if obeyed(next) { sign(next) } else { next }).collect(),
        false => text,
    }
}

fn obeyed(character: char) -> bool {
    character.is_control() && !matches!(character, '\n' | '\r' | '\t')
}

/// The picture of a control character; of those that have none, what stands for no text.
fn sign(control: char) -> char {
    const PICTURES: u32 = 0x2400;
    match control {
        '\u{7f}' => '\u{2421}',
        '\0'..' ' => char::from_u32(PICTURES + u32::from(control)).unwrap_or(REPLACEMENT),
        _ => REPLACEMENT,
    }
}

/// Makes text of output that arrives in pieces, which need not end where characters do.
#[derive(Debug, Default)]
pub struct Decoder {
    /// The beginning of a character whose end has not arrived.
    pending: Vec<u8>,
}

impl Decoder {
    /// The text that is complete by now.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let complete = self.pending.len() - unfinished(&self.pending);
        let rest = self.pending.split_off(complete);
        harmless(&std::mem::replace(&mut self.pending, rest))
    }

    /// What is left when nothing more arrives.
    pub fn finish(self) -> String {
        harmless(&self.pending)
    }
}

/// The beginning of a text, with a sign where the rest is missing.
pub fn shorten(text: &str, characters: usize) -> String {
    match text.char_indices().nth(characters) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// How many bytes at the end may be the beginning of a character.
pub fn unfinished(bytes: &[u8]) -> usize {
    match bytes.utf8_chunks().last() {
        Some(chunk) => {
            let invalid = chunk.invalid();
            let could_go_on =
                std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
            if could_go_on { invalid.len() } else { 0 }
        }
        None => 0,
    }
}

/// How many bytes at the start are the end of a character that began before them.
pub fn left_over(bytes: &[u8]) -> usize {
    bytes.iter().take(3).take_while(|byte| **byte & 0b1100_0000 == 0b1000_0000).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_no_text_is_replaced() {
        assert_eq!(clean(b"a\0b\xffc"), "a\u{fffd}b\u{fffd}c");
    }

    #[test]
    fn what_a_terminal_obeys_is_shown_as_a_sign() {
        let printed = "a\tb\r\n\x1b]0;title\x07\x1b[2J\x08\x7f\u{9b}31m".as_bytes();
        assert_eq!(harmless(printed), "a\tb\r\n␛]0;title␇␛[2J␈␡\u{fffd}31m");
        assert_eq!(harmless("plain ü\n".as_bytes()), "plain ü\n");
    }

    #[test]
    fn a_character_in_two_pieces_is_one() {
        let mut decoder = Decoder::default();
        assert_eq!(decoder.push("h\u{fc}".as_bytes().split_last().unwrap().1), "h");
        assert_eq!(decoder.push(b"\xbc!"), "\u{fc}!");
        assert_eq!(decoder.push(b"\xf0\x9f"), "");
        assert_eq!(decoder.finish(), "\u{fffd}");
    }

    proptest! {
        #[test]
        fn pieces_make_the_same_text_as_the_whole(
            bytes: Vec<u8>, text: String, cuts in prop::collection::vec(1usize..5, 0..64),
        ) {
            for bytes in [bytes, text.into_bytes()] {
                let mut decoder = Decoder::default();
                let mut decoded = String::new();
                let mut rest = &bytes[..];
                for cut in &cuts {
                    let (piece, after) = rest.split_at(rest.len().min(*cut));
                    decoded += &decoder.push(piece);
                    rest = after;
                }
                decoded += &decoder.push(rest);
                decoded += &decoder.finish();
                prop_assert_eq!(decoded, harmless(&bytes));
            }
        }
    }
}
