//! What `make down` runs: ends an `up` of this clone, and whatever a killed one left.

use std::{path::PathBuf, time::Duration};

use clap::Parser;
use local::record;

/// Longer than an `up` needs to let its services finish.
const GRACE: Duration = Duration::from_secs(60);

/// Stops what `up` started, wherever that was.
#[derive(Debug, Parser)]
struct Args {
    /// Where `up` keeps its data.
    #[arg(long, default_value = ".local")]
    dir: PathBuf,
}

#[expect(clippy::print_stdout, reason = "a person reads this")]
fn main() {
    let path = Args::parse().dir.join("processes");
    // `up` itself is first in the record, and stops the others in good order.
    for entry in record::load(&path) {
        if entry.end(GRACE) {
            println!("stopped {} ({})", entry.name, entry.pid());
        }
    }
}
