//! Whatever people do and whoever dies, for a few seconds and with a blow every moment. `make chaos`
//! runs the same for minutes.
//!
//! `MODEL_SEED` replays a run as far as the machine allows, and `MODEL_SECONDS` makes it longer.

use std::time::Duration;

use tests::chaos::{self, Run, seed, variable};

const SECONDS: u64 = 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_people_do_and_whoever_dies_every_turn_runs_once_and_in_order() {
    let seed = seed("MODEL_SEED");
    let seconds = variable("MODEL_SECONDS").unwrap_or(SECONDS);
    eprintln!("MODEL_SEED={seed} MODEL_SECONDS={seconds}");
    let run = Run { seed, length: Duration::from_secs(seconds), pause: 200..1200 };
    let report = chaos::run(run).await;
    eprintln!("{}\n{:?}", report.history.join("\n"), report.sums);
}
