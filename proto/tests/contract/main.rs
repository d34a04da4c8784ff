//! What the contracts promise beside their types: the JSON form of what is exported, and comments
//! that say the truth.

// Here a helper that fails is a test that fails.
#![allow(clippy::unwrap_used)]

mod comments;
mod schema;
mod filled;
mod schemas;
mod json;
mod reasons;
