//! A moment that many wait for together. Each with a timer of its own would wake this process up,
//! only for it to see that there is an earlier time to wake up at.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use futures::{
    FutureExt as _,
    future::{BoxFuture, Shared},
};
use tokio::time::{Instant, sleep};

/// How long it takes at most, and at least half of it: models that are not done by then take far
/// longer.
pub const SOON: Duration = Duration::from_millis(4);

#[derive(Default)]
pub struct Soon(Mutex<Option<(Instant, Over)>>);

/// The end of a moment.
pub type Over = Shared<BoxFuture<'static, ()>>;

impl Soon {
    pub fn over(&self) -> Over {
        let now = Instant::now();
        let mut moment = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*moment {
            Some((begun, over)) if now < *begun + SOON / 2 => over.clone(),
            _ => moment.insert((now, sleep(SOON).boxed().shared())).1.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_comes_soon_after_waits_for_the_same_moment() {
        let (soon, begun) = (Soon::default(), Instant::now());
        assert!(soon.over().now_or_never().is_none());
        advance(SOON / 4).await;
        soon.over().await;
        assert_eq!(begun.elapsed(), SOON);
        soon.over().await;
        assert_eq!(begun.elapsed(), 2 * SOON, "another one");
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_less_than_half_of_it() {
        let soon = Soon::default();
        let first = soon.over();
        advance(SOON / 2).await;
        let begun = Instant::now();
        soon.over().await;
        assert_eq!(begun.elapsed(), SOON);
        first.now_or_never().expect("it was over long before");
    }
}
