//! Loopback ports that nobody listens on.

use std::{
    net::TcpListener,
    sync::{
        OnceLock,
        atomic::{AtomicU16, Ordering},
    },
};

use anyhow::{Context, Result};

/// Below the range the kernel takes outgoing ports from, so that the port of a
/// process that was killed is still there when it is restarted.
const FIRST: u16 = 10_000;
const COUNT: u16 = 20_000;

/// A port that is free and that this process has not handed out before. Each
/// process starts counting somewhere else, so that parallel ones rarely meet.
pub fn free() -> Result<u16> {
    static NEXT: OnceLock<AtomicU16> = OnceLock::new();
    let next = NEXT.get_or_init(|| AtomicU16::new(rand::random()));
    (0..COUNT)
        .map(|_| FIRST + next.fetch_add(1, Ordering::Relaxed) % COUNT)
        .find(|port| is_free(*port))
        .context("no free loopback port")
}

/// The port that was used before or is wanted for another reason, if it is free, and any other if not.
pub fn prefer(port: Option<u16>) -> Result<u16> {
    match port {
        Some(port) if is_free(port) => Ok(port),
        _ => free(),
    }
}

fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok()
}
