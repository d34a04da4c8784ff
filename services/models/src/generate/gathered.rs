//! Words that are there at once, as one piece: a fast model costs what it says and not how often it
//! says something. Whoever waits for words never waits for more of them.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures::{
    Stream, StreamExt as _,
    stream::{BoxStream, Fuse},
};

use crate::provider::{Broken, Chunk, Delta};

/// Nothing is added to a piece of this many bytes, so that no message outgrows its limit.
const LARGE: usize = 16 * 1024;

type Next = Result<Chunk, Broken>;

pub struct Gathered {
    chunks: Fuse<BoxStream<'static, Next>>,
    /// What came behind the words of the last piece and is something else.
    behind: Option<Next>,
}

impl Gathered {
    pub fn new(chunks: BoxStream<'static, Next>) -> Gathered {
        Gathered { chunks: chunks.fuse(), behind: None }
    }
}

impl Stream for Gathered {
    type Item = Next;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Next>> {
        let first = match self.behind.take() {
            Some(first) => first,
            None => match ready!(self.chunks.poll_next_unpin(context)) {
                Some(first) => first,
                None => return Poll::Ready(None),
            },
        };
        let Ok(Chunk::Delta(mut said)) = first else { return Poll::Ready(Some(first)) };
        while self.behind.is_none() && may_grow(&said) {
            match self.chunks.poll_next_unpin(context) {
                Poll::Ready(Some(Ok(Chunk::Delta(more)))) => {
                    self.behind = add(&mut said, more).map(|other| Ok(Chunk::Delta(other)));
                }
                Poll::Ready(Some(other)) => self.behind = Some(other),
                Poll::Ready(None) | Poll::Pending => break,
            }
        }
        Poll::Ready(Some(Ok(Chunk::Delta(said))))
    }
}

fn may_grow(said: &Delta) -> bool {
    match said {
        Delta::Text(text) => text.len() < LARGE,
        // A signature closes the reasoning before it.
        Delta::Reasoning { text, signature } => signature.is_empty() && text.len() < LARGE,
        Delta::ToolCallInput { input_json, .. } => input_json.len() < LARGE,
        Delta::ToolCallStarted { .. } | Delta::ToolCallCompleted { .. } => false,
    }
}

/// Adds a delta to the one before it; returns what is something else.
fn add(said: &mut Delta, more: Delta) -> Option<Delta> {
    match (said, more) {
        (Delta::Text(said), Delta::Text(more)) => said.push_str(&more),
        (
            Delta::Reasoning { text, signature },
            Delta::Reasoning { text: more, signature: seal },
        ) => {
            text.push_str(&more);
            *signature = seal;
        }
        (
            Delta::ToolCallInput { index, input_json },
            Delta::ToolCallInput { index: same, input_json: more },
        ) if *index == same => input_json.push_str(&more),
        (_, other) => return Some(other),
    }
    None
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt as _, channel::mpsc, stream};

    use super::*;
    use crate::provider::{Failure, FinishReason};

    fn text(text: &str) -> Delta {
        Delta::Text(text.to_owned())
    }

    fn reasoning(text: &str, signature: &str) -> Delta {
        Delta::Reasoning { text: text.to_owned(), signature: signature.to_owned() }
    }

    fn input(index: i32, input_json: &str) -> Delta {
        Delta::ToolCallInput { index, input_json: input_json.to_owned() }
    }

    fn end() -> Chunk {
        Chunk::Finished { finish_reason: FinishReason::Stop, usage: None }
    }

    fn all(deltas: Vec<Delta>) -> Vec<Chunk> {
        let chunks = deltas.into_iter().map(Chunk::Delta).chain([end()]).map(Ok);
        let gathered = Gathered::new(stream::iter(chunks).boxed());
        let all = gathered.map(|next| next.expect("nothing fails"));
        all.collect::<Vec<_>>().now_or_never().expect("all of it is there")
    }

    fn expected(deltas: Vec<Delta>) -> Vec<Chunk> {
        deltas.into_iter().map(Chunk::Delta).chain([end()]).collect()
    }

    #[test]
    fn what_belongs_together_is_one_piece_and_nothing_changes_places() {
        let started = || Delta::ToolCallStarted {
            index: 0,
            provider_call_id: "1".to_owned(),
            tool: "read".to_owned(),
        };
        let said = vec![
            reasoning("a", ""),
            reasoning("b", "sealed"),
            reasoning("c", ""),
            text("d"),
            text("e"),
            started(),
            input(0, "{"),
            input(0, "}"),
            input(1, "{}"),
            text("f"),
        ];
        let joined = vec![
            reasoning("ab", "sealed"),
            reasoning("c", ""),
            text("de"),
            started(),
            input(0, "{}"),
            input(1, "{}"),
            text("f"),
        ];
        assert_eq!(all(said), expected(joined));
    }

    #[test]
    fn pieces_stop_growing() {
        let piece = "x".repeat(LARGE);
        let said = vec![text("y"), text(&piece), text(&piece), text("z")];
        let joined = vec![text(&format!("y{piece}")), text(&piece), text("z")];
        assert_eq!(all(said), expected(joined));
    }

    #[tokio::test]
    async fn words_come_at_once_and_before_the_failure_behind_them() {
        let (sender, receiver) = mpsc::unbounded();
        let mut gathered = Gathered::new(receiver.boxed());
        let mut next = async || gathered.next().await.expect("it goes on");
        sender.unbounded_send(Ok(Chunk::Delta(text("a")))).unwrap();
        assert_eq!(next().await.unwrap(), Chunk::Delta(text("a")));

        for said in ["b", "c"] {
            sender.unbounded_send(Ok(Chunk::Delta(text(said)))).unwrap();
        }
        sender.unbounded_send(Err(Failure::Cut.into())).unwrap();
        assert_eq!(next().await.unwrap(), Chunk::Delta(text("bc")));
        assert_eq!(next().await, Err(Failure::Cut.into()));
    }
}
