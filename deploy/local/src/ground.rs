//! The database and the part of Redis that one fleet stands on.

use std::{collections::BTreeMap, net::SocketAddr};

use anyhow::{Context, Result};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

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
        let mut connection =
            PgConnection::connect(server_url).await.context("cannot connect to Postgres")?;
        let exists: bool =
            sqlx::query_scalar("select exists (select from pg_database where datname = $1)")
                .bind(name)
                .fetch_one(&mut connection)
                .await?;
        if !exists {
            create(&mut connection, name).await?;
        }
        connection.close().await?;
        Ok(Ground { database_url: at_path(server_url, name), redis_url })
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
    Ok(at_path(server_url, &number.to_string()))
}

/// The same URL with another path, which is where both servers look for a database.
fn at_path(url: &str, path: &str) -> String {
    let (address, query) = url.split_at(url.find('?').unwrap_or(url.len()));
    let host = address.find("://").map_or(0, |scheme| scheme + 3);
    let end = address[host..].find('/').map_or(address.len(), |slash| host + slash);
    format!("{}/{path}{query}", &address[..end])
}

/// The same URL with another host and port; who asks, and for what, stays.
pub fn at_address(url: &str, address: SocketAddr) -> String {
    let host = url.find("://").map_or(0, |scheme| scheme + 3);
    let end = url[host..].find(['/', '?']).map_or(url.len(), |end| host + end);
    let host = url[host..end].rfind('@').map_or(host, |at| host + at + 1);
    format!("{}{address}{}", &url[..host], &url[end..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_address_of_a_url_changes() {
        let address = SocketAddr::from(([127, 0, 0, 1], 7));
        for (url, there) in [
            ("http://localhost:50052", "http://127.0.0.1:7"),
            ("redis://:secret@localhost:6379/3", "redis://:secret@127.0.0.1:7/3"),
            ("postgres://me:p@db?sslmode=disable", "postgres://me:p@127.0.0.1:7?sslmode=disable"),
        ] {
            assert_eq!(at_address(url, address), there);
        }
    }

    #[test]
    fn only_the_path_of_a_url_changes() {
        for (url, there) in [
            ("redis://:secret@localhost:6379", "redis://:secret@localhost:6379/7"),
            ("redis://localhost/0", "redis://localhost/7"),
            (
                "postgres://me@db:5432/mine?sslmode=require",
                "postgres://me@db:5432/7?sslmode=require",
            ),
            ("postgres://db?sslmode=require", "postgres://db/7?sslmode=require"),
        ] {
            assert_eq!(at_path(url, "7"), there);
        }
    }
}
