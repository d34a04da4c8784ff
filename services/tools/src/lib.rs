//! Runs tools for agents, in a sandbox.
//!
//! The modules below are in reading order: first what a call is and whether it may happen,
//! which touches nothing; then the tools and what they run in; then how calls are fenced, and
//! how the world reaches them.

mod call;
mod catalog;
mod evaluate;
mod judge;
mod scope;
mod subject;
mod rules;
mod pattern;
mod command;
mod outcome;
mod bash;
mod read;
mod excerpt;
mod media;
mod write;
mod edit;
mod replace;
mod glob;
mod grep;
mod file_tool;
mod blocking;
mod hosted;
mod progress;
mod output;
mod redact;
mod spool;
mod outputs;
mod printed;
mod processes;
mod text;
mod workspace;
mod files;
mod store;
mod execute;
mod facts;
mod api;
mod error;
mod config;
mod serve;

pub use config::Config;
pub use serve::serve;
pub use store::MIGRATIONS;
