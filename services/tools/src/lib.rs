//! Runs tools for agents, in a sandbox.
//!
//! The modules below are in reading order: first what a call is and whether it may happen,
//! which touches nothing; then the tools and what they run in; then how calls are fenced, and
//! how the world reaches them.

mod call;
mod catalog;
mod evaluate;
mod judge;
mod decide;
mod policies;
mod hook;
mod hooks;
mod scope;
mod subject;
mod host;
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
mod web_fetch;
mod page;
mod web_search;
mod search;
mod blocking;
mod hosted;
mod mcp;
mod secrets;
mod progress;
mod output;
mod redact;
mod spool;
mod outputs;
mod printed;
mod processes;
mod text;
mod egress;
mod workspace;
mod workspaces;
mod files;
mod store;
mod placement;
mod forward;
mod execute;
mod metrics;
mod after;
mod facts;
mod api;
mod error;
mod config;
mod serve;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;

pub use config::Config;
pub use serve::{migrate, serve};
pub use store::MIGRATIONS;
