//! The table of attempts, `attempts.md`.

use std::{collections::BTreeSet, process::Command, thread};

use sandbox::Layer;

use crate::attempt::Barrier;

const TABLE: &str = include_str!("attempts.md");

/// At least so many ways out have been tried.
const LEAST: usize = 60;

/// The modules whose tests are attempts.
const MODULES: [&str; 8] =
    ["files", "floods", "inheritance", "kernel", "machine", "namespaces", "network", "processes"];

/// What the table says of an attempt: what stops it, and what is known of that afterwards.
pub fn row(barriers: &[Barrier], teller: Option<Layer>) -> String {
    let barriers: Vec<String> = barriers
        .iter()
        .map(|barrier| barrier.iter().map(|layer| layer.name()).collect::<Vec<_>>().join("+"))
        .collect();
    let stopped = match barriers.is_empty() {
        true => "nothing is handed on".to_owned(),
        false => barriers.join(", "),
    };
    let fact = match teller {
        Some(layer) => format!("`sandbox.violation` of {layer}"),
        None => "`sandbox.applied`".to_owned(),
    };
    format!("| {stopped} | {fact} |")
}

/// That the row of the running test is this one.
pub fn is_in(row: &str) {
    let thread = thread::current();
    // The name of the test, unless tests are run one by one.
    match thread.name() {
        Some(name) if name.contains("::") => {
            let line = format!("| {} {row}", words(name));
            assert!(TABLE.lines().any(|other| other == line), "not in attempts.md: {line}");
        }
        _ => (),
    }
}

fn words(name: &str) -> String {
    name.replace("::", ": ").replace('_', " ")
}

#[test]
fn the_table_has_every_attempt() {
    let listed = Command::new(std::env::current_exe().unwrap()).arg("--list").output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let attempts: BTreeSet<String> = listed
        .lines()
        .filter_map(|line| line.strip_suffix(": test"))
        .filter(|name| MODULES.iter().any(|module| name.starts_with(&format!("{module}::"))))
        .map(words)
        .collect();
    let rows: Vec<&str> =
        TABLE.lines().skip_while(|line| !line.starts_with("|-")).skip(1).collect();
    let named: BTreeSet<String> =
        rows.iter().filter_map(|row| Some(row.split(" | ").next()?[2..].to_owned())).collect();
    assert_eq!(named, attempts);
    assert_eq!(named.len(), rows.len(), "an attempt is in the table twice");
    assert!(named.len() >= LEAST, "only {} attempts", named.len());
}
