//! Connections for the statements that every turn needs.
//!
//! sqlx' pool asks a connection whether it lives when it hands it out and again when it gets it
//! back: three round trips for one statement. Here only those are asked that rested for a while
//! or whose last statement did not end well. In exchange no statement waits for ever.

use std::{mem, time::Duration};

use deadpool::{
    Runtime,
    managed::{Manager, Metrics, Pool, QueueMode, RecycleResult},
};
use sqlx::{Connection as _, PgConnection, PgPool, postgres::PgConnectOptions};
use tokio::time::timeout;

use crate::error::{Error, Result};

/// Whoever was fine so recently still is.
const FRESH: Duration = Duration::from_secs(1);

/// How long to wait for a connection that is free, that is new, or that should say it lives.
const FREE: Duration = Duration::from_secs(5);
const ALIVE: Duration = Duration::from_secs(1);

/// Whoever had nothing to do for so long is not needed.
const UNUSED: Duration = Duration::from_secs(60);

#[derive(Clone)]
pub struct Lanes {
    pool: Pool<Connector>,
    silence: Duration,
}

struct Connector(PgConnectOptions);

struct Lane {
    connection: PgConnection,
    /// Its last statement ended well.
    trusted: bool,
}

impl Lanes {
    /// To the same database as the pool, beside it.
    pub fn new(db: &PgPool, connections: usize, silence: Duration) -> anyhow::Result<Lanes> {
        let options = db.connect_options().as_ref().clone();
        let pool = Pool::builder(Connector(options))
            .max_size(connections)
            // The one that worked last has everything at hand.
            .queue_mode(QueueMode::Lifo)
            .wait_timeout(Some(FREE))
            .create_timeout(Some(FREE))
            .recycle_timeout(Some(ALIVE))
            .runtime(Runtime::Tokio1)
            .build()?;
        Ok(Lanes { pool, silence })
    }

    /// Lets go of those that nobody needed lately: they hold what their largest statement took.
    pub fn tidy(&self) {
        self.pool.retain(|_, metrics| metrics.last_used() < UNUSED);
    }

    /// Runs one statement.
    pub async fn run<T>(
        &self,
        statement: impl AsyncFnOnce(&mut PgConnection) -> Result<T>,
    ) -> Result<T> {
        let mut lane = self.pool.get().await.map_err(|_| sqlx::Error::PoolTimedOut)?;
        let answer = timeout(self.silence, statement(&mut lane.connection)).await;
        let answer = answer.unwrap_or_else(|silent| Err(sqlx::Error::Io(silent.into()).into()));
        lane.trusted = !matches!(answer, Err(Error::Database(_)));
        answer
    }
}

impl Manager for Connector {
    type Type = Lane;
    type Error = sqlx::Error;

    async fn create(&self) -> Result<Lane, sqlx::Error> {
        let connection = PgConnection::connect_with(&self.0).await?;
        Ok(Lane { connection, trusted: false })
    }

    async fn recycle(&self, lane: &mut Lane, metrics: &Metrics) -> RecycleResult<sqlx::Error> {
        let rested = metrics.last_used() > FRESH;
        if rested {
            // What its largest statement took would be held for as long as it is needed.
            lane.connection.shrink_buffers();
        }
        if !mem::take(&mut lane.trusted) || rested {
            lane.connection.ping().await?;
        }
        Ok(())
    }
}
