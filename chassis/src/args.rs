use std::time::Duration;

use crate::{auth, database, redis, serve, telemetry, tls};

/// The part of the configuration that all services share.
///
/// Each service flattens it into its own and adds the address it listens on,
/// because that is the one thing whose default differs.
#[derive(Debug, Clone, clap::Args)]
#[group(skip)]
pub struct Args {
    #[command(flatten)]
    pub server: serve::Args,
    #[command(flatten)]
    pub tls: tls::Args,
    #[command(flatten)]
    pub auth: auth::Args,
    #[command(flatten)]
    pub database: database::Args,
    #[command(flatten)]
    pub redis: redis::Args,
    #[command(flatten)]
    pub telemetry: telemetry::Args,
}

/// Reads a flag that is a number of seconds.
pub fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string()),
        Err(_) => Err("expected a number of seconds".to_owned()),
    }
}
