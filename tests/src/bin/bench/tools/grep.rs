//! The tool `grep` over a large tree, beside the program `rg`, which does the same with the same
//! libraries. Both find the same lines, and both have the files in memory.

use std::{
    fmt::Write as _,
    fs,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use proto::event::v1::{Event, Payload};
use tests::Session;

use crate::{quantiles::Quantiles, stage::Stage, table::Table};

const ROUNDS: usize = 11;

/// In one line of one file out of so many.
const NEEDLE: &str = "needle_[0-9]+_in_the_hay";
const RARE: usize = 200;
const PER_DIRECTORY: usize = 100;
const LINES: usize = 200;

pub async fn measure(stage: &mut Stage, table: &mut Table) -> Result<()> {
    let files = stage.scale.files;
    eprintln!("{files} files are searched …");
    let session = stage.client().create_session().await;
    // A workspace is there once something has happened in it.
    run(&session, "call bash {\"command\": \"true\"}\n---\nsay done").await?;
    let tree = stage.workspace(&session.get().await.workspace_id);
    let bytes = grow(&tree, files)?;
    let expected = files.div_ceil(RARE);

    let (mut theirs, mut ours) = (Quantiles::default(), Quantiles::default());
    for _ in 0..ROUNDS {
        let (found, took) = ripgrep(&tree)?;
        ensure!(found == expected, "rg found {found} lines, {expected} are there");
        theirs.push(took);
        ours.push(grep(&session, expected).await?);
    }
    let what = format!("over {files} files of {} MB, p50", bytes / 1_000_000);
    table.note(format!("`rg` {what}"), format!("{:.0} ms", theirs.p50()));
    table.note(format!("`grep` {what}"), format!("{:.0} ms", ours.p50()));
    let times = |times: f64| format!("{times:.2}");
    table.at_most("`grep` ÷ `rg`, p50", ours.p50() / theirs.p50(), 1.3, times);
    Ok(())
}

/// Makes a tree of source-like files, always the same, and returns how much it is.
fn grow(tree: &Path, files: usize) -> Result<u64> {
    let mut random: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut next = |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    const WORDS: [&str; 12] = [
        "let", "return", "session", "request", "error", "match", "value", "self", "index",
        "needle", "hay", "stream",
    ];
    let mut bytes = 0;
    for number in 0..files {
        let folder = tree.join(format!("part{}/module{}", number / 2_000, number / PER_DIRECTORY));
        fs::create_dir_all(&folder)?;
        let mut text = String::new();
        for line in 0..LINES {
            let indent = " ".repeat(4 * next(4) as usize);
            let _ = write!(text, "{indent}{line}");
            for _ in 0..2 + next(6) {
                let _ = write!(text, " {}_{}", WORDS[next(12) as usize], next(100));
            }
            text.push('\n');
        }
        if number % RARE == 0 {
            let _ = writeln!(text, "// needle_{number}_in_the_hay");
        }
        bytes += text.len() as u64;
        fs::write(folder.join(format!("file{number}.rs")), text)?;
    }
    Ok(bytes)
}

/// How many lines `rg` finds, and how long it takes.
fn ripgrep(tree: &Path) -> Result<(usize, Duration)> {
    let begun = Instant::now();
    let output = Command::new("rg")
        .args(["--no-config", "--hidden", "--line-number", "--heading", "--color=never", NEEDLE])
        .current_dir(tree)
        .stdin(Stdio::null())
        .output()
        .context("cannot run rg")?;
    let took = begun.elapsed();
    let lines = String::from_utf8_lossy(&output.stdout);
    Ok((lines.lines().filter(|line| line.contains("_in_the_hay")).count(), took))
}

/// How long the tool takes, as it says itself: what a turn adds is measured elsewhere.
async fn grep(session: &Session, expected: usize) -> Result<Duration> {
    let input = format!("{{\"pattern\": \"{NEEDLE}\", \"limit\": 1000}}");
    let events = run(session, &format!("call grep {input}\n---\nsay done")).await?;
    let result = events.iter().find_map(|event| match &event.payload {
        Some(Payload::ToolResult(result)) => Some(result),
        _ => None,
    });
    let result = result.context("there is no result")?;
    let data: serde_json::Value = serde_json::from_str(&result.data_json)?;
    ensure!(data["matches"] == expected, "grep found {}", data["matches"]);
    let metadata = result.metadata.as_ref().context("there is no duration")?;
    Ok(Duration::from_millis(metadata.duration_ms as u64))
}

async fn run(session: &Session, script: &str) -> Result<Vec<Event>> {
    let events = session.run(script).await;
    let last = events.last().context("nothing happened")?;
    ensure!(last.r#type == "turn.completed", "{last:?}");
    Ok(events)
}
