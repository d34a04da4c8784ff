//! The tools service from outside: over gRPC, on a real Postgres, in real sandboxes.

// Here a helper that fails is a test that fails.
#![allow(clippy::unwrap_used)]

mod bash;
mod calls;
mod fence;
mod files;
mod world;
