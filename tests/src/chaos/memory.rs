//! How much memory processes have of their own.

use local::{Fleet, Service, private_bytes};
use tokio::time::{Duration, Instant};

/// After so long, and a third of its life, a process has met everything that there is, and what it
/// keeps for later is there: beside a compiler that takes longer.
const WARM: Duration = Duration::from_secs(60);
const WARM_PART: u32 = 3;

/// How long it is looked at then, and again in the end: as long as a round, in which everybody rests
/// once. What is under way is not in the least that it had meanwhile.
const WINDOW: Duration = Duration::from_secs(60);

/// How long a process must have lived for its memory to say something.
const LONG: Duration = Duration::from_secs(180);

/// A run of so long has somebody in each service who lived for long.
const ENOUGH: Duration = Duration::from_secs(240);

/// How much more a process may have in the end than when it was warm. Without a leak it comes and
/// goes by some six megabytes, with what is going on. With two replicas a process runs some two or
/// three turns a second, so this sees a leak of ten kilobytes for each turn in ten minutes, and of
/// twenty in five.
const MOST_KIB: u64 = 10 * 1024;

#[derive(Default)]
pub struct Memory(Vec<Life>);

/// One process, from its start to the last time that it was looked at.
struct Life {
    name: String,
    pid: u32,
    /// How old it was when it had so many KiB.
    samples: Vec<(Duration, u64)>,
    begun: Instant,
}

impl Memory {
    pub fn sample(&mut self, fleet: &mut Fleet) {
        let now = Instant::now();
        for (name, pid) in fleet.pids() {
            let Some(bytes) = private_bytes(pid) else { continue };
            let known = self.0.iter().position(|life| life.pid == pid && life.name == name);
            let index = known.unwrap_or_else(|| {
                self.0.push(Life { name, pid, samples: vec![], begun: now });
                self.0.len() - 1
            });
            let life = &mut self.0[index];
            life.samples.push((now - life.begun, bytes / 1024));
        }
    }

    /// Panics when a process has grown, or when nobody was looked at for long enough to know.
    pub fn is_flat(&self, length: Duration) {
        for life in self.long() {
            let (name, warm, last) = (&life.name, life.warm_kib(), life.last_kib());
            let grown = last.saturating_sub(warm);
            assert!(
                grown <= MOST_KIB,
                "{name} grows: {warm} KiB when it was warm, {last} in the end; {}",
                life.course()
            );
        }
        for service in Service::ALL.into_iter().filter(|_| length >= ENOUGH) {
            let watched = self.long().any(|life| life.name.starts_with(service.name()));
            assert!(watched, "no process of {service} lived for {LONG:?}");
        }
    }

    /// The processes that lived for long, in words.
    pub fn lines(&self) -> Vec<String> {
        let line = |life: &Life| {
            let age = life.age().as_secs();
            let [warm, last] = [life.warm_kib(), life.last_kib()].map(|kib| kib as f64 / 1024.0);
            format!("{:<10} {warm:6.1} MiB when warm, {last:6.1} after {age} s", life.name)
        };
        self.long().map(line).collect()
    }

    fn long(&self) -> impl Iterator<Item = &Life> {
        self.0.iter().filter(|life| life.age() >= LONG)
    }
}

impl Life {
    fn age(&self) -> Duration {
        self.samples.last().map_or(Duration::ZERO, |(age, _)| *age)
    }

    fn warm_kib(&self) -> u64 {
        let warm = WARM.max(self.age() / WARM_PART);
        // Nobody looks while promises are checked.
        let sample = self.samples.iter().find(|(age, _)| *age >= warm);
        self.least(sample.map_or(warm, |(age, _)| *age))
    }

    /// What it had once in a while.
    fn course(&self) -> String {
        let mut lines = Vec::new();
        let mut next = Duration::ZERO;
        for (age, kib) in self.samples.iter().filter(|(age, _)| age.as_secs() > 0) {
            if *age >= next {
                lines.push(format!("{} s {kib}", age.as_secs()));
                next = *age + WINDOW / 3;
            }
        }
        lines.join(", ")
    }

    fn last_kib(&self) -> u64 {
        self.least(self.age() - WINDOW)
    }

    /// What it had at least while it was looked at from this age on.
    fn least(&self, from: Duration) -> u64 {
        let looked = self.samples.iter().filter(|(age, _)| *age >= from && *age <= from + WINDOW);
        looked.map(|(_, kib)| *kib).min().unwrap_or_default()
    }
}
