//! What Postgres itself counted.

use std::{
    fmt::{self, Display},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use sqlx::{PgConnection, Row};

use crate::stage::Stage;

/// Counters of the server, to be read before and after.
pub struct Counters {
    server: PgConnection,
    database: String,
}

/// What happened between two readings.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counts {
    /// Statements that clients sent; what functions do inside is not counted again.
    pub statements: f64,
    /// Transactions that wrote: only those get a number.
    pub writes: f64,
    pub wal_bytes: f64,
    pub elapsed: Duration,
}

pub struct Reading {
    statements: i64,
    writes: i64,
    wal_bytes: i64,
    at: Instant,
}

impl Counters {
    pub async fn new(stage: &Stage) -> Result<Counters> {
        let mut server = stage.server().await?;
        sqlx::query("create extension if not exists pg_stat_statements")
            .execute(&mut server)
            .await
            .context("this Postgres does not count statements")?;
        Ok(Counters { server, database: stage.database_name().to_owned() })
    }

    pub async fn read(&mut self) -> Result<Reading> {
        let row = sqlx::query(
            "select (select coalesce(sum(calls), 0)::bigint from pg_stat_statements s
                     join pg_database d on d.oid = s.dbid where d.datname = $1) as statements,
                    pg_snapshot_xmax(pg_current_snapshot())::text::bigint as writes,
                    pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint as wal_bytes",
        )
        .bind(&self.database)
        .fetch_one(&mut self.server)
        .await?;
        Ok(Reading {
            statements: row.get("statements"),
            writes: row.get("writes"),
            wal_bytes: row.get("wal_bytes"),
            at: Instant::now(),
        })
    }

    pub async fn since(&mut self, before: &Reading) -> Result<Counts> {
        let now = self.read().await?;
        Ok(Counts {
            statements: (now.statements - before.statements) as f64,
            writes: (now.writes - before.writes) as f64,
            wal_bytes: (now.wal_bytes - before.wal_bytes) as f64,
            elapsed: now.at - before.at,
        })
    }

    /// Counts single statements from here on.
    pub async fn forget_statements(&mut self) -> Result<()> {
        sqlx::query("select pg_stat_statements_reset()").execute(&mut self.server).await?;
        Ok(())
    }

    /// Which statements there were since then, the most frequent first.
    pub async fn statements(&mut self, turns: f64) -> Result<Statements> {
        let rows = sqlx::query(
            "select calls, total_exec_time, regexp_replace(query, '\\s+', ' ', 'g') as query
             from pg_stat_statements s join pg_database d on d.oid = s.dbid
             where d.datname = $1
             order by calls desc, query limit 20",
        )
        .bind(&self.database)
        .fetch_all(&mut self.server)
        .await?;
        let of = |row: sqlx::postgres::PgRow| Statement {
            per_turn: row.get::<i64, _>("calls") as f64 / turns,
            milliseconds: row.get::<f64, _>("total_exec_time") / row.get::<i64, _>("calls") as f64,
            query: row.get("query"),
        };
        Ok(Statements(rows.into_iter().map(of).collect()))
    }
}

impl Counts {
    pub fn add(&mut self, more: Counts) {
        self.statements += more.statements;
        self.writes += more.writes;
        self.wal_bytes += more.wal_bytes;
        self.elapsed += more.elapsed;
    }

    /// Without what an idle system does in the same time.
    pub fn beyond(self, idle: Counts) -> Counts {
        let share = self.elapsed.as_secs_f64() / idle.elapsed.as_secs_f64();
        Counts {
            statements: self.statements - idle.statements * share,
            writes: self.writes - idle.writes * share,
            wal_bytes: self.wal_bytes - idle.wal_bytes * share,
            elapsed: self.elapsed,
        }
    }
}

/// What the load was made of.
#[derive(Default)]
pub struct Statements(Vec<Statement>);

struct Statement {
    per_turn: f64,
    milliseconds: f64,
    query: String,
}

impl Display for Statements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  per turn   ms each   statement")?;
        for Statement { per_turn, milliseconds, query } in &self.0 {
            let query: String = query.trim().chars().take(100).collect();
            writeln!(f, "{per_turn:>10.3}{milliseconds:>10.3}   {query}")?;
        }
        Ok(())
    }
}
