//! How much memory processes have.

use local::{Fleet, resident_bytes};
use tokio::time::{Duration, Instant};

/// After so long a process has met everything that there is, and what it keeps for later is there.
const WARM: Duration = Duration::from_secs(30);

/// How long a process must have lived behind that for its memory to say something.
const LONG: Duration = Duration::from_secs(30);

/// How much more it may have in the end. Its allocator, its caches and what is under way at an
/// instant come and go within this; a leak of one kilobyte for each turn would pass it within
/// minutes.
const GROWTH: f64 = 1.25;
const NOISE_KIB: u64 = 12 * 1024;

#[derive(Default)]
pub struct Memory(Vec<Life>);

/// One process, from its start to the last time that it was looked at.
struct Life {
    name: String,
    pid: u32,
    begun: Instant,
    seen: Instant,
    warm_kib: Option<u64>,
    last_kib: u64,
}

impl Memory {
    pub fn sample(&mut self, fleet: &mut Fleet) {
        let now = Instant::now();
        for (name, pid) in fleet.pids() {
            let Some(bytes) = resident_bytes(pid) else { continue };
            let kib = bytes / 1024;
            let life = match self.0.iter_mut().find(|life| life.pid == pid && life.name == name) {
                Some(life) => life,
                None => {
                    let (begun, seen) = (now, now);
                    let life = Life { name, pid, begun, seen, warm_kib: None, last_kib: kib };
                    self.0.push(life);
                    continue;
                }
            };
            life.seen = now;
            life.last_kib = kib;
            if life.warm_kib.is_none() && now - life.begun >= WARM {
                life.warm_kib = Some(kib);
            }
        }
    }

    /// Panics when a process has grown.
    pub fn is_flat(&self) {
        for (life, warm) in self.long() {
            let most = (warm as f64 * GROWTH) as u64 + NOISE_KIB;
            let (name, last) = (&life.name, life.last_kib);
            assert!(last <= most, "{name} grows: {warm} KiB when it was warm, {last} in the end");
        }
    }

    /// The processes that lived for long, in words.
    pub fn lines(&self) -> Vec<String> {
        let line = |(life, warm): (&Life, u64)| {
            let age = (life.seen - life.begun).as_secs();
            let [warm, last] = [warm, life.last_kib].map(|kib| kib as f64 / 1024.0);
            format!("{:<10} {warm:6.1} MiB when warm, {last:6.1} after {age} s", life.name)
        };
        self.long().map(line).collect()
    }

    fn long(&self) -> impl Iterator<Item = (&Life, u64)> {
        let long = self.0.iter().filter(|life| life.seen - life.begun >= WARM + LONG);
        long.filter_map(|life| Some((life, life.warm_kib?)))
    }
}
