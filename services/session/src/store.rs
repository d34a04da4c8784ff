//! How sessions are kept. All the SQL.

pub mod actions;
pub mod admin;
pub mod agents;
pub mod channels;
pub mod events;
pub mod evidence;
pub mod facts;
pub mod flush;
pub mod history;
pub mod memories;
pub mod imports;
pub mod items;
pub mod jobs;
pub mod messages;
pub mod queue;
pub mod replicas;
pub mod runs;
pub mod seals;
pub mod sessions;
pub mod snapshot;
pub mod tasks;
pub mod trials;
pub mod subagents;
pub mod turns;
pub mod watch;

#[cfg(test)]
mod tests;

use sqlx::migrate::Migrator;

pub static MIGRATIONS: Migrator = sqlx::migrate!();
