//! Schedules, webhooks and wake-ups: everything that starts a turn but a person.
//!
//! The contract is whole and none of it is built yet: every call is authenticated and
//! then answered `UNIMPLEMENTED` with a reason.

mod api;
mod serve;
mod config;

pub use config::Config;
pub use serve::serve;
