//! Checks packs of evidence, with no network and no database, and makes keys for them.

use std::{
    fs,
    io::{self, BufRead, BufReader, Write},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;
use clap::Parser as _;
use serde_json::Value;
use session::{Failure, PublicKey, Report, Signature, new_key, verify};

/// Nothing was altered, and the key that was given signed it.
const VERIFIED: u8 = 0;
/// Something was altered, or is missing; it is said where.
const ALTERED: u8 = 1;
/// The pack or the key cannot be read. Clap says the same of flags that it does not know.
const UNREADABLE: u8 = 2;
/// Nothing is wrong in itself, but it is not signed by the key that was given.
const NOT_SIGNED_BY: u8 = 3;
/// Nothing is wrong in itself, and nobody vouches for it: it is unsigned, or no key was given.
const UNVOUCHED: u8 = 4;

#[derive(Debug, clap::Parser)]
#[command(name = "evidence", version, about = "Checks packs of evidence, without a network")]
enum Command {
    /// Check a pack. Exit codes: 0 verified, 1 altered, 2 unreadable, 3 not signed by the key,
    /// 4 whole but unsigned or without --key.
    Verify {
        /// The pack; `-` is standard input.
        file: PathBuf,

        /// The public key (PEM) that should have signed it.
        #[arg(long)]
        key: Option<PathBuf>,
    },

    /// Print a section for people to read; `verify` lists which there are. Nothing is checked.
    Show {
        /// The pack; `-` is standard input.
        file: PathBuf,
        section: String,
    },

    /// Make a key: the private half goes into FILE, the public one into FILE.pub.
    NewKey { file: PathBuf },
}

fn main() -> anyhow::Result<ExitCode> {
    let mut out = io::stdout().lock();
    let code = match Command::parse() {
        Command::NewKey { file } => {
            make_key(&file, &mut out)?;
            VERIFIED
        }
        Command::Show { file, section } => {
            show(&file, &section, &mut out)?;
            VERIFIED
        }
        Command::Verify { file, key } => match check(&file, key.as_deref(), &mut out) {
            Ok(code) => code,
            Err(error) => {
                writeln!(io::stderr(), "unreadable: {error:#}")?;
                UNREADABLE
            }
        },
    };
    Ok(ExitCode::from(code))
}

fn check(file: &Path, key: Option<&Path>, out: &mut impl Write) -> anyhow::Result<u8> {
    let key = key.map(read_key).transpose()?;
    let report = match verify(open(file)?, key.as_ref()) {
        Ok(report) => report,
        Err(Failure::Unreadable(error)) => return Err(error.into()),
        Err(Failure::Broken(broken)) => {
            writeln!(out, "ALTERED: {broken}")?;
            return Ok(ALTERED);
        }
    };
    say(&report, out)?;
    Ok(match &report.signature {
        Signature::Verified => {
            writeln!(out, "VERIFIED: nothing was altered since {} signed it", report.head.key_id)?;
            VERIFIED
        }
        Signature::Wrong(problem) => {
            writeln!(out, "NOT SIGNED: {problem}")?;
            NOT_SIGNED_BY
        }
        Signature::Unsigned => {
            writeln!(out, "UNSIGNED: whole in itself, but nobody vouches for it")?;
            UNVOUCHED
        }
        Signature::NotChecked => {
            let id = &report.head.key_id;
            writeln!(
                out,
                "NOT CHECKED: whole in itself, and said to be signed by {id}; give its --key"
            )?;
            UNVOUCHED
        }
    })
}

fn open(file: &Path) -> anyhow::Result<Box<dyn BufRead>> {
    let name = file.display();
    Ok(match file.to_str() {
        Some("-") => Box::new(io::stdin().lock()),
        _ => Box::new(BufReader::new(fs::File::open(file).with_context(|| format!("{name}"))?)),
    })
}

/// Prints what has a text as text, and everything else as it is.
fn show(file: &Path, section: &str, out: &mut impl Write) -> anyhow::Result<()> {
    for line in open(file)?.lines() {
        let line: Value = serde_json::from_str(&line?).context("is not a line of a pack")?;
        if line["section"] != section {
            continue;
        }
        let data = &line["data"];
        match (data["sequence"].as_i64(), data["text"].as_str()) {
            (Some(sequence), Some(text)) => {
                let name = data["type"].as_str().unwrap_or_default();
                writeln!(out, "{sequence:>6} {name} {text}")?;
            }
            (None, Some(text)) => writeln!(out, "{text}")?,
            _ => writeln!(out, "{data}")?,
        }
    }
    Ok(())
}

fn say(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let (head, sealed) = (&report.head, &report.sealed);
    let scope = &head.scope;
    writeln!(out, "pack      {} of {} {}", head.evidence_id, scope.kind, scope.id)?;
    writeln!(out, "made      {} by {} of {}", head.exported_at, head.subject, head.tenant_id)?;
    writeln!(out, "lines     {}, each as its digest says", report.lines)?;
    for section in &report.manifest.sections {
        let (name, lines, digest) = (&section.name, section.lines, &section.digest);
        writeln!(out, "section   {name}: {lines} lines, sha256 {digest}")?;
    }
    writeln!(
        out,
        "log       {} events without a hole; {} joined and {} removed by retention, {} elsewhere",
        sealed.events, report.joined, report.removed, report.elsewhere
    )?;
    writeln!(
        out,
        "seals     {} in a chain; {} events are not sealed yet",
        sealed.seals, sealed.unsealed_events
    )?;
    writeln!(out, "joins     {} facts are those of the log", report.joins)?;
    for signal in &report.manifest.signals {
        let state = serde_json::to_string(&signal.state).unwrap_or_default();
        let (name, count, reason) = (&signal.signal, signal.count, &signal.reason);
        writeln!(out, "signal    {name}: {} {count} {reason}", state.trim_matches('"'))?;
    }
    Ok(())
}

fn read_key(path: &Path) -> anyhow::Result<PublicKey> {
    let name = path.display();
    let text = fs::read_to_string(path).with_context(|| format!("{name}"))?;
    PublicKey::read(&text).map_err(|problem| anyhow::anyhow!("{name} {problem}"))
}

fn make_key(path: &Path, out: &mut impl Write) -> anyhow::Result<()> {
    let (private, public, id) = new_key().map_err(anyhow::Error::msg)?;
    let mut shown = path.as_os_str().to_owned();
    shown.push(".pub");
    let name = path.display();
    // A key that is there already has signed packs that somebody will want to check.
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("cannot make {name}"))?;
    file.write_all(private.as_bytes())?;
    fs::write(&shown, public).with_context(|| format!("cannot make {}", shown.display()))?;
    writeln!(out, "{id}")?;
    Ok(())
}
