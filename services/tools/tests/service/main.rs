//! The tools service from outside: over gRPC, on a real Postgres, in real sandboxes.

// Here a helper that fails is a test that fails.
#![allow(clippy::unwrap_used)]

mod bash;
mod bucket;
mod calls;
mod changes;
mod egress;
mod fence;
mod file_tools;
mod files;
mod hooks;
mod hostile;
mod hostile_archives;
mod imports;
mod mcp;
mod mcp_stdio;
mod policies;
mod quota;
mod races;
mod receiver;
mod relaxed;
mod replicas;
mod searches;
mod site;
mod snapshots;
mod transfers;
mod web_fetch;
mod web_search;
mod workspaces;
mod world;
