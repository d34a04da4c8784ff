//! Checks a pack with nothing but the pack and a key.

use std::io::{self, BufRead};

use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use super::{
    FORMAT, Head, Manifest, PACK, PublicKey, Sealed, Signed, VERSION,
    chain::Chain,
    joins::Joins,
    pack::{self, Line, MANIFEST, SIGNATURE, Section, UNSIGNED},
};
use crate::seal::{canonical, hex};

/// Longer than any line of ours.
const MAX_LINE: u64 = 256 * 1024 * 1024;

/// Where a pack is not what it was, and how that shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Broken {
    /// Counted from one; zero: the end of the file.
    pub line: u64,
    pub section: String,
    pub sequence: Option<i64>,
    pub field: Option<String>,
    pub problem: String,
}

impl std::fmt::Display for Broken {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.line {
            0 => write!(formatter, "end of file")?,
            line => write!(formatter, "line {line}")?,
        }
        if !self.section.is_empty() {
            write!(formatter, ", section {}", self.section)?;
        }
        if let Some(sequence) = self.sequence {
            write!(formatter, ", sequence {sequence}")?;
        }
        if let Some(field) = &self.field {
            write!(formatter, ", field {field}")?;
        }
        write!(formatter, ": {}", self.problem)
    }
}

#[derive(Debug)]
pub enum Failure {
    Unreadable(io::Error),
    Broken(Broken),
}

impl From<Broken> for Failure {
    fn from(broken: Broken) -> Failure {
        Failure::Broken(broken)
    }
}

/// What the signature is worth.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Signature {
    /// By the key that was given.
    Verified,
    /// There is one, and nobody gave a key to check it with.
    NotChecked,
    Unsigned,
    /// Another key, or not over this manifest.
    Wrong(String),
}

/// What was checked.
#[derive(Debug)]
pub struct Report {
    pub head: Head,
    pub manifest: Manifest,
    pub lines: u64,
    pub sealed: Sealed,
    /// Events that retention joined with others, removed, or that belong to something else.
    pub joined: u64,
    pub removed: u64,
    pub elsewhere: u64,
    /// Facts that were found again in the log.
    pub joins: u64,
    pub signature: Signature,
}

/// Reads a pack to its end, or to the first place at which it is not what it was.
pub fn verify(mut pack: impl BufRead, key: Option<&PublicKey>) -> Result<Report, Failure> {
    let mut reading = Reading::default();
    let mut text = Vec::new();
    loop {
        text.clear();
        let mut limited = io::Read::take(&mut pack, MAX_LINE);
        limited.read_until(b'\n', &mut text).map_err(Failure::Unreadable)?;
        if text.is_empty() {
            break;
        }
        reading.line(&text)?;
    }
    Ok(reading.finish(key)?)
}

#[derive(Default)]
struct Reading {
    lines: u64,
    head: Option<Head>,
    open: Option<(String, u64, Sha256)>,
    sections: Vec<Section>,
    chain: Chain,
    joins: Joins,
    /// The bytes that are signed, and what they say.
    manifest: Option<(Vec<u8>, Manifest)>,
    signed: Option<Signed>,
}

impl Reading {
    fn line(&mut self, text: &[u8]) -> Result<(), Broken> {
        self.lines += 1;
        let number = self.lines;
        let before = self.open.as_ref().map(|(section, ..)| section.clone()).unwrap_or_default();
        let broken = |section: &str, problem: String| Broken {
            line: number,
            section: section.to_owned(),
            problem,
            ..Broken::default()
        };
        let Some(bare) = text.strip_suffix(b"\n") else {
            return Err(broken(&before, "the line does not end: the pack was cut off".into()));
        };
        let bare = std::str::from_utf8(bare).map_err(|error| {
            broken(&before, format!("is not text at byte {}", error.valid_up_to() + 1))
        })?;
        let line: Line<'_> = serde_json::from_str(bare)
            .map_err(|error| broken(&before, format!("is not a line of a pack: {error}")))?;
        let section = line.section.as_str();
        let proper = canonical(bare)
            .map_err(|error| broken(section, format!("is not a line of a pack: {error}")))?;
        if proper != bare {
            let at = proper.bytes().zip(bare.bytes()).take_while(|(one, other)| one == other);
            let at = at.count() + 1;
            return Err(broken(section, format!("is not written as RFC 8785 says at byte {at}")));
        }
        if line.line != number {
            let problem = format!("has the number {}: lines are missing or moved", line.line);
            return Err(Broken { field: Some("line".into()), ..broken(section, problem) });
        }
        if line.digest != pack::digest(line.data.get(), number, section) {
            let sequence = super::joins::sequence(line.data);
            let problem = "is not what its digest is over: the line was altered".to_owned();
            return Err(Broken { sequence, ..broken(section, problem) });
        }
        self.section(section, text, &broken)?;
        self.content(section, number, bare, line.data)
    }

    /// Adds a line to its section, which may have begun with it.
    fn section(
        &mut self,
        section: &str,
        text: &[u8],
        broken: &impl Fn(&str, String) -> Broken,
    ) -> Result<(), Broken> {
        if self.signed.is_some() {
            return Err(broken(section, "something follows the signature".into()));
        }
        if self.open.as_ref().is_none_or(|(open, ..)| open != section) {
            self.close();
            if self.sections.iter().any(|known| known.name == section) {
                let problem = "begins a second time: lines were moved".to_owned();
                return Err(broken(section, problem));
            }
            let expected = match (&self.head, &self.manifest) {
                (None, _) => Some(PACK),
                (Some(_), Some(_)) => Some(SIGNATURE),
                (Some(_), None) => None,
            };
            if let Some(expected) = expected
                && section != expected
            {
                return Err(broken(section, format!("stands where {expected} should")));
            }
            self.open = Some((section.to_owned(), 0, Sha256::new()));
        }
        if let Some((_, lines, hash)) = &mut self.open {
            *lines += 1;
            hash.update(text);
        }
        Ok(())
    }

    fn close(&mut self) {
        if let Some((name, lines, hash)) = self.open.take() {
            self.sections.push(Section { name, lines, digest: hex(&hash.finalize()) });
        }
    }

    fn content(
        &mut self,
        section: &str,
        line: u64,
        bare: &str,
        data: &RawValue,
    ) -> Result<(), Broken> {
        let place = Broken { line, section: section.to_owned(), ..Broken::default() };
        match section {
            PACK => {
                let head: Head = read(data, &place)?;
                if (head.format.as_str(), head.version) != (FORMAT, VERSION) {
                    let problem = format!("{} {} is unknown here", head.format, head.version);
                    return Err(Broken { field: Some("format".into()), problem, ..place });
                }
                self.chain.begin(&head);
                self.head = Some(head);
            }
            "log" => self.chain.line(data, place, &mut self.joins)?,
            MANIFEST => {
                let manifest: Manifest = read(data, &place)?;
                self.agree(&manifest, place)?;
                self.manifest = Some((bare.as_bytes().to_vec(), manifest));
            }
            SIGNATURE => self.signed = Some(read(data, &place)?),
            _ => self.joins.line(section, data, place)?,
        }
        Ok(())
    }

    /// Whether the manifest says what was read.
    fn agree(&mut self, manifest: &Manifest, place: Broken) -> Result<(), Broken> {
        let broken = |field: &str, problem: &str| {
            Err(Broken {
                field: Some(field.to_owned()),
                problem: problem.to_owned(),
                ..place.clone()
            })
        };
        let Some(head) = &self.head else { return broken("", "there is no first line") };
        if (&manifest.evidence_id, manifest.kind, &manifest.scope, &manifest.key_id)
            != (&head.evidence_id, head.kind, &head.scope, &head.key_id)
        {
            return broken("evidenceId", "is not about the pack that the first line is about");
        }
        for (found, told) in self.sections.iter().zip(&manifest.sections) {
            if found != told {
                let field = format!("sections.{}", told.name);
                return broken(&field, &format!("the section {} is another one", found.name));
            }
        }
        if self.sections.len() != manifest.sections.len() {
            return broken("sections", "are not those of the pack");
        }
        if self.chain.finish(&place)? != manifest.sealed {
            return broken("sealed", "is not what the log shows");
        }
        Ok(())
    }

    fn finish(mut self, key: Option<&PublicKey>) -> Result<Report, Broken> {
        let (Some(head), Some((bytes, manifest)), Some(signed)) =
            (self.head.take(), self.manifest.take(), self.signed.take())
        else {
            let section = self.open.map(|(section, ..)| section).unwrap_or_default();
            let problem = "the pack was cut off, its last lines are missing".to_owned();
            return Err(Broken { section, problem, ..Broken::default() });
        };
        let place = Broken { line: self.lines, section: SIGNATURE.into(), ..Broken::default() };
        if signed.key_id != manifest.key_id {
            let problem = format!("the manifest is to be signed by {}", manifest.key_id);
            return Err(Broken { field: Some("keyId".into()), problem, ..place });
        }
        let unsigned = signed.key_id == UNSIGNED;
        let signature = match (&signed.signature, key) {
            (None, None) if unsigned => Signature::Unsigned,
            (None, Some(_)) if unsigned => Signature::Wrong("it is not signed".into()),
            (None, _) => Signature::Wrong("the signature is missing".into()),
            (Some(_), None) => Signature::NotChecked,
            (Some(_), Some(key)) if key.id() != signed.key_id => Signature::Wrong(format!(
                "it is signed by {} and not by {}",
                signed.key_id,
                key.id()
            )),
            (Some(signature), Some(key)) => match key.verify(&bytes, signature) {
                true => Signature::Verified,
                false => Signature::Wrong("the signature is not over this manifest".into()),
            },
        };
        let (joined, removed, elsewhere) = self.chain.left_out();
        Ok(Report {
            sealed: manifest.sealed.clone(),
            joins: self.joins.found(),
            lines: self.lines,
            head,
            manifest,
            joined,
            removed,
            elsewhere,
            signature,
        })
    }
}

/// Reads what a line holds.
pub fn read<T: DeserializeOwned>(data: &RawValue, place: &Broken) -> Result<T, Broken> {
    serde_json::from_str(data.get()).map_err(|error| Broken {
        problem: format!("does not hold what it should: {error}"),
        ..place.clone()
    })
}
