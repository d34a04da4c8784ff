//! `make chaos`: two replicas of each service under load while they, their servers and the wires
//! between them fail, and then a look at every promise.
//!
//! It ends with a panic that says which promise was not kept.
#![expect(clippy::print_stdout, reason = "a person reads this")]

use std::time::Duration;

use clap::Parser;
use tests::chaos::{self, Run, seed};

/// Kills, pauses, restarts and parts the services, Redis and Postgres under load, and checks that
/// every promise was kept.
#[derive(Debug, Parser)]
struct Args {
    /// Seconds that everything goes on for; looking at what became of it comes on top.
    #[arg(long, env = "CHAOS_SECONDS", default_value_t = 300)]
    seconds: u64,

    /// Milliseconds between two blows at most; a third of them are kills.
    #[arg(long, env = "CHAOS_PAUSE", default_value_t = 5000, value_parser = clap::value_parser!(u64).range(1001..))]
    pause: u64,

    /// Also say what happened when.
    #[arg(long)]
    history: bool,
}

#[tokio::main]
async fn main() {
    let Args { seconds, pause, history } = Args::parse();
    let seed = seed("CHAOS_SEED");
    println!("CHAOS_SEED={seed} CHAOS_SECONDS={seconds} CHAOS_PAUSE={pause}");
    let length = Duration::from_secs(seconds);
    let report = chaos::run(Run { seed, length, pause: 1000..pause }).await;
    if history {
        println!("{}", report.history.join("\n"));
    }
    for (what, count) in report.sums {
        println!("{count:>8} {what}");
    }
    println!("{}", report.memory.join("\n"));
    println!("every promise was kept");
}
