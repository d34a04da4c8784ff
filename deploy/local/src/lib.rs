//! A whole Windlass on one machine: a private Postgres and Redis, and the four
//! services as real processes that can be killed, paused and restarted.
//!
//! `make up` shows it to a person, `with-servers` lends the two servers to a test
//! run, and the scenario tests use [`Servers`] and [`Fleet`] directly.
//!
//! This is for laptops and CI. Linux only: it leans on `setpriv` of util-linux.

mod process;
mod port;
mod keep;
mod cluster;
mod postgres;
mod redis;
mod servers;
mod service;
mod replica;
mod ground;
mod plan;
mod fleet;
mod usage;
pub mod record;

pub use fleet::Fleet;
pub use keep::{dir as data_dir, text as keep_private};
pub use plan::Plan;
pub use postgres::Postgres;
pub use process::Process;
pub use redis::Redis;
pub use replica::Replica;
pub use servers::Servers;
pub use service::Service;
pub use usage::{cpu_seconds, private_bytes, resident_bytes};
