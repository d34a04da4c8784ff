#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;

use std::{
    fs::{File, Metadata as FileMetadata},
    os::unix::fs::MetadataExt as _,
    time::Duration,
};

use data_encoding::HEXLOWER;
use futures::{FutureExt as _, future::BoxFuture};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use similar::TextDiff;
use tokio_util::sync::CancellationToken;

use crate::{
    catalog::{About, Effect, Run, Tool},
    error::{Error, Result},
    file_tool::{self, path, schema, unless_stopped},
    files::{Draft, Parents, Place, Workspace, read_at},
    outcome::{Failure, Kind, Metadata, Outcome},
    replace::Change,
    text::unfinished,
};

/// Replaces a piece of a file.
pub struct Edit;

/// A larger file is not for reading, and hardly for editing.
const LARGEST_FILE: usize = 8 * 1024 * 1024;

/// How much of a difference a model gets to see.
const LONGEST_DIFF: usize = 16 * 1024;

/// How long to look for the shortest difference before being content with another.
const DIFF_PATIENCE: Duration = Duration::from_millis(500);

const MOST_CHARACTERS: usize = 512 * 1024;

#[derive(Deserialize)]
struct Input {
    path: String,
    old_text: String,
    new_text: String,
    #[serde(default)]
    replace_all: bool,
    expected_digest: Option<String>,
}

impl Tool for Edit {
    fn about(&self) -> About {
        About {
            name: "edit".into(),
            description: "Replaces `old_text` by `new_text` in a text file of the workspace and \
                returns the difference. `old_text` must be exactly what the file contains, \
                without line numbers, and occur once unless `replace_all` is set. If it does \
                not, or if somebody else changes the file at the same time, the edit fails \
                and the file is left alone. Line endings and mode are kept."
                .into(),
            input_schema: schema(
                json!({
                    "path": path("The file, relative to the workspace."),
                    "old_text": {
                        "type": "string",
                        "minLength": 1,
                        "maxLength": MOST_CHARACTERS,
                        "description": "The text to replace, with enough around it to occur once.",
                    },
                    "new_text": {
                        "type": "string",
                        "maxLength": MOST_CHARACTERS,
                        "description": "The text to put there.",
                    },
                    "replace_all": {
                        "type": "boolean",
                        "description": "Whether to replace it wherever it occurs. Default: false.",
                    },
                    "expected_digest": {
                        "type": "string",
                        "pattern": "^[0-9a-f]{64}$",
                        "description": "The digest that `read`, `write` or `edit` returned for \
                            the file. If it has another one by now, the edit fails.",
                    },
                }),
                &["path", "old_text", "new_text"],
            ),
            effect: Effect::Changes,
            command: None,
            path: Some("path"),
            url: None,
        }
    }

    fn run<'a>(&'a self, input: Value, run: Run<'a>) -> BoxFuture<'a, Outcome> {
        file_tool::run(input, run, edit).boxed()
    }
}

fn edit(input: Input, workspace: &Workspace, stop: &CancellationToken) -> Result<Outcome, Failure> {
    let failed = |text: &str| Failure::new(Kind::Failed, text);
    let place = workspace.place_of_file(&input.path, Parents::Expect)?;
    let original = Original::read(&place)?;
    let digest = HEXLOWER.encode(&Sha256::digest(&original.content));
    if input.expected_digest.is_some_and(|expected| expected != digest) {
        return Err(failed("the file is not what you expected: it was changed; read it again"));
    }
    let text = std::str::from_utf8(&original.content)
        .map_err(|_| failed("the file is no UTF-8 text, so it cannot be edited"))?;
    let change = Change { old: &input.old_text, new: &input.new_text, all: input.replace_all };
    let (changed, replacements) =
        change.apply(text).map_err(|refusal| failed(&refusal.to_string()))?;

    let mut draft = Draft::new(place)?;
    draft.write(changed.as_bytes())?;
    // Before the change: what takes long must not happen between it and the answer.
    let (diff, truncated) = diff(text, &changed);
    unless_stopped(stop)?;
    let published = draft.publish_if(|place| original.is_still_at(place))?;
    if published.is_none() {
        return Err(failed("somebody else changed the file meanwhile, so it was left alone"));
    }
    let data = json!({
        "replacements": replacements,
        "diff": diff,
        "digest": HEXLOWER.encode(&Sha256::digest(&changed)),
    });
    Ok(Outcome { result: Ok(data), metadata: Metadata { truncated, ..Metadata::default() } })
}

/// A file as it was when the edit began.
struct Original {
    content: Vec<u8>,
    metadata: FileMetadata,
}

impl Original {
    fn read(place: &Place) -> Result<Original> {
        let (file, metadata) = place.open_file()?;
        if metadata.len() > LARGEST_FILE as u64 {
            let problem = "is larger than 8 MiB, use bash to change it".into();
            return Err(Error::Invalid { field: "path", problem });
        }
        Ok(Original { content: content(&file)?, metadata })
    }

    fn is_still_at(&self, place: &Place) -> Result<bool> {
        let (file, metadata) = match place.open_file() {
            Ok(found) => found,
            Err(Error::PathNotFound(_) | Error::Invalid { .. }) => return Ok(false),
            Err(error) => return Err(error),
        };
        let mark = |metadata: &FileMetadata| {
            (
                metadata.dev(),
                metadata.ino(),
                metadata.len(),
                metadata.mtime(),
                metadata.mtime_nsec(),
            )
        };
        // Times are coarse and can be set; the content cannot lie.
        Ok(mark(&metadata) == mark(&self.metadata) && content(&file)? == self.content)
    }
}

/// At most a little more than an edit takes, so that too much is noticed and not read.
fn content(file: &File) -> Result<Vec<u8>> {
    let size = file.metadata()?.len().min(LARGEST_FILE as u64 + 1);
    Ok(read_at(file, 0, size as usize)?)
}

/// The difference for a model to read, and whether some of it is missing.
fn diff(before: &str, after: &str) -> (String, bool) {
    let difference = TextDiff::configure().timeout(DIFF_PATIENCE).diff_lines(before, after);
    let mut text = difference.unified_diff().to_string();
    let truncated = text.len() > LONGEST_DIFF;
    if truncated {
        let kept = &text.as_bytes()[..LONGEST_DIFF];
        text.truncate(LONGEST_DIFF - unfinished(kept));
        text += "\n[the rest is omitted]\n";
    }
    (text.replace('\0', "\u{fffd}"), truncated)
}
