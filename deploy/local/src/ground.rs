//! The database and the part of Redis that one fleet stands on.

use std::{collections::BTreeMap, str::FromStr};

use anyhow::{Context, Result};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection, postgres::PgConnectOptions};

use crate::{Servers, keep};

/// A place in the two servers that no other fleet uses.
#[derive(Debug)]
pub struct Ground {
    pub database_url: String,
    pub redis_url: String,
}

impl Ground {
    /// A new and empty place.
    pub async fn fresh(servers: &Servers) -> Result<Ground> {
        let name = format!("fleet_{}", keep::random());
        let redis_url = redis_database(servers.redis_url()).await?;
        Ground::at(&name, servers.database_url(), redis_url).await
    }

    /// The same place each time: of a server that is not ours, exactly the one its URL names.
    pub async fn lasting(servers: &Servers) -> Result<Ground> {
        let database_url = servers.database_url().to_owned();
        let redis_url = servers.redis_url().to_owned();
        match servers.owns_postgres() {
            true => Ground::at("windlass", &database_url, redis_url).await,
            false => Ok(Ground { database_url, redis_url }),
        }
    }

    async fn at(name: &str, server_url: &str, redis_url: String) -> Result<Ground> {
        let server = PgConnectOptions::from_str(server_url).context("DATABASE_URL")?;
        let mut connection = server.connect().await.context("cannot connect to Postgres")?;
        let exists: bool =
            sqlx::query_scalar("select exists (select from pg_database where datname = $1)")
                .bind(name)
                .fetch_one(&mut connection)
                .await?;
        if !exists {
            create(&mut connection, name).await?;
        }
        connection.close().await?;
        let database_url = server.database(name).to_url_lossy().to_string();
        Ok(Ground { database_url, redis_url })
    }
}

async fn create(connection: &mut PgConnection, name: &str) -> Result<()> {
    // A statement that takes no parameters; the name is ours and plain.
    let create = AssertSqlSafe(format!("create database {name}"));
    sqlx::raw_sql(create).execute(connection).await.context("cannot create a database")?;
    Ok(())
}

/// Hands out the numbered databases of Redis in turn.
async fn redis_database(server_url: &str) -> Result<String> {
    let mut connection = redis::Client::open(server_url)?
        .get_multiplexed_async_connection()
        .await
        .context("cannot connect to Redis")?;
    let settings: BTreeMap<String, u64> = redis::cmd("CONFIG")
        .arg("GET")
        .arg("databases")
        .query_async(&mut connection)
        .await
        .unwrap_or_default();
    // A hosted Redis does not tell; most have as many as it comes with.
    let databases = settings.get("databases").copied().unwrap_or(16);
    let turn: u64 = redis::cmd("INCR").arg("fleets").query_async(&mut connection).await?;
    let number = 1 + turn % (databases - 1).max(1);
    Ok(format!("{}/{number}", server_url.trim_end_matches("/0").trim_end_matches('/')))
}
