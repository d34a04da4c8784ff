//! How many answers are given at once, as the one who gives them sees it. Whoever checks limits
//! asks here and not where they are enforced.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use futures::{Stream, StreamExt as _};
use serde_json::{Value, json};

use crate::provider::{Broken, Chunk};

static OPEN: AtomicU64 = AtomicU64::new(0);
static PEAK: AtomicU64 = AtomicU64::new(0);
static ASKED: AtomicU64 = AtomicU64::new(0);

/// An answer that has begun and not ended.
struct Player;

/// Counts an answer from the question to its last chunk, or until nobody listens.
pub fn watch(
    answer: impl Stream<Item = Result<Chunk, Broken>>,
) -> impl Stream<Item = Result<Chunk, Broken>> {
    let mut player = Some(Player::enter());
    answer.inspect(move |chunk| {
        if !matches!(chunk, Ok(Chunk::Delta(_))) {
            drop(player.take());
        }
    })
}

/// What `/health` shows, of the whole process.
pub fn seen() -> Value {
    json!({ "open": OPEN.load(SeqCst), "peak": PEAK.load(SeqCst), "asked": ASKED.load(SeqCst) })
}

impl Player {
    fn enter() -> Player {
        ASKED.fetch_add(1, SeqCst);
        PEAK.fetch_max(OPEN.fetch_add(1, SeqCst) + 1, SeqCst);
        Player
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, SeqCst);
    }
}
