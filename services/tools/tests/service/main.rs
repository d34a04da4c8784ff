//! The tools service from outside: over gRPC, on a real Postgres, in real sandboxes.

// Here a helper that fails is a test that fails.
#![allow(clippy::unwrap_used)]

mod bash;
mod calls;
mod changes;
mod egress;
mod fence;
mod file_tools;
mod files;
mod hostile;
mod races;
mod searches;
mod site;
mod transfers;
mod web_fetch;
mod web_search;
mod world;
