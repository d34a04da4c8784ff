use std::collections::VecDeque;

use crate::text::{harmless, left_over, unfinished};

/// As much of a long output as is worth a model's attention: how it began and how it ended.
#[derive(Debug)]
pub struct Output {
    half: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total: u64,
}

impl Output {
    /// Keeps at most `budget` bytes, however much arrives.
    pub fn new(budget: usize) -> Output {
        Output { half: budget / 2, head: Vec::new(), tail: VecDeque::new(), total: 0 }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let (head, rest) = bytes.split_at(bytes.len().min(self.half - self.head.len()));
        self.head.extend_from_slice(head);
        let rest = &rest[rest.len().saturating_sub(self.half)..];
        let excess = (self.tail.len() + rest.len()).saturating_sub(self.half);
        self.tail.drain(..excess);
        self.tail.extend(rest);
    }

    /// How much arrived.
    pub fn total(&self) -> u64 {
        self.total
    }

    pub fn kept(&self) -> u64 {
        (self.head.len() + self.tail.len()) as u64
    }

    pub fn truncated(&self) -> bool {
        self.kept() < self.total
    }

    /// What was kept, with a note where something is missing.
    pub fn preview(mut self) -> String {
        let truncated = self.truncated();
        let omitted = self.total - self.kept();
        let tail = self.tail.make_contiguous();
        if !truncated {
            return harmless(&[&self.head, &*tail].concat());
        }
        // A cut goes through characters; the halves of those are not worth showing.
        let head = &self.head[..self.head.len() - unfinished(&self.head)];
        let tail = &tail[left_over(tail)..];
        format!("{}\n\n[{omitted} bytes omitted]\n\n{}", harmless(head), harmless(tail))
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_middle_of_a_long_output_is_left_out() {
        let mut output = Output::new(8);
        for piece in ["one ", "two ", "three ", "four"] {
            output.push(piece.as_bytes());
        }
        assert_eq!((output.total(), output.kept(), output.truncated()), (18, 8, true));
        expect![[r#"
            one 

            [10 bytes omitted]

            four"#]]
        .assert_eq(&output.preview());
    }

    #[test]
    fn cuts_leave_no_halves_of_characters() {
        let mut output = Output::new(8);
        output.push("äöüäöüäöü".as_bytes());
        assert_eq!(output.preview(), "äö\n\n[10 bytes omitted]\n\nöü");
        let mut output = Output::new(6);
        output.push("äöüäöüäöü".as_bytes());
        assert_eq!(output.preview(), "ä\n\n[12 bytes omitted]\n\nü");
    }

    proptest! {
        #[test]
        fn short_output_is_kept_as_it_is(pieces: Vec<Vec<u8>>) {
            let whole = pieces.concat();
            let mut output = Output::new(2 * whole.len() + 2);
            pieces.iter().for_each(|piece| output.push(piece));
            prop_assert!(!output.truncated());
            prop_assert_eq!(output.preview(), harmless(&whole));
        }

        #[test]
        fn no_more_is_kept_than_the_budget(pieces: Vec<Vec<u8>>, budget in 0usize..64) {
            let mut output = Output::new(budget);
            pieces.iter().for_each(|piece| output.push(piece));
            prop_assert!(output.kept() <= budget as u64);
            prop_assert_eq!(output.total(), pieces.concat().len() as u64);
        }
    }
}
