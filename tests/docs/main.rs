//! What the documents say of the code is what the code says of itself.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod configure;
mod events;
mod performance;
mod threats;
