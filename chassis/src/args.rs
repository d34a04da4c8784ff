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

/// What a service does besides serving.
#[derive(Debug, Clone, Copy, clap::Subcommand)]
pub enum Command {
    /// Bring the database up to date and exit.
    Migrate,
}

/// Reads a flag that is a number of seconds.
pub fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string()),
        Err(_) => Err("expected a number of seconds".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    #[derive(Debug, clap::Parser)]
    struct Config {
        #[command(flatten)]
        chassis: super::Args,
    }

    #[test]
    fn flags_are_consistent() {
        Config::command().debug_assert();
    }

    #[test]
    fn secrets_are_neither_shown_in_help_nor_in_logs() {
        let secret = "correct horse battery staple 1234";
        let flags =
            ["database-url", "redis-url", "auth-internal-secret", "auth-internal-secret-also"]
                .map(|flag| format!("--{flag}={secret}"));
        let config = Config::parse_from(["test".to_owned()].into_iter().chain(flags));
        assert!(!format!("{config:?}").contains(secret), "{config:?}");
        for id in ["database_url", "redis_url", "auth_internal_secret", "auth_internal_secret_also"]
        {
            let command = Config::command();
            let arg = command.get_arguments().find(|arg| arg.get_id() == id).expect(id);
            assert!(arg.is_hide_env_values_set(), "{id}");
        }
    }

    #[test]
    fn seconds_are_positive_numbers() {
        assert_eq!(super::seconds("0.5").unwrap().as_millis(), 500);
        for wrong in ["", "20s", "-1", "nan", "inf"] {
            assert!(super::seconds(wrong).is_err(), "{wrong}");
        }
    }
}
