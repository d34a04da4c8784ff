//! The control group of a sandbox, which counts what a limit per process cannot: the memory and
//! the processes of the whole tree.
//!
//! It is made by the service, below the one that the service is in, because nobody in the
//! sandbox may be able to change or to leave it. `sandbox-init` joins it before it gives up what
//! rights it has.

mod place;

use std::{
    fs, io,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Duration,
};

use crate::{
    profile::Limits,
    report::{Layer, Violation},
};

pub use place::Place;
use place::Version;

/// How long a group that still has processes is waited for, in steps, before it is left for the
/// next start of the service to remove.
const STEP: Duration = Duration::from_millis(20);
const STEPS: u32 = 500;

#[derive(Debug)]
pub struct Cgroup {
    version: Version,
    memory: PathBuf,
    processes: PathBuf,
    limits: Limits,
}

impl Cgroup {
    /// Makes a group without limits: nothing runs in it before it has been given some.
    pub fn create(place: &Place) -> io::Result<Cgroup> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}{}-{number}", place::PREFIX, process::id());
        let cgroup = Cgroup {
            version: place.version,
            memory: place.memory.join(&name),
            processes: place.processes.join(&name),
            limits: Limits::default(),
        };
        // From here on it is removed when something fails.
        for directory in cgroup.directories() {
            fs::create_dir(directory)?;
        }
        Ok(cgroup)
    }

    /// Fails where more is in use already than is to be allowed.
    pub fn limit(&mut self, limits: &Limits) -> io::Result<()> {
        self.limits = limits.clone();
        let bytes = self.limits.memory_bytes.to_string();
        // Swap would only make it slower to reach the limit. Not every kernel counts it.
        match self.version {
            Version::One => {
                fs::write(self.memory.join("memory.limit_in_bytes"), &bytes)?;
                let _ = fs::write(self.memory.join("memory.memsw.limit_in_bytes"), &bytes);
            }
            Version::Two => {
                fs::write(self.memory.join("memory.max"), &bytes)?;
                let _ = fs::write(self.memory.join("memory.swap.max"), "0");
            }
        }
        fs::write(self.processes.join("pids.max"), self.limits.processes.to_string())
    }

    /// The files to which a process writes `0` in order to join.
    pub fn doors(&self) -> Vec<PathBuf> {
        self.directories().map(|directory| directory.join("cgroup.procs")).collect()
    }

    /// What the kernel has refused or ended on behalf of the limits. It counts this itself.
    pub fn violations(&self) -> Vec<Violation> {
        let kills = match self.version {
            Version::One => count(&self.memory.join("memory.oom_control"), "oom_kill"),
            Version::Two => count(&self.memory.join("memory.events"), "oom_kill"),
        };
        let forks = count(&self.processes.join("pids.events"), "max");
        let bytes = self.limits.memory_bytes;
        let processes = self.limits.processes;
        let memory = format!("memory limit of {bytes} bytes: {kills} processes killed");
        let process = format!("limit of {processes} processes: {forks} not started");
        [(kills, memory), (forks, process)]
            .into_iter()
            .filter(|(times, _)| *times > 0)
            .map(|(_, detail)| Violation { layer: Layer::Cgroup, detail })
            .collect()
    }

    fn directories(&self) -> impl Iterator<Item = &Path> {
        let processes = (self.processes != self.memory).then_some(self.processes.as_path());
        [self.memory.as_path()].into_iter().chain(processes)
    }
}

/// Removes the group. What was in it has ended, or is about to.
impl Drop for Cgroup {
    fn drop(&mut self) {
        let left: Vec<PathBuf> =
            self.directories().filter(|path| !removed(path)).map(PathBuf::from).collect();
        if !left.is_empty() {
            thread::spawn(move || {
                for _ in 0..STEPS {
                    thread::sleep(STEP);
                    if left.iter().all(|path| removed(path)) {
                        return;
                    }
                }
            });
        }
    }
}

fn removed(path: &Path) -> bool {
    match fs::remove_dir(path) {
        Ok(()) => true,
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// The number behind a name in one of the kernel's tables; zero where there is no such table.
fn count(file: &Path, name: &str) -> u64 {
    let table = fs::read_to_string(file).unwrap_or_default();
    table
        .lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(key, _)| *key == name)
        .and_then(|(_, number)| number.trim().parse().ok())
        .unwrap_or(0)
}
