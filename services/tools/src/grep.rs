mod search;
mod sink;

use futures::{FutureExt as _, future::BoxFuture};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use self::search::{Hits, search};
use crate::{
    catalog::{About, Effect, Run, Tool},
    file_tool::{self, path, schema, unless_stopped},
    files::Workspace,
    glob,
    outcome::{Failure, Metadata, Outcome},
};

/// Finds files by what is in them.
pub struct Grep;

const USUAL_LIMIT: u64 = 200;
const LARGEST_LIMIT: u64 = 2_000;
const MOST_CONTEXT: usize = 20;

#[derive(Debug, Deserialize)]
struct Input {
    pattern: String,
    #[serde(default)]
    path: String,
    glob: Option<String>,
    #[serde(default)]
    case: Case,
    #[serde(default)]
    context: usize,
    #[serde(default)]
    output: Mode,
    limit: Option<u64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Case {
    #[default]
    Sensitive,
    Insensitive,
    Smart,
}

/// What is told about a file that matches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Mode {
    #[default]
    Content,
    Files,
    Count,
}

impl Tool for Grep {
    fn about(&self) -> About {
        About {
            name: "grep".into(),
            description: "Finds lines in the files of the workspace with a regular expression, \
                as ripgrep does. Files that an ignore file such as .gitignore leaves out are \
                not searched, unless `path` names one; neither are binary files, links and \
                .git. In the output, each path stands above its lines, `12:` before a line that \
                matches and `12-` before one of its context."
                .into(),
            input_schema: schema(
                json!({
                    "pattern": {
                        "type": "string",
                        "minLength": 1,
                        "maxLength": 1_000,
                        "description": "The regular expression, in the syntax of Rust. It is \
                            matched with one line at a time.",
                    },
                    "path": path("The file or directory to search, relative to the workspace. \
                        Default: all of the workspace."),
                    "glob": {
                        "type": "string",
                        "minLength": 1,
                        "maxLength": 1_000,
                        "description": format!("Only files that match this: {}", glob::LANGUAGE),
                    },
                    "case": {
                        "type": "string",
                        "enum": ["sensitive", "insensitive", "smart"],
                        "description": "`smart`: sensitive if the pattern has an upper-case \
                            letter. Default: sensitive.",
                    },
                    "context": {
                        "type": "integer",
                        "minimum": 0,
                        "maximum": MOST_CONTEXT,
                        "description": "How many lines to show around each. Default: 0.",
                    },
                    "output": {
                        "type": "string",
                        "enum": ["content", "files", "count"],
                        "description": "`content`: the lines. `files`: only the paths. `count`: \
                            the paths and how many lines match in each. Default: content.",
                    },
                    "limit": {
                        "type": "integer",
                        "minimum": 1,
                        "maximum": LARGEST_LIMIT,
                        "description": "How many matching lines to return, or files for `files` \
                            and `count`. Default: 200.",
                    },
                }),
                &["pattern"],
            ),
            effect: Effect::Reads,
            command: None,
            path: Some("path"),
            url: None,
        }
    }

    fn run<'a>(&'a self, input: Value, run: Run<'a>) -> BoxFuture<'a, Outcome> {
        file_tool::run(input, run, grep).boxed()
    }
}

fn grep(input: Input, workspace: &Workspace, stop: &CancellationToken) -> Result<Outcome, Failure> {
    let Hits { mut files, matches, skipped, truncated } = search(&input, workspace, stop)?;
    unless_stopped(stop)?;
    // Threads find files in any order.
    files.sort_unstable_by(|one, other| one.path.cmp(&other.path));
    let mut output = String::new();
    for (index, file) in files.iter().enumerate() {
        let path = glob::name(&file.path).escape_default_controls();
        match input.output {
            Mode::Content => {
                let gap = if index == 0 { "" } else { "\n" };
                output += &format!("{gap}{path}\n{}", file.lines);
            }
            Mode::Files => output += &format!("{path}\n"),
            Mode::Count => output += &format!("{path}: {}\n", file.matches),
        }
    }
    let mut data = json!({ "output": output, "files": files.len() });
    if input.output != Mode::Files {
        data["matches"] = json!(matches);
    }
    if skipped > 0 {
        data["not_searched"] = json!(skipped);
    }
    let output_bytes = output.len() as u64;
    let metadata = Metadata { truncated, output_bytes, ..Metadata::default() };
    Ok(Outcome { result: Ok(data), metadata })
}

/// A name with a line break in it must not look like two lines of output.
trait EscapeControls {
    fn escape_default_controls(&self) -> String;
}

impl EscapeControls for str {
    fn escape_default_controls(&self) -> String {
        let escape = |character: char| match character.is_control() {
            true => character.escape_default().to_string(),
            false => character.to_string(),
        };
        self.chars().map(escape).collect()
    }
}
