use std::time::Duration;

/// How much of everything there is.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    /// How many sessions speak at once, when there are many.
    pub sessions: usize,
    /// How long they do.
    pub load: Duration,
    /// How many turns a long session has, of two messages each.
    pub turns: i64,
    /// How many readers and parked turns wait.
    pub waiting: usize,
    /// How often a session is opened.
    pub openings: usize,
}

impl Scale {
    /// What the bars are about.
    pub const FULL: Scale = Scale {
        sessions: 64,
        load: Duration::from_secs(5),
        turns: 10_000,
        waiting: 500,
        openings: 100,
    };

    /// Just enough to see that everything is measured.
    pub const SMALL: Scale =
        Scale { sessions: 4, load: Duration::from_secs(1), turns: 200, waiting: 50, openings: 10 };
}
