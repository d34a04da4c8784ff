use data_encoding::HEXLOWER;
use futures::{FutureExt as _, future::BoxFuture};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;

use crate::{
    catalog::{About, Effect, Run, Tool},
    file_tool::{self, path, schema, unless_stopped},
    files::{Draft, Parents, Workspace},
    outcome::{Failure, Metadata, Outcome},
};

/// Makes or replaces a file.
pub struct Write;

/// The contract takes no larger input.
const MOST_CHARACTERS: usize = 1024 * 1024;

#[derive(Deserialize)]
struct Input {
    path: String,
    content: String,
}

impl Tool for Write {
    fn about(&self) -> About {
        About {
            name: "write".into(),
            description: "Writes a whole file in the workspace, in place of what was there, \
                and makes the directories that it needs. The file changes all at once or not \
                at all, and keeps its mode. To change a part of a file, use `edit`."
                .into(),
            input_schema: schema(
                json!({
                    "path": path("The file, relative to the workspace."),
                    "content": {
                        "type": "string",
                        "maxLength": MOST_CHARACTERS,
                        "description": "All that the file will contain.",
                    },
                }),
                &["path", "content"],
            ),
            effect: Effect::Changes,
            command: None,
            path: Some("path"),
            url: None,
        }
    }

    fn run<'a>(&'a self, input: Value, run: Run<'a>) -> BoxFuture<'a, Outcome> {
        file_tool::run(input, run, write).boxed()
    }
}

fn write(
    input: Input,
    workspace: &Workspace,
    stop: &CancellationToken,
) -> Result<Outcome, Failure> {
    let content = input.content.as_bytes();
    let mut draft = Draft::new(workspace.place_of_file(&input.path, Parents::Create)?)?;
    draft.write(content)?;
    unless_stopped(stop)?;
    let published = draft.publish()?;
    let data = json!({
        "created": published.created,
        "size_bytes": content.len(),
        "digest": HEXLOWER.encode(&Sha256::digest(content)),
    });
    Ok(Outcome { result: Ok(data), metadata: Metadata::default() })
}
