//! What is known to only read.

use super::{Kind, Part, git, word::Word};

/// Whatever their arguments are.
const PROGRAMS: &[&str] = &[
    ":",
    "[",
    "[[",
    "basename",
    "break",
    "cat",
    "cd",
    "cmp",
    "comm",
    "continue",
    "cut",
    "df",
    "diff",
    "dirname",
    "du",
    "echo",
    "egrep",
    "exit",
    "expr",
    "false",
    "fgrep",
    "fold",
    "grep",
    "head",
    "id",
    "jq",
    "ls",
    "md5sum",
    "nl",
    "od",
    "printenv",
    "printf",
    "pwd",
    "readlink",
    "realpath",
    "return",
    "rev",
    "seq",
    "sha1sum",
    "sha256sum",
    "stat",
    "strings",
    "tac",
    "tail",
    "test",
    "tr",
    "true",
    "type",
    "uname",
    "wc",
    "which",
    "whoami",
];

/// With none of these options among their arguments.
const WITHOUT: &[(&str, &[&str])] = &[
    ("date", &["-s", "--s"]),
    ("find", &["-exec", "-ok", "-delete", "-fprint", "-fls"]),
    ("rg", &["--pre", "--hostname-bin"]),
    ("sort", &["-o", "--o", "-T", "--c"]),
    ("tree", &["-o"]),
];

/// Commands of git, with none of these options among their arguments.
const GIT: &[(&str, &[&str])] = &[
    ("blame", &[]),
    ("cat-file", &["--t", "--f"]),
    ("describe", &[]),
    ("diff", &["--o", "--e"]),
    ("grep", &["-O", "--o"]),
    ("log", &["--o", "--e"]),
    ("ls-files", &[]),
    ("ls-tree", &[]),
    ("rev-list", &[]),
    ("rev-parse", &[]),
    ("shortlog", &["--o"]),
    ("show", &["--o", "--e"]),
    ("status", &[]),
];

/// Git's options that begin like dangerous ones and are none.
const HARMLESS: &[&str] =
    &["--oneline", "--exit-code", "--encoding", "--extended-regexp", "--format"];

/// Whether it is known to change nothing.
pub fn only(part: &Part) -> bool {
    if part.unclear.is_some() {
        return false;
    }
    match part.kind {
        // What it starts is another part.
        Kind::Wrapper | Kind::Assignment => true,
        Kind::Overwrite | Kind::Append | Kind::Unknown => false,
        Kind::Program => program(part),
    }
}

fn program(part: &Part) -> bool {
    // A folder in front of a name means a program that is not the known one.
    let name = part.words[0].value();
    let lacks = |words: &[Word], options: &[&str]| {
        let begins = |word: &Word| {
            // What follows the letter is how exact a date is to be.
            let exact = name == "date" && word.start().starts_with("-I");
            let harmless = HARMLESS.iter().any(|option| word.start().starts_with(option)) || exact;
            !harmless && word.is_option(options)
        };
        options.is_empty() || !words.iter().any(|word| begins(word) || word.may_be_option())
    };
    let without = WITHOUT.iter().find(|(program, _)| *program == name);
    match &*name {
        "" => true,
        "git" => {
            let Some([command, rest @ ..]) = git::command(&part.words) else { return false };
            let known = GIT.iter().find(|(name, _)| command.is(name));
            known.is_some_and(|(_, options)| lacks(rest, options))
        }
        "uniq" => {
            let option = |word: &Word| word.start().starts_with('-') && !word.may_split();
            part.arguments().iter().all(option)
        }
        _ => {
            PROGRAMS.contains(&&*name)
                || without.is_some_and(|(_, options)| lacks(part.arguments(), options))
        }
    }
}
