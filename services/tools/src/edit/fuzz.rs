//! Any change to any file: it is what a slow and simple replacement makes of it, and whatever
//! does not work leaves the file alone.
#![allow(clippy::unwrap_used, reason = "what fails here is what was looked for")]

use std::{fs, sync::LazyLock};

use tempfile::TempDir;

use super::*;
use crate::fuzz::pieces;

/// In memory, because every edit waits for the disk.
static FOLDER: LazyLock<TempDir> = LazyLock::new(|| tempfile::tempdir_in("/dev/shm").unwrap());

/// Lines: whether everything is replaced and somebody else is faster, the old text, the new
/// one, what somebody else writes, and from there on the file. `\n` and `\r` are written so.
pub fn edits(data: &[u8]) {
    let pieces = pieces(data, 5);
    let [flags, old, new, theirs, text] = &pieces[..] else { return };
    let [old, new, theirs] = [old, new, theirs].map(|text| unescape(text));
    let all = flags.contains('a');
    let path = FOLDER.path().join("file");
    fs::write(&path, text).unwrap();

    let workspace = Workspace::at(FOLDER.path()).unwrap();
    if flags.contains('c') {
        conflict(&workspace, &path, text, &theirs);
        return;
    }
    let input = Input {
        path: "file".into(),
        old_text: old.clone(),
        new_text: new.clone(),
        replace_all: all,
        expected_digest: flags.contains('d').then(|| "0".repeat(64)),
    };
    let expected = match flags.contains('d') {
        true => None,
        false => reference(text, &old, &new, all),
    };
    let done = edit(input, &workspace, &CancellationToken::new());
    let left = fs::read_to_string(&path).unwrap();
    match (&done, &expected) {
        (Ok(outcome), Some((expected, places))) => {
            let data = outcome.result.as_ref().unwrap();
            assert_eq!((&left, &data["replacements"]), (expected, &json!(places)));
        }
        (Err(_), None) => assert_eq!(&left, text, "a refused edit changed the file"),
        _ => panic!("edited: {}, expected {expected:?}", done.is_ok()),
    }
    assert_eq!(fs::read_dir(FOLDER.path()).unwrap().count(), 1, "a draft is left");
}

/// Somebody writes between our reading and our writing.
fn conflict(workspace: &Workspace, path: &std::path::Path, text: &str, theirs: &str) {
    let place = workspace.place_of_file("file", Parents::Expect).unwrap();
    let original = Original::read(&place).unwrap();
    let mut draft = Draft::new(place).unwrap();
    draft.write(b"ours").unwrap();
    fs::write(path, theirs).unwrap();
    let published = draft.publish_if(|place| original.is_still_at(place)).unwrap();
    let left = fs::read_to_string(path).unwrap();
    match published {
        Some(_) => assert_eq!((text, left.as_str()), (theirs, "ours"), "theirs was overwritten"),
        None => assert_eq!(left, theirs),
    }
    assert_eq!(fs::read_dir(FOLDER.path()).unwrap().count(), 1, "a draft is left");
}

/// The text after a replacement and how many there were, byte by byte.
fn reference(text: &str, old: &str, new: &str, all: bool) -> Option<(String, usize)> {
    let lines = text.bytes().filter(|byte| *byte == b'\n').count();
    let carriages = text.as_bytes().windows(2).filter(|pair| pair == b"\r\n").count();
    let written = |text: &str| match lines > 0 && lines == carriages && text.contains('\n') {
        true => text.replace("\r\n", "\n").replace('\n', "\r\n").into_bytes(),
        false => text.as_bytes().to_vec(),
    };
    let (text, old, new) = (text.as_bytes(), written(old), written(new));
    if old.is_empty() || old == new {
        return None;
    }
    let places = (0..text.len()).filter(|at| text[*at..].starts_with(&old)).count();
    if places == 0 || places > 1 && !all {
        return None;
    }
    let (mut result, mut replaced, mut at) = (Vec::new(), 0, 0);
    while at < text.len() {
        if text[at..].starts_with(&old) {
            result.extend_from_slice(&new);
            (replaced, at) = (replaced + 1, at + old.len());
        } else {
            result.push(text[at]);
            at += 1;
        }
    }
    Some((String::from_utf8(result).unwrap(), replaced))
}

fn unescape(text: &str) -> String {
    text.replace("\\n", "\n").replace("\\r", "\r")
}
