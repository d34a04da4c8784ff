//! The way to Redis, which may be away: whatever it says is a hint.

use std::time::Duration;

use anyhow::Context as _;
use redis::{
    Client, IntoConnectionInfo as _, RedisResult,
    aio::{ConnectionManager, ConnectionManagerConfig},
    io::tcp::TcpSettings,
};
use secrecy::{ExposeSecret as _, SecretString};

#[derive(Debug, Clone, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Redis that carries wake-ups and limits.
    #[arg(long, env, hide_env_values = true)]
    pub redis_url: SecretString,
}

/// A hint that is late is worthless, so nobody waits long for one.
const RESPONSE: Duration = Duration::from_secs(2);
const CONNECT: Duration = Duration::from_secs(1);

/// While Redis is away each command waits for one more try, made after this pause,
/// and all of them for the same one: they fail soon and do not storm it when it is back.
const PAUSE: Duration = Duration::from_millis(100);

/// A Redis that need not be there: commands fail while it is away and work
/// again when it is back.
#[derive(Clone)]
pub struct Redis {
    client: Client,
    manager: ConnectionManager,
}

impl Redis {
    /// Must be called inside a tokio runtime. Connects on first use.
    pub fn new(args: &Args) -> anyhow::Result<Redis> {
        crate::tls::install_default();
        let address = args.redis_url.expose_secret().into_connection_info();
        let address = address.context("REDIS_URL is not a Redis URL")?;
        // Or a hint waits for the acknowledgement of the one before it, which takes its time.
        let client =
            Client::open(address.set_tcp_settings(TcpSettings::default().set_nodelay(true)))?;
        let config = ConnectionManagerConfig::new()
            .set_response_timeout(Some(RESPONSE))
            .set_connection_timeout(Some(CONNECT))
            .set_number_of_retries(1)
            .set_min_delay(PAUSE);
        let manager = ConnectionManager::new_lazy_with_config(client.clone(), config)?;
        Ok(Redis { client, manager })
    }

    /// The shared connection, for commands that are answered at once.
    pub fn connection(&self) -> ConnectionManager {
        self.manager.clone()
    }

    /// Opens connections of one's own, for commands that block and for subscriptions.
    pub fn client(&self) -> &Client {
        &self.client
    }

    pub async fn ping(&self) -> RedisResult<()> {
        redis::cmd("PING").query_async(&mut self.connection()).await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[tokio::test]
    async fn commands_fail_soon_while_redis_is_away() {
        let redis = Redis::new(&Args { redis_url: "redis://127.0.0.1:1".into() }).unwrap();
        for _ in 0..3 {
            let begun = Instant::now();
            redis.ping().await.unwrap_err();
            assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
        }
    }

    #[tokio::test]
    async fn a_wrong_url_is_an_error_that_does_not_show_it() {
        let wrong = Redis::new(&Args { redis_url: "postgres://user:secret@host".into() });
        let Err(error) = wrong else { panic!("accepted") };
        assert!(!format!("{error:?}").contains("secret"), "{error:?}");
    }
}
