//! Globs once more, as simple as they can be: all positions in the text at which a match can
//! be after each piece.

use std::collections::BTreeSet;

pub struct Glob(Vec<Piece>);

enum Piece {
    Byte(u8),
    Any,
    Star,
    Class { not: bool, ranges: Vec<(u8, u8)> },
    Choice(Vec<Glob>),
}

impl Glob {
    /// What is no glob is none, and neither is one that this matcher knows nothing about:
    /// classes of more than bytes.
    pub fn parse(text: &str) -> Option<Glob> {
        let mut rest = text.as_bytes();
        let glob = Glob::sequence(&mut rest, false)?;
        rest.is_empty().then_some(glob)
    }

    fn sequence(rest: &mut &[u8], inside: bool) -> Option<Glob> {
        let mut pieces = Vec::new();
        while let [next, after @ ..] = *rest {
            match next {
                b',' | b'}' if inside => break,
                b'}' => return None,
                _ => *rest = after,
            }
            pieces.push(match next {
                b'*' => Piece::Star,
                b'?' => Piece::Any,
                b'[' => Glob::class(rest)?,
                b'{' => Glob::choice(rest)?,
                b'\\' => {
                    let (meant, after) = rest.split_first()?;
                    *rest = after;
                    Piece::Byte(*meant)
                }
                byte => Piece::Byte(*byte),
            });
        }
        Some(Glob(pieces))
    }

    fn class(rest: &mut &[u8]) -> Option<Piece> {
        let not = matches!(rest.first(), Some(b'!' | b'^'));
        if not {
            *rest = &rest[1..];
        }
        let end = 1 + rest.get(1..)?.iter().position(|byte| *byte == b']')?;
        let (inside, after) = rest.split_at(end);
        *rest = &after[1..];
        let mut ranges = Vec::new();
        let mut inside = inside;
        while let [first, after @ ..] = inside {
            inside = after;
            match inside {
                [b'-', last, after @ ..] => {
                    ranges.push((*first, *last));
                    inside = after;
                }
                _ => ranges.push((*first, *first)),
            }
        }
        let plain = ranges.iter().all(|(first, last)| first <= last && last.is_ascii());
        plain.then_some(Piece::Class { not, ranges })
    }

    fn choice(rest: &mut &[u8]) -> Option<Piece> {
        let mut choices = Vec::new();
        loop {
            choices.push(Glob::sequence(rest, true)?);
            let (end, after) = rest.split_first()?;
            *rest = after;
            if *end == b'}' {
                // A choice of nothing is no choice, unless there is no other.
                choices.retain(|choice| !choice.0.is_empty());
                return Some(Piece::Choice(choices));
            }
        }
    }

    pub fn matches(&self, text: &[u8]) -> bool {
        self.ends(text, BTreeSet::from([0])).contains(&text.len())
    }

    fn ends(&self, text: &[u8], starts: BTreeSet<usize>) -> BTreeSet<usize> {
        self.0.iter().fold(starts, |starts, piece| {
            let step = |fits: &dyn Fn(u8) -> bool| {
                let fitting = starts.iter().filter(|at| text.get(**at).is_some_and(|b| fits(*b)));
                fitting.map(|at| at + 1).collect()
            };
            match piece {
                Piece::Byte(byte) => step(&|next| next == *byte),
                Piece::Any => step(&|_| true),
                Piece::Class { not, ranges } => step(&|next| {
                    ranges.iter().any(|(first, last)| (*first..=*last).contains(&next)) != *not
                }),
                Piece::Star => match starts.first() {
                    Some(first) => (*first..=text.len()).collect(),
                    None => starts,
                },
                Piece::Choice(choices) if choices.is_empty() => starts,
                Piece::Choice(choices) => {
                    choices.iter().flat_map(|choice| choice.ends(text, starts.clone())).collect()
                }
            }
        })
    }
}
