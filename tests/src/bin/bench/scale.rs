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
    /// How many sessions there are in the end, and how many messages one has.
    pub grown_sessions: i64,
    pub grown_messages: i64,
    /// How many readers and parked turns wait.
    pub waiting: usize,
    /// How often a session is opened.
    pub openings: usize,
    /// How many commands are started.
    pub spawns: usize,
    /// How much one of them prints.
    pub printed_bytes: u64,
    /// How many files are searched.
    pub files: usize,
    /// How many schedules wait for a day that is far away.
    pub dormant: i64,
    /// How many seconds schedules are due for.
    pub due_seconds: i64,
    /// How often a provider is called.
    pub calls: usize,
}

impl Scale {
    /// What the bars are about.
    pub const FULL: Scale = Scale {
        sessions: 64,
        load: Duration::from_secs(5),
        turns: 10_000,
        grown_sessions: 10_000,
        grown_messages: 100_000,
        waiting: 500,
        openings: 100,
        spawns: 400,
        printed_bytes: 250_000_000,
        files: 20_000,
        dormant: 1_000_000,
        due_seconds: 60,
        calls: 2_000,
    };

    /// Just enough to see that everything is measured.
    pub const SMALL: Scale = Scale {
        sessions: 4,
        load: Duration::from_secs(1),
        turns: 200,
        grown_sessions: 200,
        grown_messages: 2_000,
        waiting: 50,
        openings: 10,
        spawns: 40,
        printed_bytes: 25_000_000,
        files: 2_000,
        dormant: 100_000,
        due_seconds: 6,
        calls: 100,
    };
}
