//! How limits, budgets and requests are kept. All the SQL.

pub mod budgets;
pub mod changes;
pub mod replicas;
pub mod requests;
pub mod rules;
pub mod usage;

#[cfg(test)]
mod tests;

use sqlx::migrate::Migrator;

/// The schema `models`.
pub static MIGRATIONS: Migrator = sqlx::migrate!();
