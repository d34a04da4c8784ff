//! Schedules, webhooks and wake-ups: everything that starts a turn but a person.
//!
//! The modules below are in reading order: what a trigger is and when it is due; what becomes of
//! an occasion to fire; how both are kept; how firings are taken in and delivered; what fires by
//! itself; then how the world reaches them.

mod words;
mod ids;
mod clock;
mod schedule;
mod trigger;
mod template;
mod webhook;
mod secret;
mod sealed;
mod firing;
mod store;
mod metrics;
mod sessions;
mod deliver;
mod fire;
mod scheduler;
mod credential;
mod mcp;
mod http;
mod api;
mod serve;
mod error;
mod config;
mod time;

pub use config::Config;
pub use serve::{migrate, serve};
pub use store::MIGRATIONS;
