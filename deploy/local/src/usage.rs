//! What a process uses, by the kernel's account.

use std::fs;

/// How many ticks the kernel counts in a second, on every machine there is.
const TICKS: f64 = 100.0;

/// How much memory a process has, in bytes. Nobody knows of one that has ended.
pub fn resident_bytes(pid: u32) -> Option<u64> {
    status(pid, "VmRSS:")
}

/// How much of it is its own: of its program it has what it used lately, as far as the kernel did
/// not want that back.
pub fn private_bytes(pid: u32) -> Option<u64> {
    status(pid, "RssAnon:")
}

fn status(pid: u32, field: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}

/// How long a process has kept cores busy, in seconds, without its children.
pub fn cpu_seconds(pid: u32) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind the name, which may have anything in it: state, and ten more before these two.
    let fields = stat.rsplit_once(") ")?.1;
    let ticks: Vec<f64> =
        fields.split(' ').skip(11).take(2).map(str::parse).collect::<Result<_, _>>().ok()?;
    Some(ticks.iter().sum::<f64>() / TICKS)
}
