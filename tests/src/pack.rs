use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use local::Service;
use proto::session::v1::{
    EvidenceScope, ExportEvidenceRequest, ExportReplayRequest, ExportReviewRequest,
    ReplayTurnRequest, ReplayTurnResponse, evidence_scope::Scope,
};
use serde_json::Value;
use tokio::process::Command;
use tonic::{Status, Streaming};

use crate::{Client, request_id};

/// A pack as it came.
#[derive(Debug, Clone)]
pub struct Pack {
    pub text: String,
    pub lines: Vec<Value>,
}

/// What the program that checks packs says of one.
#[derive(Debug)]
pub struct Checked {
    pub code: i32,
    pub said: String,
}

impl Pack {
    fn new(data: Vec<u8>) -> Pack {
        let text = String::from_utf8(data).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        Pack { text, lines }
    }

    /// What the lines of a section hold.
    pub fn section(&self, name: &str) -> Vec<&Value> {
        let lines = self.lines.iter().filter(|line| line["section"] == name);
        lines.map(|line| &line["data"]).collect()
    }

    /// The events of the log.
    pub fn events(&self) -> Vec<&Value> {
        self.section("log").into_iter().filter_map(|line| line.get("event")).collect()
    }

    pub fn manifest(&self) -> &Value {
        self.section("manifest")[0]
    }

    /// State, count and reason of a signal.
    pub fn signal(&self, name: &str) -> (&str, u64, &str) {
        let signals = self.manifest()["signals"].as_array().unwrap();
        let signal = signals.iter().find(|signal| signal["signal"] == name);
        let signal = signal.unwrap_or_else(|| panic!("there is no signal {name}"));
        let reason = signal["reason"].as_str().unwrap_or_default();
        (signal["state"].as_str().unwrap(), signal["count"].as_u64().unwrap(), reason)
    }

    /// Has it checked as anybody would who has nothing but the file and a key.
    pub async fn check(&self, dir: &Path, key: Option<&Path>) -> Checked {
        check(&self.text, dir, key).await
    }
}

/// Has a text checked that may be a pack.
pub async fn check(text: &str, dir: &Path, key: Option<&Path>) -> Checked {
    let file = dir.join("pack.jsonl");
    fs::write(&file, text).unwrap();
    let mut command = Command::new(program());
    command.arg("verify").arg(&file).env_clear().stdin(Stdio::null());
    if let Some(key) = key {
        command.arg("--key").arg(key);
    }
    let output = command.output().await.unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    Checked { code: output.status.code().unwrap(), said }
}

/// The program that checks packs and makes keys.
pub fn program() -> PathBuf {
    Service::Session.binary().unwrap().with_file_name("evidence")
}

/// Makes a key; returns the files of its private and its public half.
pub async fn new_key(dir: &Path) -> (PathBuf, PathBuf) {
    let private = dir.join("evidence.pem");
    let made = Command::new(program()).arg("new-key").arg(&private).output().await.unwrap();
    assert!(made.status.success(), "{made:?}");
    (private.clone(), private.with_extension("pem.pub"))
}

impl Client {
    pub async fn evidence_of(&self, scope: Scope) -> Result<Pack, Status> {
        let request = ExportEvidenceRequest { scope: Some(EvidenceScope { scope: Some(scope) }) };
        let pieces = self.evidence().export_evidence(request).await?.into_inner();
        gather(pieces, |piece| piece.data).await
    }

    pub async fn replay_pack_of(&self, scope: Scope) -> Result<Pack, Status> {
        let request = ExportReplayRequest { scope: Some(EvidenceScope { scope: Some(scope) }) };
        let pieces = self.evidence().export_replay(request).await?.into_inner();
        gather(pieces, |piece| piece.data).await
    }

    pub async fn review_of(&self, scope: Scope) -> Result<Pack, Status> {
        let request = ExportReviewRequest { scope: Some(EvidenceScope { scope: Some(scope) }) };
        let pieces = self.evidence().export_review(request).await?.into_inner();
        gather(pieces, |piece| piece.data).await
    }

    /// Runs a turn again.
    pub async fn replay(&self, turn_id: &str, recorded_tools: bool) -> ReplayTurnResponse {
        let (turn_id, request_id) = (turn_id.to_owned(), request_id());
        let request = ReplayTurnRequest { turn_id, request_id, recorded_tools };
        self.evidence().replay_turn(request).await.unwrap().into_inner()
    }
}

async fn gather<T>(mut pieces: Streaming<T>, data: impl Fn(T) -> Vec<u8>) -> Result<Pack, Status> {
    let mut all = Vec::new();
    while let Some(piece) = pieces.message().await? {
        let data = data(piece);
        assert!(data.len() <= 1024 * 1024);
        all.extend(data);
    }
    Ok(Pack::new(all))
}
