//! What is printed: a Markdown table that is readable as it is.

use std::fmt::{self, Display};

pub struct Table {
    /// What it is about.
    service: &'static str,
    rows: Vec<Row>,
}

struct Row {
    what: String,
    measured: String,
    bar: Option<Bar>,
}

/// What a measurement must keep to, or is to come to.
struct Bar {
    text: String,
    /// How much of it the measurement is: what must stay below stays below one.
    ratio: f64,
    kind: Kind,
    met: bool,
}

#[derive(PartialEq)]
enum Kind {
    /// The bench fails where it is missed.
    Bar,
    /// Where we want to come to.
    Goal,
}

impl Table {
    pub fn new(service: &'static str) -> Table {
        Table { service, rows: Vec::new() }
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// A number to know, which others are compared with.
    pub fn note(&mut self, what: impl Into<String>, measured: impl Into<String>) {
        self.rows.push(Row { what: what.into(), measured: measured.into(), bar: None });
    }

    /// A number that must not be higher than `bar`; `show` puts both into words.
    pub fn at_most(
        &mut self,
        what: impl Into<String>,
        value: f64,
        bar: f64,
        show: impl Fn(f64) -> String,
    ) {
        self.compare(what, value, bar, show, ("at most", value <= bar, Kind::Bar));
    }

    /// A number that must not be lower than `bar`.
    pub fn at_least(
        &mut self,
        what: impl Into<String>,
        value: f64,
        bar: f64,
        show: impl Fn(f64) -> String,
    ) {
        self.compare(what, value, bar, show, ("at least", value >= bar, Kind::Bar));
    }

    /// A number that is not yet below `goal` on every machine, and should be; ARCHITECTURE.md says
    /// why that is no bar.
    pub fn toward(
        &mut self,
        what: impl Into<String>,
        value: f64,
        goal: f64,
        show: impl Fn(f64) -> String,
    ) {
        self.compare(what, value, goal, show, ("at most", value <= goal, Kind::Goal));
    }

    fn compare(
        &mut self,
        what: impl Into<String>,
        value: f64,
        bar: f64,
        show: impl Fn(f64) -> String,
        (how, met, kind): (&str, bool, Kind),
    ) {
        let bar = Bar { text: format!("{how} {}", show(bar)), ratio: value / bar, kind, met };
        self.rows.push(Row { what: what.into(), measured: show(value), bar: Some(bar) });
    }

    /// Whether every bar was met.
    pub fn passes(&self) -> bool {
        let mut bars = self.rows.iter().filter_map(|row| row.bar.as_ref());
        bars.all(|bar| bar.met || bar.kind == Kind::Goal)
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = vec![[self.service, "measured", "bar", "of it", ""].map(str::to_owned)];
        for Row { what, measured, bar } in &self.rows {
            let verdict = bar.as_ref().map_or("", |bar| match (&bar.kind, bar.met) {
                (Kind::Bar, true) => "met",
                (Kind::Bar, false) => "MISSED",
                (Kind::Goal, true) => "goal, reached",
                (Kind::Goal, false) => "goal, not reached",
            });
            let ratio = bar.as_ref().map(|bar| format!("{:.2}", bar.ratio)).unwrap_or_default();
            let bar = bar.as_ref().map_or("", |bar| bar.text.as_str());
            lines.push([what, measured, bar, ratio.as_str(), verdict].map(str::to_owned));
        }
        let width = |column: usize| {
            let cells = lines.iter().map(|line| line[column].chars().count());
            cells.max().unwrap_or_default()
        };
        let [what, measured, bar, ratio, verdict] = [0, 1, 2, 3, 4].map(width);
        for (index, line) in lines.iter().enumerate() {
            let [a, b, c, d, e] = line;
            let cells = format!("{c:<bar$} | {d:>ratio$} | {e:<verdict$}");
            writeln!(f, "| {a:<what$} | {b:>measured$} | {cells} |")?;
            if index == 0 {
                let [a, b, c, d, e] =
                    [what, measured, bar, ratio, verdict].map(|count| "-".repeat(count));
                writeln!(f, "|-{a}-|-{b}:|-{c}-|-{d}:|-{e}-|")?;
            }
        }
        Ok(())
    }
}
