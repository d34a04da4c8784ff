//! What git can be made to run.

use super::{
    Kind, Part, word,
    word::Word,
    wrapper::{self, Inside},
};

/// Options before the name of git's own command. Those with a value that follows come first.
const VALUED: [&str; 5] = ["-C", "--git-dir", "--work-tree", "--namespace", "--super-prefix"];
const FLAGS: [&str; 9] = [
    "-p",
    "-P",
    "--paginate",
    "--no-pager",
    "--bare",
    "--no-replace-objects",
    "--literal-pathspecs",
    "--no-optional-locks",
    "--no-lazy-fetch",
];

/// Options that name a program, a folder with programs, or a file to write.
const RUNS: [&str; 9] = [
    "upload-pack",
    "receive-pack",
    "exec",
    "exec-path",
    "ext-diff",
    "extcmd",
    "template",
    "open-files-in-pager",
    "config",
];
const OUTPUT: &str = "output";

/// Commands that run others.
const RUNNERS: [&str; 10] = [
    "config",
    "daemon",
    "difftool",
    "fast-import",
    "filter-branch",
    "hook",
    "instaweb",
    "mergetool",
    "send-email",
    "web--browse",
];

const WHY: &str = "git can be told to run anything";

/// Git's own command and what is behind it; `None` if it cannot be found.
pub fn command(words: &[Word]) -> Option<&[Word]> {
    let mut at = 1;
    loop {
        let word = words.get(at)?;
        let value = word.value();
        let attached = value.split_once('=').is_some_and(|(name, _)| VALUED.contains(&name));
        at += match &*value {
            _ if word.may_be_option() => return None,
            option if VALUED.contains(&option) => 2,
            option if FLAGS.contains(&option) || attached => 1,
            option if option.starts_with('-') || word.has_hole() => return None,
            _ => return Some(&words[at..]),
        };
    }
}

pub fn inside(words: &[Word]) -> Inside {
    let harmless = ["--version", "--help"];
    if words.len() == 1 || harmless.iter().any(|option| words[1].is(option)) {
        return Inside::Nothing;
    }
    let Some([name, rest @ ..]) = command(words) else { return Inside::Anything(WHY) };
    let name = name.value();
    let first = |text: &str| rest.first().is_some_and(|word| word.is(text));
    let may_be = |text: &str| {
        let command = rest.iter().find(|word| !word.start().starts_with('-'));
        command.is_some_and(|word| word.may_become(text))
    };
    match &*name {
        "bisect" if may_be("run") => Inside::Anything(WHY),
        "submodule" if may_be("foreach") => Inside::Anything(WHY),
        "bisect" if first("run") => Inside::Commands(vec![rest[1..].to_vec()]),
        "submodule" if rest.iter().any(|word| word.is("foreach")) => {
            let behind = rest.iter().skip_while(|word| !word.is("foreach")).skip(1);
            let options = |word: &&Word| word.is("--recursive") || word.is("--quiet");
            wrapper::script(&behind.skip_while(options).cloned().collect::<Vec<_>>())
        }
        "config" if reads_config(rest) => Inside::Nothing,
        name if RUNNERS.contains(&name) => Inside::Anything(WHY),
        name if rest.iter().any(|word| runs(name, word)) => Inside::Anything(WHY),
        _ => Inside::Nothing,
    }
}

fn reads_config(words: &[Word]) -> bool {
    let reads = ["--get", "--get-all", "--list", "-l", "get", "list"];
    words.first().is_some_and(|word| reads.iter().any(|option| word.is(option)))
}

fn runs(command: &str, word: &Word) -> bool {
    let short: &[&str] = match command {
        "clone" => &["-u", "-c"],
        "rebase" => &["-x"],
        "grep" => &["-O"],
        _ => &[],
    };
    word.is_option(short)
        || RUNS.iter().any(|option| word.abbreviates(option))
        || word.start().contains("ext::")
}

/// Commands that write where `-o` says. Of others it is the value of another option, or harmless.
const WRITERS: [&str; 2] = ["archive", "format-patch"];

/// Whether one of its arguments is or may be a file that git writes.
pub fn writes(words: &[Word]) -> bool {
    let writer = words.iter().any(|word| WRITERS.iter().any(|name| word.is(name)));
    let short = |word: &Word| if writer { word.is_option(&["-o"]) } else { word.is("-o") };
    words.iter().skip(1).any(|word| word.abbreviates(OUTPUT) || short(word))
}

/// Adds the way to write it that rules are likely to use, and says what is unclear.
pub fn check(part: &mut Part) {
    if part.kind != Kind::Program || part.name() != "git" {
        return;
    }
    if let Some(rest) = command(&part.words) {
        let mut words = vec![Word::literal("git")];
        words.extend_from_slice(rest);
        for text in word::texts(&words) {
            if !part.texts.contains(&text) {
                part.texts.push(text);
            }
        }
    }
    // What follows `-m` is a message, whatever it begins with.
    let message = |at: usize| {
        let before = at.checked_sub(1).map(|at| &part.words[at]);
        before.is_some_and(|word| word.is("-m") || word.is("-am")) && !part.words[at].may_split()
    };
    let options = part.words.iter().take_while(|word| !word.is("--")).enumerate();
    if options.into_iter().any(|(at, word)| word.may_be_option() && !message(at)) {
        part.unclear = Some("an option may be filled in that makes git run anything");
    } else if writes(&part.words) {
        part.unclear = Some("git may write a file of any name");
    }
}
