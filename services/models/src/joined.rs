//! What was decided before the first word waits a moment for it, because everything that is sent
//! wakes somebody up, and a fast model says everything in one.

use std::{pin::pin, sync::Arc};

use async_stream::stream;
use futures::{
    Stream, StreamExt as _,
    future::{Either, select},
};
use proto::models::v1::generate_response::Item;

use crate::{
    error::Result,
    soon::{Over, Soon},
};

pub fn joined(
    answer: impl Stream<Item = Result<Item>> + Send,
    soon: Arc<Soon>,
) -> impl Stream<Item = Result<Item>> {
    stream! {
        let mut answer = pin!(answer);
        let mut facts = Vec::new();
        // None, where nothing waits for it.
        let mut over: Option<Over> = None;
        loop {
            let next = match &over {
                None => Some(answer.next().await),
                Some(over) => match select(answer.next(), over.clone()).await {
                    Either::Left((next, _)) => Some(next),
                    Either::Right(_) => None,
                },
            };
            if let Some(Some(Ok(fact @ Item::Fact(_)))) = next {
                facts.push(fact);
                over.get_or_insert_with(|| soon.over());
                continue;
            }
            over = None;
            for fact in facts.drain(..) {
                yield Ok(fact);
            }
            match next {
                Some(Some(item)) => yield item,
                Some(None) => return,
                None => (),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt as _, channel::mpsc};
    use proto::{event::v1::Event, models::v1::TextDelta};

    use tokio::time::Instant;

    use super::*;
    use crate::{error::Error, soon::SOON};

    fn fact() -> Item {
        Item::Fact(Event::default().into())
    }

    fn text(text: &str) -> Item {
        Item::Text(TextDelta { text: text.into() })
    }

    #[tokio::test(start_paused = true)]
    async fn facts_wait_a_moment_for_words_and_no_longer() {
        let (sender, receiver) = mpsc::unbounded();
        let mut answer = Box::pin(joined(receiver, Arc::default()));
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
        let mut answer = Box::pin(joined(receiver, Arc::default()));
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
        let mut answer = Box::pin(joined(receiver, Arc::default()));
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
