//! The system from outside: what a product team sees of it, and the verbs that the
//! scenarios are written in.
//!
//! A [`World`] is a whole Windlass of real processes. A [`Client`] calls it as anybody
//! would, and a [`Session`] is one conversation of that client's. Whatever goes wrong in
//! a verb fails the test that used it; calls that should fail go through the generated clients.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod world;
mod client;
mod insider;
mod session;
mod change;
mod archive;
mod pack;
mod fold;
mod events;
mod contract;
mod wire;
mod collector;
mod explain;
mod reader;
mod submit;
mod witness;
mod work;
mod proxy;
mod pairs;
mod sender;
mod push;
mod upstream;
pub mod chaos;

pub use archive::request;
pub use client::{Calls, Client};
pub use collector::{Collector, Span};
pub use contract::{Method, methods};
pub use events::{Events, text_of};
pub use explain::{explain, reason};
pub use fold::Fold;
pub use pack::{Checked, Pack, check, new_key, program};
pub use pairs::{Pairs, REPLICAS};
pub use proxy::Proxy;
pub use push::Push;
pub use reader::{Reader, is_passing};
pub use sender::{Answer, Sender, hmac_of, signed};
pub use session::{Session, request_id, says};
pub use submit::submit;
pub use upstream::{Act, Heard, Upstream};
pub use wire::Reply;
pub use witness::Witness;
pub use work::item;
pub use world::{LEASE, World, plan};
