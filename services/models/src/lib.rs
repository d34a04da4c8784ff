//! Calls language models for the other services: chooses one, keeps within limits and
//! budgets, streams its answer, and says what it cost.
//!
//! The modules below are in reading order: what is asked; who can answer it and how they
//! are; those who answer, and the one that is built in; what a call may take and how that
//! is counted and kept; then how the world reaches them.

mod prompt;
mod tokens;
mod usage;
mod catalogue;
mod breaker;
mod health;
mod routing;
mod provider;
mod script;
mod facts;
mod limit;
mod moment;
mod request;
mod counters;
mod store;
mod bus;
mod ledger;
mod admission;
mod generate;
mod soon;
mod joined;
mod api;
mod serve;
mod error;
mod config;
mod time;

pub use config::Config;
pub use serve::{migrate, serve};
pub use store::MIGRATIONS;
