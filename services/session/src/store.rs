//! How sessions are kept. All the SQL.

pub mod agents;
pub mod events;
pub mod flush;
pub mod messages;
pub mod replicas;
pub mod sessions;
pub mod snapshot;
pub mod turns;

#[cfg(test)]
mod tests;

use sqlx::migrate::Migrator;

pub static MIGRATIONS: Migrator = sqlx::migrate!();
