//! How full a workspace is.

use std::{
    sync::{Mutex, MutexGuard},
    time::{Duration, Instant},
};

use tokio_util::sync::CancellationToken;

use crate::files::{Used, Workspace};

/// What a workspace may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub bytes: u64,
    pub files: u64,
}

/// Counting may take a twentieth of the time: what was counted is believed for so many times as
/// long as it took.
const PATIENCE: u32 = 20;

/// At least this long, where nothing but us writes.
const FRESH: Duration = Duration::from_secs(1);

/// How often somebody looks while a command runs.
const PERIOD: Duration = Duration::from_millis(500);

/// What is known of how full a workspace is.
#[derive(Debug)]
pub struct Gauge {
    pub limits: Limits,
    reading: Mutex<Reading>,

    /// Held by whoever counts.
    counting: Mutex<()>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Reading {
    used: Used,
    at: Option<Instant>,
    took: Duration,
}

impl Gauge {
    pub fn new(limits: Limits) -> Gauge {
        Gauge { limits, reading: Mutex::default(), counting: Mutex::default() }
    }

    /// Counts, or waits for somebody who begins to.
    pub fn measure(&self, workspace: &Workspace) -> std::io::Result<Used> {
        let asked = Instant::now();
        let _counting = self.counting.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let reading = *self.lock();
        if reading.at.is_some_and(|at| at >= asked) {
            return Ok(reading.used);
        }
        let begun = Instant::now();
        let used = workspace.measure(&CancellationToken::new())?;
        let took = begun.elapsed();
        *self.lock() = Reading { used, at: Some(begun), took };
        Ok(used)
    }

    /// Counts, unless somebody did so a moment ago.
    pub fn recent(&self, workspace: &Workspace, at_least: Duration) -> std::io::Result<Used> {
        let reading = *self.lock();
        let good_for = at_least.max(reading.took * PATIENCE);
        match reading.at {
            Some(at) if at.elapsed() < good_for => Ok(reading.used),
            _ => self.measure(workspace),
        }
    }

    /// Whether so much more fits; if it does, it counts from now on.
    pub fn take(&self, workspace: &Workspace, bytes: u64, files: u64) -> std::io::Result<bool> {
        let mut used = self.recent(workspace, FRESH)?;
        if !self.fits(&used, bytes, files) {
            // What was replaced or deleted since is not known yet.
            used = self.measure(workspace)?;
        }
        let fits = self.fits(&used, bytes, files);
        if fits {
            let mut reading = self.lock();
            reading.used.bytes += bytes;
            reading.used.files += files;
        }
        Ok(fits)
    }

    fn fits(&self, used: &Used, bytes: u64, files: u64) -> bool {
        let limits = &self.limits;
        !used.hidden && used.bytes + bytes <= limits.bytes && used.files + files <= limits.files
    }

    /// Whether a command may begin: a little over the quota it may, to clean up.
    pub fn admits(&self, used: &Used) -> bool {
        let a_tenth_more = |limit: u64| limit.saturating_add(limit / 10);
        !used.hidden
            && used.bytes <= a_tenth_more(self.limits.bytes)
            && used.files <= a_tenth_more(self.limits.files)
    }

    /// Whether a command has gone too far that began with `before`: what was too much then may
    /// stay, but not grow.
    pub fn overflows(&self, before: &Used, now: &Used) -> bool {
        now.hidden
            || now.bytes > self.limits.bytes.max(before.bytes)
            || now.files > self.limits.files.max(before.files)
    }

    /// When to look at a command again.
    pub fn period(&self) -> Duration {
        PERIOD.max(self.lock().took * PATIENCE)
    }

    /// Somebody wrote whom we cannot count.
    pub fn forget(&self) {
        self.lock().at = None;
    }

    fn lock(&self) -> MutexGuard<'_, Reading> {
        self.reading.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn used(bytes: u64, files: u64) -> Used {
        Used { bytes, files, hidden: false }
    }

    #[test]
    fn a_full_workspace_may_be_cleaned_up_but_not_filled() {
        let gauge = Gauge::new(Limits { bytes: 1000, files: 100 });
        for (now, admitted) in [
            (used(1000, 100), true),
            (used(1100, 110), true),
            (used(1101, 1), false),
            (used(1, 111), false),
            (Used { hidden: true, ..used(1, 1) }, false),
        ] {
            assert_eq!(gauge.admits(&now), admitted, "{now:?}");
        }
        for (before, now, over) in [
            (used(10, 10), used(1000, 100), false),
            (used(10, 10), used(1001, 10), true),
            (used(10, 10), used(10, 101), true),
            (used(1050, 10), used(1050, 10), false),
            (used(1050, 10), used(1051, 10), true),
        ] {
            assert_eq!(gauge.overflows(&before, &now), over, "{before:?} {now:?}");
        }
    }

    #[test]
    fn what_was_deleted_makes_room_at_once() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("large"), vec![1; 64 * 1024]).unwrap();
        let workspace = Workspace::at(folder.path()).unwrap();
        let gauge = Gauge::new(Limits { bytes: 100 * 1024, files: 10 });
        assert!(gauge.take(&workspace, 30 * 1024, 1).unwrap());
        assert!(!gauge.take(&workspace, 60 * 1024, 1).unwrap());
        fs::remove_file(folder.path().join("large")).unwrap();
        assert!(gauge.take(&workspace, 60 * 1024, 1).unwrap());
    }
}
