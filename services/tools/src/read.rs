use std::{fs::File, io::Read as _};

use data_encoding::HEXLOWER;
use futures::{FutureExt as _, future::BoxFuture};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;

use crate::{
    call::OutputRef,
    catalog::{About, Effect, Run, Tool},
    error::Error,
    excerpt::{Excerpt, Finished, Wanted},
    file_tool::{self, path, schema, unless_stopped},
    files::Workspace,
    media,
    outcome::{Failure, Kind, Metadata, Outcome},
    outputs,
};

/// Shows a part of a text file.
pub struct Read;

const MOST_LINES: u64 = 2_000;
const LONGEST_LINE: usize = 2_000;

/// How much text a model gets to see, but for the line that crosses it.
const MOST_BYTES: usize = 256 * 1024;

/// How large a file may be to be read to its end, beyond what is shown of it, in order to tell
/// its digest and how many lines it has.
const WORTH_COUNTING: u64 = 8 * 1024 * 1024;

#[derive(Deserialize)]
struct Input {
    path: String,
    offset: Option<u64>,
    limit: Option<u64>,
}

impl Tool for Read {
    fn about(&self) -> About {
        About {
            name: "read".into(),
            description: "Returns lines of a text file in the workspace, each with its number \
                and a tab before it, which are not part of the file. Without `offset` and \
                `limit` it returns the first 2,000 lines. Lines longer than 2,000 bytes are \
                cut. Of a file that is no text it returns only size and media type. The \
                digest of the file can be given to `edit`. Of an output that was too long, it \
                reads the path that came with it."
                .into(),
            input_schema: schema(
                json!({
                    "path": path("The file, relative to the workspace."),
                    "offset": {
                        "type": "integer",
                        "minimum": 1,
                        "description": "The number of the first line. Default: 1.",
                    },
                    "limit": {
                        "type": "integer",
                        "minimum": 1,
                        "maximum": MOST_LINES,
                        "description": "How many lines. Default: 2000.",
                    },
                }),
                &["path"],
            ),
            effect: Effect::Reads,
            command: None,
            path: Some("path"),
            url: None,
        }
    }

    fn run<'a>(&'a self, input: Value, run: Run<'a>) -> BoxFuture<'a, Outcome> {
        match input["path"].as_str().and_then(outputs::named) {
            Some(output_ref) => read_output(output_ref, input, run).boxed(),
            None => file_tool::run(input, run, read).boxed(),
        }
    }
}

fn read(input: Input, workspace: &Workspace, stop: &CancellationToken) -> Result<Outcome, Failure> {
    let (file, metadata) = open(workspace, &input.path)?;
    show(&input, file, metadata.len(), stop)
}

/// An output that was too large for a model, kept beside the workspace.
async fn read_output(output_ref: OutputRef, input: Value, run: Run<'_>) -> Outcome {
    let found = run.outputs.copy(run.facts.call(), output_ref).await;
    let (file, size_bytes) = match found {
        Ok(found) => found,
        Err(error) => return Failure::from(error).into(),
    };
    file_tool::work(input, run.patience, move |input, stop| show(&input, file, size_bytes, stop))
        .await
        .unwrap_or_else(Into::into)
}

fn show(
    input: &Input,
    file: File,
    size_bytes: u64,
    stop: &CancellationToken,
) -> Result<Outcome, Failure> {
    let first = input.offset.unwrap_or(1);
    let wanted = Wanted {
        first,
        lines: input.limit.unwrap_or(MOST_LINES),
        line_bytes: LONGEST_LINE,
        bytes: MOST_BYTES,
    };
    let scanned = match scan(file, size_bytes, wanted, stop)? {
        Scanned::Binary(media_type) => {
            let data =
                json!({ "binary": true, "media_type": media_type, "size_bytes": size_bytes });
            return Ok(Outcome { result: Ok(data), metadata: Metadata::default() });
        }
        Scanned::Text(scanned) => scanned,
    };
    let Text { excerpt: Finished { text, shown, lines, cut }, digest } = scanned;
    if shown == 0 && first > 1 {
        let text = format!("line {first} is behind the end: the file has {lines} lines");
        return Err(Failure::new(Kind::Failed, text));
    }
    let mut data = json!({ "content": text, "size_bytes": size_bytes });
    let more = match &digest {
        Some(digest) => {
            data["lines"] = json!(lines);
            data["digest"] = json!(digest);
            first + shown <= lines
        }
        None => true,
    };
    if more {
        data["next_offset"] = json!(first + shown);
    }
    let metadata =
        Metadata { truncated: more || cut, output_bytes: size_bytes, ..Metadata::default() };
    Ok(Outcome { result: Ok(data), metadata })
}

/// Opens the file, or says what may have been meant.
fn open(workspace: &Workspace, path: &str) -> Result<(File, std::fs::Metadata), Failure> {
    workspace.open_file(path).map_err(|error| {
        let hint = match &error {
            Error::PathNotFound(_) => match workspace.nearby(path).as_slice() {
                [] => String::new(),
                names => format!("; did you mean {}?", names.join(", ")),
            },
            Error::Invalid { problem, .. } if problem == "is a directory" => {
                "; use glob to see what is in it".to_owned()
            }
            _ => String::new(),
        };
        let failure = Failure::from(error);
        Failure { text: failure.text + &hint, ..failure }
    })
}

enum Scanned {
    Binary(&'static str),
    Text(Text),
}

struct Text {
    excerpt: Finished,

    /// Present if the file was read to its end.
    digest: Option<String>,
}

fn scan(
    mut file: File,
    size_bytes: u64,
    wanted: Wanted,
    stop: &CancellationToken,
) -> Result<Scanned, Failure> {
    let mut excerpt = Excerpt::new(wanted);
    let mut digest = Sha256::new();
    let mut buffer = vec![0; 64 * 1024];
    let mut position = 0;
    let ended = loop {
        unless_stopped(stop)?;
        let read = file.read(&mut buffer).map_err(Error::Files)?;
        let piece = &buffer[..read];
        if position == 0
            && let Some(media_type) = media::binary(&piece[..read.min(media::SAMPLE)])
        {
            return Ok(Scanned::Binary(media_type));
        }
        position += read as u64;
        digest.update(piece);
        excerpt.push(piece);
        // A file may grow as fast as it is read.
        if read == 0 || position > size_bytes.max(WORTH_COUNTING) {
            break read == 0;
        }
        if excerpt.is_full() && size_bytes > WORTH_COUNTING {
            break false;
        }
    };
    let digest = ended.then(|| HEXLOWER.encode(&digest.finalize()));
    Ok(Scanned::Text(Text { excerpt: excerpt.finish(), digest }))
}
