use std::{fs, path::Path};

use proto::event::v1::EVENT_NAMES;

const MARK: &str = "// Not written by this version.";

/// `session.end_job` puts these names together from the job's status.
const JOINED: [&str; 2] = ["job.completed", "job.failed"];

/// Whoever waits for an event that nobody writes waits for ever, so the contract says which it is.
#[test]
fn the_contract_marks_the_events_that_nobody_writes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let (mut rust, mut sql) = (String::new(), String::new());
    for service in ["session", "tools", "models", "triggers"] {
        let home = root.join("services").join(service);
        read(&home.join("src"), "rs", &mut rust);
        read(&home.join("migrations"), "sql", &mut sql);
    }
    let table = fs::read_to_string(root.join("services/session/src/task.rs")).unwrap();
    let contract = fs::read_to_string(root.join("proto/windlass/event/v1/event.proto")).unwrap();

    let (mut seen, mut wrong) = (Vec::new(), Vec::new());
    let mut above = "";
    for line in contract.lines().map(str::trim) {
        if let Some((field, name)) = payload(line) {
            let is_written = rust.contains(&format!("Payload::{}(", camel(field)))
                || sql.contains(&format!("'{name}'"))
                || table.contains(&format!("=> \"{name}\","))
                || JOINED.contains(&name);
            let is_marked = above == MARK;
            if is_written == is_marked {
                wrong.push(match is_written {
                    true => format!("{name} is marked, and somebody writes or reads it"),
                    false => format!("{name} is not marked, and nobody writes it"),
                });
            }
            seen.push(name);
        }
        above = line;
    }
    assert_eq!(seen, EVENT_NAMES);
    assert_eq!(wrong, [""; 0]);
}

/// The field and the dotted name of an event: `TurnStarted turn_started = 111 [(name) = "turn.started"];`.
fn payload(line: &str) -> Option<(&str, &str)> {
    let (declared, rest) = line.split_once(" [(name) = \"")?;
    Some((declared.split(' ').nth(1)?, rest.split_once('"')?.0))
}

/// `turn_started` to `TurnStarted`.
fn camel(field: &str) -> String {
    let words = field.split('_').map(|word| word[..1].to_uppercase() + &word[1..]);
    words.collect()
}

/// All files with this extension, without tests.
fn read(dir: &Path, extension: &str, text: &mut String) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            if !path.ends_with("tests") {
                read(&path, extension, text);
            }
        } else if path.extension().is_some_and(|found| found == extension)
            && !path.ends_with("tests.rs")
            && !path.ends_with("testing.rs")
        {
            let file = fs::read_to_string(&path).unwrap();
            // Tests are at the foot.
            text.push_str(file.split("#[cfg(test)]\nmod tests {").next().unwrap());
        }
    }
}
