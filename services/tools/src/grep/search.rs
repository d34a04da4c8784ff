use std::{
    fs::File,
    io::{self, BufReader, Read, Take},
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::Mutex,
};

use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, MmapChoice, Searcher, SearcherBuilder};
use tokio_util::sync::CancellationToken;

use super::{
    Case, Input, Mode, USUAL_LIMIT,
    sink::{Budget, Lines},
};
use crate::{
    error::Error,
    files::{
        Workspace,
        walk::{Found, Walked, walk},
    },
    glob::Filter,
    outcome::{Failure, Kind},
};

/// How large a compiled pattern may be, and what it may remember while it searches.
const LARGEST_PATTERN: usize = 8 * 1024 * 1024;

/// A file with longer lines is not for reading, and is not searched.
const LONGEST_LINE: usize = 4 * 1024 * 1024;

/// How much of a file is read at once. Most are no larger, and where a file ends is known: so one call
/// of the kernel does, where a look at the first bytes and one for more behind the last would be others.
const AHEAD: usize = 16 * 1024;

/// What was found.
#[derive(Debug, Default)]
pub struct Hits {
    pub files: Vec<Hit>,
    pub matches: u64,

    /// Files and directories that could not be searched.
    pub skipped: u64,

    /// There is more.
    pub truncated: bool,
}

/// A file with matches.
#[derive(Debug)]
pub struct Hit {
    pub path: PathBuf,
    pub matches: u64,
    pub lines: String,
}

pub fn search(
    input: &Input,
    workspace: &Workspace,
    stop: &CancellationToken,
) -> Result<Hits, Failure> {
    let matcher = matcher(input)?;
    let filter = input.glob.as_deref().map(|glob| Filter::new(glob, &input.path)).transpose()?;
    let hits = Mutex::new(Hits::default());
    let budget = Budget::new(input.output, input.limit.unwrap_or(USUAL_LIMIT));
    let worker = || Worker {
        matcher: matcher.clone(),
        searcher: searcher(input),
        mode: input.output,
        budget: &budget,
        hits: &hits,
        stop,
    };
    let walked = match workspace.open_file(&input.path) {
        Ok((file, metadata)) => {
            let _ = worker().search(file, metadata.len(), Path::new(&input.path));
            Walked { skipped: 0, complete: true }
        }
        Err(Error::Invalid { problem, .. }) if problem == "is a directory" => {
            walk(workspace, &input.path, stop, || {
                let mut worker = worker();
                let filter = filter.as_ref();
                move |found: Found<'_>| match filter.is_none_or(|filter| filter.takes(found.path)) {
                    true => worker.visit(found),
                    false => ControlFlow::Continue(()),
                }
            })?
        }
        Err(error) => return Err(error.into()),
    };
    let mut hits = hits.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    hits.skipped += walked.skipped;
    hits.truncated = !walked.complete || budget.is_exceeded();
    Ok(hits)
}

fn matcher(input: &Input) -> Result<RegexMatcher, Failure> {
    RegexMatcherBuilder::new()
        .multi_line(true)
        .line_terminator(Some(b'\n'))
        .case_insensitive(input.case == Case::Insensitive)
        .case_smart(input.case == Case::Smart)
        .size_limit(LARGEST_PATTERN)
        .dfa_size_limit(LARGEST_PATTERN)
        .build(&input.pattern)
        .map_err(|error| Failure::new(Kind::Schema, format!("the pattern is wrong: {error}")))
}

fn searcher(input: &Input) -> Searcher {
    let context = if input.output == Mode::Content { input.context } else { 0 };
    SearcherBuilder::new()
        .binary_detection(BinaryDetection::quit(0))
        .line_number(input.output == Mode::Content)
        .before_context(context)
        .after_context(context)
        .heap_limit(Some(LONGEST_LINE))
        // Whoever shortens a file that we have mapped kills us.
        .memory_map(MmapChoice::never())
        .build()
}

/// One thread's part in a search.
struct Worker<'a> {
    matcher: RegexMatcher,
    searcher: Searcher,
    mode: Mode,
    budget: &'a Budget,
    hits: &'a Mutex<Hits>,
    stop: &'a CancellationToken,
}

impl Worker<'_> {
    fn visit(&mut self, found: Found<'_>) -> ControlFlow<()> {
        match found.open() {
            Some((file, metadata)) => self.search(file, metadata.len(), found.path),
            None => {
                self.skip();
                ControlFlow::Continue(())
            }
        }
    }

    /// Searches a file as large as it is now; breaks off when as much was found as was asked for.
    fn search(&mut self, file: File, size_bytes: u64, path: &Path) -> ControlFlow<()> {
        let mut lines = Lines::new(self.mode, self.budget);
        let file = BufReader::with_capacity(AHEAD, file.take(size_bytes));
        let reader = Stoppable { file, stop: self.stop };
        match self.searcher.search_reader(&self.matcher, reader, &mut lines) {
            Ok(()) => {
                if let Some((matches, lines)) = lines.finish() {
                    let mut hits = self.hits();
                    hits.matches += matches;
                    hits.files.push(Hit { path: path.to_owned(), matches, lines });
                }
            }
            Err(_) => {
                lines.give_up();
                self.skip();
            }
        }
        match self.budget.is_exceeded() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    fn skip(&self) {
        self.hits().skipped += 1;
    }

    fn hits(&self) -> std::sync::MutexGuard<'_, Hits> {
        self.hits.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// A file that is only read while somebody waits for the result.
struct Stoppable<'a> {
    file: BufReader<Take<File>>,
    stop: &'a CancellationToken,
}

impl Read for Stoppable<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.stop.is_cancelled() {
            true => Err(io::Error::other("the search was stopped")),
            false => self.file.read(buffer),
        }
    }
}
