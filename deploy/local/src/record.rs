//! Which processes an `up` started, so that a `down` can end what it left behind.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::keep;

/// A process as it was when we started it. The time of its start tells it from
/// a later one that was given the same id.
#[derive(Debug, PartialEq)]
pub struct Entry {
    pub name: String,
    pid: u32,
    started: u64,
}

impl Entry {
    /// `None` if there is no such process any more.
    pub fn of(name: &str, pid: u32) -> Option<Entry> {
        Some(Entry { name: name.to_owned(), pid, started: started(pid)? })
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    pub fn runs(&self) -> bool {
        started(self.pid) == Some(self.started)
    }

    /// Asks the process to end, and after `grace` makes it. `false`: it was over already.
    pub fn end(&self, grace: Duration) -> bool {
        let ran = self.runs();
        for (signal, patience) in [(Signal::SIGTERM, grace), (Signal::SIGKILL, grace)] {
            let deadline = Instant::now() + patience;
            if self.runs() {
                kill(Pid::from_raw(self.pid.cast_signed()), signal).ok();
            }
            while self.runs() && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(20));
            }
        }
        ran
    }
}

pub fn save(path: &Path, entries: &[Entry]) -> Result<()> {
    let lines = entries.iter().map(|entry| {
        let Entry { name, pid, started } = entry;
        format!("{name} {pid} {started}\n")
    });
    keep::text(path, &lines.collect::<String>())
}

/// What was saved; nothing if nothing was.
pub fn load(path: &Path) -> Vec<Entry> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let entry = |line: &str| {
        let mut words = line.split(' ');
        let name = words.next()?.to_owned();
        Some(Entry { name, pid: words.next()?.parse().ok()?, started: words.next()?.parse().ok()? })
    };
    text.lines().filter_map(entry).collect()
}

/// When a process started, in ticks since the machine did. A zombie has ended.
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is a name in brackets and may contain anything, brackets too.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    let state = fields.next()?;
    let started = fields.nth(18)?.parse().ok()?;
    (state != "Z").then_some(started)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn only_the_process_that_was_recorded_is_ended() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let entry = Entry::of("sleep", child.id()).unwrap();
        let stranger =
            Entry { started: entry.started + 1, ..Entry::of("sleep", child.id()).unwrap() };

        assert!(!stranger.end(Duration::from_secs(1)));
        assert!(entry.runs());
        assert!(entry.end(Duration::from_secs(10)));
        child.wait().unwrap();
        assert!(!entry.end(Duration::from_secs(1)));
    }

    #[test]
    fn a_record_can_be_read_back() {
        let dir = keep::scratch().unwrap();
        let path = dir.path().join("processes");
        assert_eq!(load(&path), []);

        let entries = [Entry::of("self", std::process::id()).unwrap()];
        save(&path, &entries).unwrap();
        assert_eq!(load(&path), entries);
    }
}
