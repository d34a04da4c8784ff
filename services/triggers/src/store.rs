//! How triggers and firings are kept. All the SQL.

pub mod due;
pub mod firings;
pub mod history;
pub mod mcp_watches;
pub mod secrets;
pub mod session_keys;
pub mod tenants;
pub mod triggers;
pub mod wakeups;
#[cfg(test)]
pub mod tests;

use sqlx::migrate::Migrator;

/// The schema `triggers`.
pub static MIGRATIONS: Migrator = sqlx::migrate!();
