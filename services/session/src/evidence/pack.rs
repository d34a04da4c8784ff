//! How a pack is written.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use super::{Signal, SigningKey};
use crate::seal::{canonical, hex};

pub const FORMAT: &str = "windlass.pack";
pub const VERSION: u32 = 1;

/// The sections that every pack has: its first line and its last two.
pub const PACK: &str = "pack";
pub const MANIFEST: &str = "manifest";
pub const SIGNATURE: &str = "signature";

/// What is in place of a key where there is none.
pub const UNSIGNED: &str = "unsigned";

/// What a pack is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Evidence,
    Replay,
    Review,
}

impl Kind {
    /// As in `EvidenceChanged.change`.
    pub fn change(self) -> &'static str {
        match self {
            Kind::Evidence => "exported",
            Kind::Replay => "replay_exported",
            Kind::Review => "review_exported",
        }
    }
}

/// What a pack is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Scope {
    /// `turn`, `task` or `session`.
    pub kind: String,
    pub id: String,
}

/// The first line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Head {
    pub format: String,
    pub version: u32,
    pub evidence_id: String,
    pub kind: Kind,
    pub scope: Scope,
    pub tenant_id: String,
    /// Who asked for it.
    pub subject: String,
    pub exported_at: String,
    /// The replica that made it, and its version.
    pub runtime_id: String,
    pub service_version: String,
    /// The key that signs it, or `unsigned`.
    pub key_id: String,
}

/// The beginning of a session's log in a pack.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Log {
    pub session_id: String,
    /// The whole log; otherwise what the scope selects of it.
    pub whole: bool,
    /// What the pack speaks of: every sequence from here to there is in it, or in a gap that
    /// says why not.
    pub from: i64,
    pub through: i64,
    /// Where the log begins; what was before is removed.
    pub first_sequence: i64,
    pub last_sequence: i64,
}

/// Sequences that are not in the pack.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Gap {
    pub first: i64,
    pub through: i64,
    pub why: Why,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// They belong to something else that happened in the same session.
    Elsewhere,
    /// Retention removed them.
    Removed,
}

/// How far the seals reach.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Sealed {
    pub seals: u64,
    pub events: u64,
    /// Events that no seal covers yet, because no turn has ended since.
    pub unsealed_events: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Section {
    pub name: String,
    pub lines: u64,
    /// SHA-256 over the bytes of its lines, line ends included.
    pub digest: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Manifest {
    pub format: String,
    pub version: u32,
    pub evidence_id: String,
    pub kind: Kind,
    pub scope: Scope,
    pub key_id: String,
    pub sections: Vec<Section>,
    pub signals: Vec<Signal>,
    pub sealed: Sealed,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Signed {
    /// `ed25519`, or `none`.
    pub algorithm: String,
    /// The key, or `unsigned`.
    pub key_id: String,
    /// Over the bytes of the manifest's line, without its end; in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
}

/// Writes lines and remembers what the manifest has to say of them.
#[derive(Debug)]
pub struct Writer {
    head: Head,
    lines: u64,
    open: Option<(&'static str, u64, Sha256)>,
    sections: Vec<Section>,
}

impl Writer {
    /// Begins a pack; returns its first line too.
    pub fn new(head: Head) -> serde_json::Result<(Writer, Vec<u8>)> {
        let mut writer = Writer { head: head.clone(), lines: 0, open: None, sections: vec![] };
        let line = writer.line(PACK, &head)?;
        Ok((writer, line))
    }

    pub fn head(&self) -> &Head {
        &self.head
    }

    /// The next line, with its end.
    pub fn line(
        &mut self,
        section: &'static str,
        data: &impl Serialize,
    ) -> serde_json::Result<Vec<u8>> {
        self.lines += 1;
        let data = canonical(&serde_json::to_string(data)?)?;
        let line = write(&data, self.lines, section);
        if self.open.as_ref().is_none_or(|(open, ..)| *open != section) {
            self.close();
            self.open = Some((section, 0, Sha256::new()));
        }
        if let Some((_, lines, hash)) = &mut self.open {
            *lines += 1;
            hash.update(&line);
        }
        Ok(line)
    }

    fn close(&mut self) {
        if let Some((name, lines, hash)) = self.open.take() {
            let (name, digest) = (name.to_owned(), hex(&hash.finalize()));
            self.sections.push(Section { name, lines, digest });
        }
    }

    /// The last two lines, and the digest of the manifest.
    pub fn finish(
        mut self,
        signals: Vec<Signal>,
        sealed: Sealed,
        key: Option<&SigningKey>,
    ) -> serde_json::Result<(Vec<u8>, String)> {
        self.close();
        let manifest = Manifest {
            format: FORMAT.to_owned(),
            version: VERSION,
            evidence_id: self.head.evidence_id.clone(),
            kind: self.head.kind,
            scope: self.head.scope.clone(),
            key_id: self.head.key_id.clone(),
            sections: std::mem::take(&mut self.sections),
            signals,
            sealed,
        };
        let mut lines = self.line(MANIFEST, &manifest)?;
        let signed = &lines[..lines.len() - 1];
        let digest = hex(&Sha256::digest(signed));
        let signature = match key {
            Some(key) => Signed {
                algorithm: "ed25519".to_owned(),
                key_id: key.id().to_owned(),
                signature: Some(key.sign(signed)),
            },
            None => Signed {
                algorithm: "none".to_owned(),
                key_id: UNSIGNED.to_owned(),
                signature: None,
            },
        };
        lines.extend(self.line(SIGNATURE, &signature)?);
        Ok((lines, digest))
    }
}

/// A line as it is read.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line<'a> {
    #[serde(borrow)]
    pub data: &'a RawValue,
    pub digest: String,
    pub line: u64,
    pub section: String,
}

fn write(data: &str, number: u64, section: &str) -> Vec<u8> {
    let digest = digest(data, number, section);
    format!(
        "{{\"data\":{data},\"digest\":\"{digest}\",\"line\":{number},\"section\":\"{section}\"}}\n"
    )
    .into_bytes()
}

/// Over the line as it would be without the digest.
pub fn digest(data: &str, number: u64, section: &str) -> String {
    let line = format!("{{\"data\":{data},\"line\":{number},\"section\":\"{section}\"}}");
    hex(&Sha256::digest(line.as_bytes()))
}
