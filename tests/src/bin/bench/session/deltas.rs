//! From the model's word to the reader's eye, with a commit in between.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use futures::future::try_join_all;
use proto::event::v1::{Event, Payload};
use tests::{Events, Session};

use super::{milliseconds, turns};
use crate::{quantiles::Quantiles, stage::Stage, table::Table};

const SESSIONS: usize = 8;

/// A fast model: two hundred words a second, for as long as it takes to meet what is rare.
const SCRIPT: &str = "pace 5ms\nrepeat 2400 word";

pub async fn measure(stage: &mut Stage, table: &mut Table) -> Result<()> {
    eprintln!("{SESSIONS} models speak slowly …");
    // What other parts wrote is not to be written out meanwhile.
    sqlx::query("checkpoint").execute(&mut stage.server().await?).await?;
    let readers = turns::readers(stage, SESSIONS).await?;
    let mut latencies = Quantiles::default();
    for seen in try_join_all(readers.into_iter().map(|reader| tokio::spawn(read(reader)))).await? {
        latencies.extend(seen);
    }
    let what = format!("model delta to subscriber, {SESSIONS} streaming sessions");
    table.note(format!("{what}, p50"), milliseconds(latencies.p50()));
    table.at_most(format!("{what}, p99"), latencies.p99(), 5.0, milliseconds);
    Ok(())
}

/// How old each delta is when it arrives. It bears the time at which the turn's owner heard
/// it from the model; of several that were committed as one, the time of the first.
async fn read((session, mut events): (Session, Events)) -> Vec<Duration> {
    let turn = session.submit(SCRIPT).await;
    let mut ages = Vec::new();
    loop {
        let event = events.next().await.expect("the stream goes on");
        if let Some(Payload::ModelDelta(_)) = &event.payload {
            ages.push(age(&event));
        }
        if event.r#type.starts_with("turn.completed") && event.turn_id == turn.turn_id {
            return ages;
        }
        assert_ne!(event.r#type, "turn.failed", "{event:?}");
    }
}

fn age(event: &Event) -> Duration {
    let time = event.timestamp.expect("every event has a time");
    let since_1970 = Duration::new(time.seconds as u64, time.nanos as u32);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(since_1970)
}
