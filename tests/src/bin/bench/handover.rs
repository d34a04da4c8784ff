//! What this machine takes to wake another process and to be woken by it, which a turn does again and
//! again.

use std::{
    io::{Read as _, Write as _},
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context as _, Result};

use crate::quantiles::Quantiles;

const TIMES: usize = 5_000;

/// How long a byte takes to another process and back.
pub fn there_and_back() -> Result<Quantiles> {
    let mut echo = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut there = echo.stdin.take().context("nobody listens")?;
    let mut back = echo.stdout.take().context("nobody answers")?;
    let (mut byte, mut latencies) = ([0], Quantiles::default());
    for _ in 0..TIMES {
        let begun = Instant::now();
        there.write_all(&byte)?;
        back.read_exact(&mut byte)?;
        latencies.push(begun.elapsed());
    }
    drop(there);
    echo.wait()?;
    Ok(latencies)
}
