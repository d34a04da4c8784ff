//! The splitter against bash itself.

use std::{
    fs,
    process::{Command, Stdio},
};

use proptest::prelude::*;

use super::{properties::nonsense, *};

/// The names of all programs that bash starts for a line. There are none to be found, so each
/// of them ends in a handler that writes it down.
fn started(line: &str) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let work = folder.path().join("work");
    fs::create_dir(&work).unwrap();
    let handler = "() { printf '%s\\0' \"$1\" >> \"$STARTED\"; return 1; }";
    Command::new("timeout")
        .args(["5", "bash", "-c", &format!("PATH=/nowhere; {line}")])
        .current_dir(&work)
        .env("BASH_FUNC_command_not_found_handle%%", handler)
        .env("STARTED", &log)
        .env("HOME", &work)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    let log = fs::read(log).unwrap_or_default();
    let names = log.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names.map(|name| String::from_utf8_lossy(name).into_owned()).collect()
}

/// A name that bash starts and that no part admits to.
fn missed(line: &str) -> Option<String> {
    let parts = Line::split(&format!("PATH=/nowhere; {line}")).parts;
    if parts.iter().any(|part| part.shown().certain == 0) {
        return None;
    }
    let known = |name: &String| parts.iter().any(|part| part.words[0].value() == *name);
    started(line).into_iter().find(|name| !known(name))
}

#[test]
fn bash_starts_what_is_found() {
    let line =
        "a; (b) && c || { d; } | e $(f `g`) \"${x:-$(h)}\" <<E\n$(i)\nE\nx=(`j`); eval 'k; l'";
    let mut names = started(line);
    names.sort();
    assert_eq!(names.join(""), "abdefghijkl");
    assert_eq!(missed(line), None);
}

/// Lines that bash runs without complaint.
fn sensible() -> impl Strategy<Value = String> {
    let name =
        || prop::sample::select(vec!["a", "b", "'c'", "\\d", "e\"f\"", "x=1 g", "command h"]);
    let command = name().prop_map(str::to_owned);
    command.prop_recursive(4, 24, 3, move |inner| {
        let frames = vec![
            ("", ""),
            ("(", ")"),
            ("{ ", "; }"),
            ("a $(", ")"),
            ("a \"$(", ")\""),
            ("a `", "`"),
            ("if ", "; then b; fi"),
            ("for i in 1 2; do ", "; done"),
            ("a <(", ")"),
            ("! ", ""),
            ("case x in (y) a;; x) ", ";; esac"),
            ("[[ -n x ]] && ", ""),
            ("eval '", "'"),
            ("a ${x:-$(", ")}"),
            ("a <<E\n$(", ")\nE"),
            ("a <<'E'\nb\nE\n", ""),
            ("y=$(", ")"),
            ("y=(1 $(", "))"),
            ("time ", ""),
            ("while ", "; do a; done"),
            ("# b\n", " # c"),
            ("a \\\n  b; ", ""),
            ("> z ", ""),
            ("2>&1 ", ""),
            ("a <<< $(", ")"),
            ("trap '", "' EXIT"),
        ];
        let framed = (prop::sample::select(frames), inner.clone())
            .prop_map(|((before, after), line)| format!("{before}{line}{after}"));
        let separator = prop::sample::select(vec!["; ", " && ", " || ", " | ", "\n", " & "]);
        let joined = (inner.clone(), separator, inner)
            .prop_map(|(left, separator, right)| format!("{left}{separator}{right}"));
        prop_oneof![2 => framed, 1 => joined]
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        // A process is slower than a function.
        cases: ProptestConfig::default().cases.div_ceil(8),
        ..ProptestConfig::default()
    })]

    #[test]
    fn bash_starts_nothing_that_is_no_part(line in prop_oneof![nonsense(), sensible()]) {
        // Functions could call themselves for ever.
        let defines = line.contains("function") || line.replace([' ', '\n', '\t'], "").contains("()");
        if !defines && !line.contains('\0') {
            prop_assert_eq!(missed(&line), None);
        }
    }
}
