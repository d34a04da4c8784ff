//! What was decided before the first word waits a moment for it, because everything that is sent
//! wakes somebody up, and a fast model says everything in one.

use std::{pin::pin, time::Duration};

use async_stream::stream;
use futures::{Stream, StreamExt as _};
use proto::models::v1::generate_response::Item;
use tokio::time::{Instant, timeout_at};

use crate::error::Result;

/// How long facts wait for words: models that are not done by then take far longer.
const SOON: Duration = Duration::from_millis(2);

pub fn joined(answer: impl Stream<Item = Result<Item>> + Send) -> impl Stream<Item = Result<Item>> {
    stream! {
        let mut answer = pin!(answer);
        let mut facts = Vec::new();
        let mut until = Instant::now();
        loop {
            let next = match facts.is_empty() {
                true => Ok(answer.next().await),
                false => timeout_at(until, answer.next()).await,
            };
            if let Ok(Some(Ok(fact @ Item::Fact(_)))) = next {
                if facts.is_empty() {
                    until = Instant::now() + SOON;
                }
                facts.push(fact);
                continue;
            }
            for fact in facts.drain(..) {
                yield Ok(fact);
            }
            match next {
                Ok(Some(item)) => yield item,
                Ok(None) => return,
                Err(_) => (),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt as _, channel::mpsc};
    use proto::{event::v1::Event, models::v1::TextDelta};

    use super::*;
    use crate::error::Error;

    fn fact() -> Item {
        Item::Fact(Event::default().into())
    }

    fn text(text: &str) -> Item {
        Item::Text(TextDelta { text: text.into() })
    }

    #[tokio::test(start_paused = true)]
    async fn facts_wait_a_moment_for_words_and_no_longer() {
        let (sender, receiver) = mpsc::unbounded();
        let mut answer = Box::pin(joined(receiver));
        sender.unbounded_send(Ok(fact())).unwrap();
        assert!(answer.next().now_or_never().is_none(), "nobody is woken for a fact alone");
        sender.unbounded_send(Ok(text("a"))).unwrap();
        assert_eq!(answer.next().now_or_never().unwrap().unwrap().unwrap(), fact());
        assert_eq!(answer.next().now_or_never().unwrap().unwrap().unwrap(), text("a"));

        let begun = Instant::now();
        sender.unbounded_send(Ok(fact())).unwrap();
        assert_eq!(answer.next().await.unwrap().unwrap(), fact());
        assert_eq!(begun.elapsed(), SOON);
    }

    #[tokio::test(start_paused = true)]
    async fn facts_do_not_wait_longer_because_there_are_more_of_them() {
        let (sender, receiver) = mpsc::unbounded();
        let mut answer = Box::pin(joined(receiver));
        let begun = Instant::now();
        sender.unbounded_send(Ok(fact())).unwrap();
        assert!(answer.next().now_or_never().is_none());
        tokio::time::advance(SOON / 2).await;
        sender.unbounded_send(Ok(fact())).unwrap();
        assert_eq!(answer.next().await.unwrap().unwrap(), fact());
        assert_eq!(begun.elapsed(), SOON);
    }

    #[tokio::test]
    async fn what_fails_and_what_ends_comes_behind_the_facts_before_it() {
        let (sender, receiver) = mpsc::unbounded();
        let mut answer = Box::pin(joined(receiver));
        for item in [Ok(fact()), Err(Error::Stopping), Ok(fact())] {
            sender.unbounded_send(item).unwrap();
        }
        drop(sender);
        assert_eq!(answer.next().await.unwrap().unwrap(), fact());
        assert!(matches!(answer.next().await, Some(Err(Error::Stopping))));
        assert_eq!(answer.next().await.unwrap().unwrap(), fact());
        assert!(answer.next().await.is_none());
    }
}
