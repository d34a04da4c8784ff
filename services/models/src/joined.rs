//! Words that are there at once, as one message: a fast model costs what it says and not how
//! often it says something. Whoever waits for words never waits for more of them; only what was
//! decided before the first of them waits a moment for it, because everything that is sent wakes
//! somebody up.

use std::{pin::pin, time::Duration};

use async_stream::stream;
use futures::{Stream, StreamExt as _};
use proto::models::v1::generate_response::Item;
use tokio::time::timeout;

use crate::error::Result;

/// How many items are looked at together.
const AT_ONCE: usize = 256;

/// Nothing is added to a piece of this many bytes, so that no message outgrows its limit.
const LARGE: usize = 16 * 1024;

/// How long facts wait for words: models that are not done by then take far longer.
const SOON: Duration = Duration::from_millis(2);

pub fn joined(answer: impl Stream<Item = Result<Item>> + Send) -> impl Stream<Item = Result<Item>> {
    stream! {
        let mut chunks = pin!(answer.ready_chunks(AT_ONCE));
        while let Some(mut items) = chunks.next().await {
            let facts = items.iter().all(|item| matches!(item, Ok(Item::Fact(_))));
            if facts && let Ok(Some(more)) = timeout(SOON, chunks.next()).await {
                items.extend(more);
            }
            for item in join(items) {
                yield item;
            }
        }
    }
}

fn join(items: Vec<Result<Item>>) -> Vec<Result<Item>> {
    let mut joined: Vec<Result<Item>> = Vec::with_capacity(items.len().min(8));
    for item in items {
        let rest = match (joined.last_mut(), item) {
            (Some(Ok(said)), Ok(item)) => add(said, item).map(Ok),
            (_, item) => Some(item),
        };
        joined.extend(rest);
    }
    joined
}

/// Adds an item to the one before it; returns what is something else.
fn add(said: &mut Item, item: Item) -> Option<Item> {
    match (said, item) {
        (Item::Text(said), Item::Text(more)) if said.text.len() < LARGE => {
            said.text.push_str(&more.text);
        }
        // A signature closes the reasoning before it.
        (Item::Reasoning(said), Item::Reasoning(more))
            if said.signature.is_empty() && said.text.len() < LARGE =>
        {
            said.text.push_str(&more.text);
            said.signature = more.signature;
        }
        (Item::ToolCallDelta(said), Item::ToolCallDelta(more))
            if said.index == more.index && said.input_json.len() < LARGE =>
        {
            said.input_json.push_str(&more.input_json);
        }
        (_, item) => return Some(item),
    }
    None
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use proto::{
        event::v1::Event,
        models::v1::{ReasoningDelta, TextDelta, ToolCallDelta},
    };
    use tokio::time::Instant;

    use super::*;
    use crate::error::Error;

    fn text(text: &str) -> Item {
        Item::Text(TextDelta { text: text.into() })
    }

    fn reasoning(text: &str, signature: &str) -> Item {
        Item::Reasoning(ReasoningDelta { text: text.into(), signature: signature.into() })
    }

    fn arguments(index: i32, input_json: &str) -> Item {
        Item::ToolCallDelta(ToolCallDelta { index, input_json: input_json.into() })
    }

    fn all(items: Vec<Item>) -> Vec<Item> {
        join(items.into_iter().map(Ok).collect()).into_iter().map(Result::unwrap).collect()
    }

    #[test]
    fn only_neighbours_of_one_kind_are_joined() {
        let items = vec![
            reasoning("a", ""),
            reasoning("b", "sealed"),
            reasoning("c", ""),
            text("d"),
            text("e"),
            arguments(0, "{"),
            arguments(0, "}"),
            arguments(1, "{}"),
            text("f"),
        ];
        let expected = vec![
            reasoning("ab", "sealed"),
            reasoning("c", ""),
            text("de"),
            arguments(0, "{}"),
            arguments(1, "{}"),
            text("f"),
        ];
        assert_eq!(all(items), expected);
    }

    #[test]
    fn pieces_stop_growing() {
        let piece = "x".repeat(LARGE);
        let items = vec![text("y"), text(&piece), text(&piece), text("z")];
        let expected = vec![text(&format!("y{piece}")), text(&piece), text("z")];
        assert_eq!(all(items), expected);
    }

    #[tokio::test]
    async fn words_come_at_once_and_before_the_failure_behind_them() {
        let (sender, receiver) = futures::channel::mpsc::unbounded();
        let mut answer = Box::pin(joined(receiver));
        sender.unbounded_send(Ok(text("a"))).unwrap();
        assert_eq!(answer.next().await.unwrap().unwrap(), text("a"));

        for item in [Ok(text("b")), Ok(text("c")), Err(Error::Stopping), Ok(text("d"))] {
            sender.unbounded_send(item).unwrap();
        }
        assert_eq!(answer.next().await.unwrap().unwrap(), text("bc"));
        assert!(matches!(answer.next().await, Some(Err(Error::Stopping))));
        assert_eq!(answer.next().await.unwrap().unwrap(), text("d"));
    }

    #[tokio::test(start_paused = true)]
    async fn facts_wait_a_moment_for_words_and_no_longer() {
        let (sender, receiver) = futures::channel::mpsc::unbounded();
        let mut answer = Box::pin(joined(receiver));
        let fact = Item::Fact(Event::default().into());
        sender.unbounded_send(Ok(fact.clone())).unwrap();
        assert!(answer.next().now_or_never().is_none(), "nobody is woken for a fact alone");
        sender.unbounded_send(Ok(text("a"))).unwrap();
        assert_eq!(answer.next().now_or_never().unwrap().unwrap().unwrap(), fact);
        assert_eq!(answer.next().now_or_never().unwrap().unwrap().unwrap(), text("a"));

        let begun = Instant::now();
        sender.unbounded_send(Ok(fact.clone())).unwrap();
        assert_eq!(answer.next().await.unwrap().unwrap(), fact);
        assert_eq!(begun.elapsed(), SOON);
    }
}
