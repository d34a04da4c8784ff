//! What Windlass promises, one file per promise: real processes, a real Postgres and
//! Redis, and nothing but the public API.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod first_status;
mod crash;
mod callers;
mod readme;
mod trace;
mod facts;
mod bad_input;
mod queue;
mod contract;
