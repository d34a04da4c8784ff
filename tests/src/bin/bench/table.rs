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

/// What a measurement must keep to.
struct Bar {
    text: String,
    met: bool,
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
        let bar = Bar { text: format!("at most {}", show(bar)), met: value <= bar };
        self.rows.push(Row { what: what.into(), measured: show(value), bar: Some(bar) });
    }

    /// A number that must not be lower than `bar`.
    pub fn at_least(
        &mut self,
        what: impl Into<String>,
        value: f64,
        bar: f64,
        show: impl Fn(f64) -> String,
    ) {
        let bar = Bar { text: format!("at least {}", show(bar)), met: value >= bar };
        self.rows.push(Row { what: what.into(), measured: show(value), bar: Some(bar) });
    }

    /// Whether every bar was met.
    pub fn passes(&self) -> bool {
        self.rows.iter().filter_map(|row| row.bar.as_ref()).all(|bar| bar.met)
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = vec![[self.service, "measured", "bar", ""].map(str::to_owned)];
        for Row { what, measured, bar } in &self.rows {
            let (bar, verdict) = match bar {
                Some(Bar { text, met: true }) => (text.as_str(), "met"),
                Some(Bar { text, met: false }) => (text.as_str(), "MISSED"),
                None => ("", ""),
            };
            lines.push([what, measured, bar, verdict].map(str::to_owned));
        }
        let width = |column: usize| {
            let cells = lines.iter().map(|line| line[column].chars().count());
            cells.max().unwrap_or_default()
        };
        let [what, measured, bar, verdict] = [width(0), width(1), width(2), width(3)];
        for (index, line) in lines.iter().enumerate() {
            let [a, b, c, d] = line;
            writeln!(f, "| {a:<what$} | {b:>measured$} | {c:<bar$} | {d:<verdict$} |")?;
            if index == 0 {
                let dashes = |count| "-".repeat(count);
                writeln!(
                    f,
                    "|-{}-|-{}:|-{}-|-{}-|",
                    dashes(what),
                    dashes(measured),
                    dashes(bar),
                    dashes(verdict)
                )?;
            }
        }
        Ok(())
    }
}
