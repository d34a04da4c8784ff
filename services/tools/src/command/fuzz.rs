//! Any command line: what is said about its parts is consistent, no rule allows what is not
//! certain, every rule denies what may be meant, and bash starts nothing that is no part.
#![allow(clippy::unwrap_used, reason = "what fails here is what was looked for")]

use std::{
    collections::BTreeMap,
    env,
    path::PathBuf,
    sync::LazyLock,
    time::{Duration, Instant},
};

use proto::tools::v1::{Rule, rule::Action};
use sandbox::{Profile, Program, Sandbox, create_workspace};
use tokio::{runtime::Runtime, time::timeout};

use super::*;
use crate::{
    pattern::{Effort, Pattern, literal},
    rules,
    subject::Subject,
};

/// No line takes longer, on a machine however busy.
const LONGEST: Duration = Duration::from_secs(5);

pub fn commands(data: &[u8]) {
    let line = String::from_utf8_lossy(data);
    let begun = Instant::now();
    let split = Line::split(&line);
    assert!(begun.elapsed() < LONGEST, "{line:?} took {:?}", begun.elapsed());
    assert!((1..=MOST_PARTS + DEEPEST).contains(&split.parts.len()));
    for part in &split.parts {
        for text in part.texts() {
            assert!(text.text.is_char_boundary(text.certain), "{line:?}: {text:?}");
        }
        only_what_is_certain_is_allowed(&line, part);
    }
    what_may_be_meant_is_denied(&line, split);
    // A sandbox takes as long as a thousand splits.
    if data.iter().fold(0u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(*byte)) == 0 {
        bash_starts_nothing_else(&line);
    }
}

fn only_what_is_certain_is_allowed(line: &str, part: &Part) {
    let Text { text, certain } = part.shown();
    let more = text.char_indices().map(|(at, next)| at + next.len_utf8());
    for end in more.filter(|end| end > certain).take(4) {
        let Ok(pattern) = Pattern::new(&format!("{}*", literal(&text[..end]))) else { continue };
        let covered = rules::is_covered(&pattern, part, &Effort::default()).unwrap();
        assert!(!covered, "{line:?}: {:?} is allowed by {pattern:?}", part.text());
    }
    if part.unclear.is_some() {
        // Compiled once: that takes longer than everything else here.
        thread_local!(static SOMETHING: Pattern = Pattern::new("?*").unwrap());
        let covered =
            SOMETHING.with(|pattern| rules::is_covered(pattern, part, &Effort::default()).unwrap());
        assert!(!covered, "{line:?}: {:?}", part.text());
    }
}

fn what_may_be_meant_is_denied(line: &str, split: Line) {
    let rule = |text: &Text| Rule {
        permission: "bash".into(),
        pattern: format!("{}*", literal(&text.text[..text.certain])),
        action: Action::Deny.into(),
        ..Rule::default()
    };
    let denies: Vec<Rule> = split.parts.iter().map(|part| rule(part.shown())).collect();
    let subject = Subject::Command(split);
    for (at, deny) in denies.iter().enumerate().take(2) {
        if deny.pattern.chars().count() > 1_000 {
            continue;
        }
        let decided =
            rules::decide(std::slice::from_ref(deny), "bash", &subject, &Effort::default());
        let decided = decided.unwrap_or_else(|_| panic!("{line:?}: {:?}", deny.pattern));
        assert!(decided[at].is_some(), "{line:?}: {:?} is not denied", deny.pattern);
    }
}

/// The program that builds sandboxes. Where there is none, no line is run.
static INIT: LazyLock<Option<PathBuf>> =
    LazyLock::new(|| env::var_os("SANDBOX_INIT").map(PathBuf::from));
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());

/// The same as the test against bash, with lines that nobody would run outside of a sandbox.
fn bash_starts_nothing_else(line: &str) {
    let Some(init) = &*INIT else { return };
    // Functions can have any name, and call themselves for ever.
    let dense = line.replace(char::is_whitespace, "");
    if line.contains('\0') || dense.contains("function") || dense.contains("()") {
        return;
    }
    let line = format!("PATH=/nowhere; {line}");
    let parts = Line::split(&line).parts;
    if parts.iter().any(|part| part.shown().certain == 0) {
        return;
    }
    for name in RUNTIME.block_on(started(init, &line)) {
        let known = parts.iter().any(|part| part.words[0].value() == name);
        assert!(known, "{line:?} starts {name:?}, which is no part");
    }
}

/// The names of all programs that bash starts. There are none to be found, so each of them ends
/// in a handler that writes it down.
async fn started(init: &PathBuf, line: &str) -> Vec<String> {
    const LOG: &str = "STARTED_PROGRAMS";
    let folder = tempfile::tempdir().unwrap();
    let workspace = folder.path().join("workspace");
    create_workspace(&workspace).unwrap();
    let handler = format!("() {{ printf '%s\\0' \"$1\" >> \"${LOG}\"; return 1; }}");
    let env = BTreeMap::from([
        ("BASH_FUNC_command_not_found_handle%%".to_owned(), handler),
        (LOG.to_owned(), "/workspace/.started".to_owned()),
    ]);
    let profile = Profile { env, ..Profile::default() };
    let program = Program::bash(line);
    let mut child = Sandbox::new(init).spawn(&profile, &workspace, &program).await.unwrap();
    let _ = timeout(Duration::from_secs(2), child.wait()).await;
    child.kill().await.unwrap();
    let log = std::fs::read(workspace.join(".started")).unwrap_or_default();
    let names = log.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names.map(|name| String::from_utf8_lossy(name).into_owned()).collect()
}
