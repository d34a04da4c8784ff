use std::time::Duration;

/// Durations, to be asked how long most of them took.
#[derive(Debug, Default)]
pub struct Quantiles(Vec<Duration>);

impl Quantiles {
    pub fn extend(&mut self, more: impl IntoIterator<Item = Duration>) {
        self.0.extend(more);
    }

    pub fn push(&mut self, duration: Duration) {
        self.0.push(duration);
    }

    /// The time within which `part` of them were over, in milliseconds.
    pub fn at(&self, part: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort();
        let index = (sorted.len() as f64 * part) as usize;
        let found = sorted.get(index).or(sorted.last());
        found.map_or(f64::NAN, |duration| duration.as_secs_f64() * 1000.0)
    }

    pub fn p50(&self) -> f64 {
        self.at(0.5)
    }

    pub fn p99(&self) -> f64 {
        self.at(0.99)
    }
}
