//! Durable sessions: the log, the turn queue, the loop, and the views of them.
//!
//! The modules below are in reading order: first the rules, which touch nothing; then
//! where sessions are kept; then what runs turns; then how the world reaches them.

mod ids;
mod time;
mod message;
mod hook;
mod subagent;
mod turn;
mod view;
mod agent;
mod memory;
mod surroundings;
mod compaction;
mod offer;
mod search;
mod prompt;
mod judge;
mod pending;
mod seal;
mod retention;
mod archive;
mod task;
mod job;
mod benchmark;
mod evidence;
mod store;
mod lanes;
mod readers;
mod works;
mod bus;
mod flusher;
mod hub;
mod lifecycle;
mod driven;
mod recent;
mod shipped;
mod host;
mod passing;
mod metrics;
mod driver;
mod worker;
mod submit;
mod work;
mod patrol;
mod recovery;
mod heart;
mod purge;
mod facts;
mod courier;
mod keeper;
mod reader;
mod api;
mod error;
mod config;
mod serve;
#[cfg(test)]
mod testing;

pub use config::{Command, Config};
pub use evidence::{Failure, PublicKey, Report, Signature, new_key, verify};
pub use serve::{migrate, mint_key, serve};
pub use store::MIGRATIONS;
