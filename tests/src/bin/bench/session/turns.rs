//! Plain turns: one message in, 64 deltas out, no tool, a reader that checks every event.

use std::time::{Duration, Instant};

use anyhow::Result;
use futures::{StreamExt as _, TryStreamExt as _, future::try_join_all, stream};
use proto::session::v1::subscribe_request::From;
use sqlx::Executor as _;
use tests::{Events, Session, text_of};

use crate::{
    counts::{Counters, Counts},
    quantiles::Quantiles,
    stage::Stage,
};

const SCRIPT: &str = "repeat 64 word";

/// How often a session speaks before a new one takes its place: what a long history costs
/// is another question.
const TURNS: usize = 20;

/// How many sessions share a connection, as those of one product do.
const PER_CONNECTION: usize = 8;

/// How many are opened at once; nobody measures that.
const OPENINGS: usize = 4;

/// What came of many turns.
pub struct Load {
    pub sessions: usize,
    pub turns: f64,
    pub latencies: Quantiles,
    pub counts: Counts,
    elapsed: Duration,
}

impl Load {
    fn of(sessions: usize) -> Load {
        Load {
            sessions,
            turns: 0.0,
            latencies: Quantiles::default(),
            counts: Counts::default(),
            elapsed: Duration::ZERO,
        }
    }

    pub fn rate(&self) -> f64 {
        self.turns / self.elapsed.as_secs_f64()
    }

    /// New sessions speak at the same time, a few turns each.
    async fn round(&mut self, stage: &mut Stage, counters: &mut Counters) -> Result<()> {
        let readers = readers(stage, self.sessions).await?;
        let before = counters.read().await?;
        let begun = Instant::now();
        let conversations =
            readers.into_iter().map(|reader| tokio::spawn(converse(reader, 0, TURNS)));
        let latencies = try_join_all(conversations).await?;
        self.elapsed += begun.elapsed();
        self.counts.add(counters.since(&before).await?);
        self.turns += (self.sessions * TURNS) as f64;
        self.latencies.extend(latencies.into_iter().flatten());
        Ok(())
    }
}

/// Lets so many sessions speak at the same time for about as long as told, in turns with whoever
/// they are compared with.
pub async fn run(
    stage: &mut Stage,
    counters: &mut Counters,
    sessions: usize,
    time: Duration,
    mut with: impl AsyncFnMut() -> Result<()>,
) -> Result<Load> {
    let mut load = Load::of(sessions);
    eprintln!("turns in {sessions} sessions at once …");
    while load.elapsed < time {
        with().await?;
        load.round(stage, counters).await?;
    }
    Ok(load)
}

/// Fills caches and pools, so that the first of the measured turns is like the others. Then has
/// the rows counted, as Postgres does by itself a minute after a database comes into use: before,
/// it plans as if all tables were empty.
pub async fn warm_up(stage: &mut Stage) -> Result<()> {
    let readers = readers(stage, stage.scale.sessions).await?;
    try_join_all(readers.into_iter().map(|reader| tokio::spawn(converse(reader, 0, 4)))).await?;
    stage.database().await?.execute("analyze").await?;
    Ok(())
}

/// New sessions, each with somebody who listens from the start.
pub async fn readers(stage: &mut Stage, count: usize) -> Result<Vec<(Session, Events)>> {
    let clients: Vec<_> = (0..count.div_ceil(PER_CONNECTION)).map(|_| stage.client()).collect();
    let readers = (0..count).map(|index| {
        let client = clients[index / PER_CONNECTION].clone();
        tokio::spawn(async move {
            let session = client.create_session().await;
            let events = session.subscribe(From::FromStart(true)).await;
            (session, events)
        })
    });
    Ok(stream::iter(readers).buffer_unordered(OPENINGS).try_collect().await?)
}

/// One turn after the other behind an event that is there; how long each took from the call to the
/// arrival of its end.
pub async fn converse(
    (session, mut events): (Session, Events),
    mut sequence: i64,
    turns: usize,
) -> Vec<Duration> {
    let mut latencies = Vec::with_capacity(turns);
    for _ in 0..turns {
        let begun = Instant::now();
        let ended = |name: &str| name == "turn.completed" || name == "turn.failed";
        let (turn, seen) =
            tokio::join!(session.submit(SCRIPT), events.until(|event| ended(&event.r#type)));
        latencies.push(begun.elapsed());
        for event in &seen {
            sequence += 1;
            assert_eq!(event.sequence, sequence, "a gap or a duplicate: {event:?}");
        }
        let last = seen.last().expect("at least the end");
        assert_eq!(last.r#type, "turn.completed", "{last:?}");
        assert_eq!(last.turn_id, turn.turn_id);
        assert_eq!(text_of(&seen).len(), "word".len() * 64);
    }
    latencies
}
