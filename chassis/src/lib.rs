//! What every service is bolted onto: configuration, serving, stopping, callers,
//! errors, telemetry, ids, and the ways to Postgres, Redis and the other services.
//!
//! Code belongs here once two services need it, and not before.

mod args;
mod id;
mod places;
mod status;
mod tenant;
pub mod auth;
pub mod database;
pub mod redis;
pub mod schema;
pub mod telemetry;
pub mod tls;
mod request_id;
mod serve;
mod stop;
mod together;
mod peer;

pub use args::{Args, Command, seconds};
pub use auth::{Auth, Caller, caller};
pub use id::ParseIdError;
pub use peer::{FORWARDED, Peer, hear_out};
pub use places::{Place, Places};
pub use redis::Redis;
pub use request_id::{RequestId, request_id};
pub use serve::{Server, stopping, time_left};
pub use status::{database_error, internal, invalid, overloaded, status, unavailable};
pub use stop::stop_signal;
pub use tenant::Tenant;

/// Turns are made of many small pieces that live shortly and on several threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What [`id!`] needs from inside other crates.
#[doc(hidden)]
pub mod reexport {
    pub use crate::id::{decode, encode};
    pub use tonic::codec::CompressionEncoding::Gzip;
    pub use {serde, sqlx, uuid};
}
