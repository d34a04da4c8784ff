//! Tools of servers that speak the Model Context Protocol.
//!
//! A server is somebody else's program: whatever it says is bounded, cleaned and checked before
//! anybody sees it, and it can do nothing but answer calls of its tools.

#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod name;
mod schema;
mod describe;
mod content;
mod allowance;
mod lines;
mod guard;
mod stdio;
mod http;
mod client;
mod connect;
mod tool;
mod activity;
mod link;
mod servers;
mod watch;

use std::collections::BTreeMap;

pub use connect::Connector;
pub use servers::Servers;
pub use watch::{Wanted, Watch};

/// A server as it is configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// The prefix of its tools.
    pub id: String,
    pub address: Address,

    /// From the name of a variable or header to the name of the secret that is its value.
    pub secret_refs: BTreeMap<String, String>,

    /// Whether its annotations are believed.
    pub trusted: bool,
}

/// How a server is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// By running this in the sandbox.
    Command(String),
    Url(String),
}

/// How a server is doing, and what there is to say about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    Idle,
    Connected(String),
    Failed(String),
}

/// The longest message of a server, in bytes.
const LONGEST_MESSAGE: usize = 4 * 1024 * 1024;

/// What is said about the state of a server at most, in characters.
const LONGEST_DETAIL: usize = 1_000;

/// 1 to 32 characters of `[a-z0-9]`: without `_`, so that a tool's name begins with one server.
pub fn is_server_id(text: &str) -> bool {
    (1..=32).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}
