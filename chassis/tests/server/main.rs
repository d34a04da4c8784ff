//! A small service on its chassis, seen from outside.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod rig;
mod probe;
mod keys;
mod tokens;
mod failures;
mod health;
mod peers;
mod encryption;
mod draining;
