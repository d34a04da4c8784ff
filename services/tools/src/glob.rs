use std::{
    cmp::Reverse,
    collections::BTreeSet,
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::Mutex,
    time::SystemTime,
};

use futures::{FutureExt as _, future::BoxFuture};
use globset::{GlobBuilder, GlobMatcher};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    catalog::{About, Effect, Run, Tool},
    file_tool::{self, path, schema, unless_stopped},
    files::{
        Workspace,
        walk::{Found, Walked, walk},
    },
    outcome::{Failure, Kind, Metadata, Outcome},
    text::clean,
};

/// Finds files by name.
pub struct Glob;

const USUAL_LIMIT: usize = 200;
const LARGEST_LIMIT: usize = 2_000;

/// What the schema says of a glob.
pub const LANGUAGE: &str = "`*` stands for anything but `/`, `**/` for any directories, `?` for \
    one character, `{a,b}` and `[a-z]` for choices. Without a `/` in it, it is about names at \
    any depth; otherwise about paths from `path`.";

#[derive(Deserialize)]
struct Input {
    pattern: String,
    #[serde(default)]
    path: String,
    #[serde(default)]
    sort: Sort,
    limit: Option<usize>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Sort {
    Modified,
    #[default]
    Name,
}

impl Tool for Glob {
    fn about(&self) -> About {
        About {
            name: "glob".into(),
            description: "Finds files in the workspace by name. Files that an ignore file such as \
                .gitignore leaves out are not found, and neither are links and .git."
                .into(),
            input_schema: schema(
                json!({
                    "pattern": {
                        "type": "string",
                        "minLength": 1,
                        "maxLength": 1_000,
                        "description": format!("The glob: {LANGUAGE}"),
                    },
                    "path": path("The directory to look in, relative to the workspace. \
                        Default: all of the workspace."),
                    "sort": {
                        "type": "string",
                        "enum": ["name", "modified"],
                        "description": "`name`: in order of path. `modified`: those that changed \
                            last come first. Default: name.",
                    },
                    "limit": {
                        "type": "integer",
                        "minimum": 1,
                        "maximum": LARGEST_LIMIT,
                        "description": "How many paths to return. Default: 200.",
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
        file_tool::run(input, run, glob).boxed()
    }
}

fn glob(input: Input, workspace: &Workspace, stop: &CancellationToken) -> Result<Outcome, Failure> {
    let filter = Filter::new(&input.pattern, &input.path)?;
    let limit = input.limit.unwrap_or(USUAL_LIMIT);
    // No more is remembered than is returned, however much there is.
    let first = Mutex::new((BTreeSet::new(), 0u64));
    let Walked { skipped, complete } = walk(workspace, &input.path, stop, || {
        |found: Found<'_>| {
            if !filter.takes(found.path) {
                return ControlFlow::Continue(());
            }
            let Some(key) = key(input.sort, &found) else { return ControlFlow::Continue(()) };
            let mut first = first.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            let (paths, total) = &mut *first;
            *total += 1;
            paths.insert((key, found.path.to_owned()));
            if paths.len() > limit {
                paths.pop_last();
            }
            ControlFlow::Continue(())
        }
    })?;
    unless_stopped(stop)?;
    let (paths, total) = first.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    let truncated = !complete || total > paths.len() as u64;
    let paths: Vec<_> = paths.iter().map(|(_, path)| name(path)).collect();
    let mut data = json!({ "paths": paths, "total": total });
    if skipped > 0 {
        data["directories_not_readable"] = json!(skipped);
    }
    if !complete {
        data["note"] = json!("the tree is too large to look at all of it; give a path");
    }
    Ok(Outcome { result: Ok(data), metadata: Metadata { truncated, ..Metadata::default() } })
}

type Key = Reverse<SystemTime>;

fn key(sort: Sort, found: &Found<'_>) -> Option<Key> {
    match sort {
        Sort::Modified => Some(Reverse(found.metadata()?.modified().ok()?)),
        Sort::Name => Some(Reverse(SystemTime::UNIX_EPOCH)),
    }
}

/// A path as text. Names that are none cannot be passed on as they are.
pub fn name(path: &Path) -> String {
    clean(path.as_os_str().as_encoded_bytes())
}

/// Which files are meant by a glob.
pub struct Filter {
    glob: GlobMatcher,

    /// The path that the glob starts from.
    start: PathBuf,
}

impl Filter {
    pub fn new(pattern: &str, start: &str) -> Result<Filter, Failure> {
        let whole = match pattern.strip_prefix('/') {
            Some(anchored) => anchored.to_owned(),
            None if pattern.contains('/') => pattern.trim_start_matches("./").to_owned(),
            None => format!("**/{pattern}"),
        };
        let glob = GlobBuilder::new(&whole).literal_separator(true).build();
        let glob = glob.map_err(|error| Failure::new(Kind::Schema, error.to_string()))?;
        let start = start.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
        Ok(Filter { glob: glob.compile_matcher(), start })
    }

    pub fn takes(&self, path: &Path) -> bool {
        self.glob.is_match(path.strip_prefix(&self.start).unwrap_or(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_glob_is_about_names_or_about_paths() {
        let takes =
            |pattern, start, path| Filter::new(pattern, start).unwrap().takes(Path::new(path));
        assert!(takes("*.rs", "", "a/b/c.rs"));
        assert!(takes("*.rs", "", "c.rs"));
        assert!(takes("/*.rs", "", "c.rs"));
        assert!(!takes("/*.rs", "", "a/c.rs"));
        assert!(takes("a/*.rs", "", "a/c.rs"));
        assert!(!takes("a/*.rs", "", "a/b/c.rs"));
        assert!(takes("a/**/*.rs", "", "a/b/c.rs"));
        assert!(takes("b/*.{rs,md}", "./a/", "a/b/c.md"));
        assert!(!takes("a/*.rs", "a", "a/c.rs"));
        assert!(Filter::new("[", "").is_err());
    }
}
