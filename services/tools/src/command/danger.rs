//! What a part may destroy, as far as its name and arguments tell.

use super::{Kind, Part, git, word::Word, wrapper::SHELLS};

/// Programs that are there to remove, overwrite or stop something, and what they do.
const PROGRAMS: &[(&[&str], &str)] = &[
    (&["rm", "rmdir", "unlink", "shred"], "removes files"),
    (&["truncate", "dd", "tee", "install"], "overwrites files"),
    (&["mkswap", "wipefs", "fdisk", "sfdisk", "parted", "blkdiscard"], "erases a disk"),
    (&["kill", "pkill", "killall", "skill"], "stops processes"),
    (&["shutdown", "reboot", "halt", "poweroff"], "stops the machine"),
    (&["sudo", "doas", "su", "runuser"], "acts as another user"),
    (
        &[
            "apt", "apt-get", "aptitude", "dpkg", "yum", "dnf", "rpm", "apk", "pacman", "brew",
            "snap",
        ],
        "changes what is installed",
    ),
    (&["crontab", "at", "batch"], "runs commands later"),
];

/// Programs that are dangerous with one of some arguments.
const WITH_ARGUMENTS: &[(&[&str], &[&str], &str)] = &[
    (&["chmod", "chown", "chgrp"], &["-R", "--recursive"], "changes whole folders"),
    (&["sed", "perl"], &["-i", "--in-place"], "overwrites files"),
    (&["find"], &["-delete", "-fprint", "-fls"], "removes or overwrites files"),
    (&["rsync"], &["--delete", "--remove-source"], "removes files"),
    (&["ln"], &["-f", "--force"], "overwrites files"),
    (&["sort"], &["-o", "--output"], "overwrites files"),
    (
        &["pip", "pip3", "npm", "pnpm", "yarn", "gem", "cargo", "go", "uv", "poetry", "composer"],
        &[
            "install",
            "uninstall",
            "add",
            "remove",
            "update",
            "upgrade",
            "publish",
            "ci",
            "unpublish",
        ],
        "changes what is installed or published",
    ),
    (
        &["docker", "podman", "kubectl", "helm", "terraform"],
        &[
            "rm",
            "prune",
            "delete",
            "destroy",
            "apply",
            "drain",
            "uninstall",
            "kill",
            "stop",
            "down",
        ],
        "removes or replaces what runs elsewhere",
    ),
    (
        &["python", "python3", "perl", "ruby", "node", "php", "lua", "deno", "bun"],
        &["-c", "-e", "-r", "-E", "--eval", "-p", "-"],
        "runs code that nobody has looked at",
    ),
];

const GIT: &[(&str, &[&str], &str)] = &[
    (
        "push",
        &["-f", "--f", "--m", "--d", "-d", "+", ":", "--prune"],
        "overwrites published history",
    ),
    ("reset", &["--h", "--m", "--k"], "discards changes"),
    ("clean", &[""], "removes files"),
    ("rm", &[""], "removes files"),
    ("checkout", &["-f", "--f", "--", ".", "-B", "--ours", "--theirs"], "discards changes"),
    ("switch", &["-f", "--f", "--d", "-C"], "discards changes"),
    ("restore", &[""], "discards changes"),
    ("branch", &["-d", "-D", "--d", "-f", "--f", "-M"], "removes branches"),
    ("tag", &["-d", "--d", "-f", "--f"], "removes tags"),
    ("stash", &["drop", "clear"], "discards changes"),
    ("rebase", &[""], "rewrites history"),
    ("filter-branch", &[""], "rewrites history"),
    ("reflog", &["expire", "delete"], "removes history"),
    ("gc", &["--prune"], "removes history"),
    ("update-ref", &[""], "moves branches"),
    ("worktree", &["remove", "prune"], "removes files"),
];

/// What it may destroy; `None` if it is not known to destroy anything.
pub fn of(part: &Part) -> Option<String> {
    let text = part.brief();
    if let Some(why) = part.unclear {
        return Some(format!("it cannot be told what {text:?} does: {why}"));
    }
    let what = match part.kind {
        Kind::Overwrite => Some("overwrites a file"),
        Kind::Append | Kind::Assignment | Kind::Unknown => None,
        Kind::Program | Kind::Wrapper => program(part),
    };
    what.map(|what| format!("{text:?} {what}"))
}

fn program(part: &Part) -> Option<&'static str> {
    let (name, arguments) = (part.name(), part.arguments());
    let begins = |starts: &[&str]| has(arguments, starts);
    if let Some((_, what)) = PROGRAMS.iter().find(|(names, _)| names.contains(&name)) {
        let appends = name == "tee" && surely(arguments, &["-a", "--append"]);
        return (!appends).then_some(what);
    }
    let dangerous =
        |(names, starts, _): &&(&[&str], &[&str], _)| names.contains(&name) && begins(starts);
    if let Some((.., what)) = WITH_ARGUMENTS.iter().find(dangerous) {
        return Some(what);
    }
    match name {
        "git" => git_command(part),
        "cp" | "mv" if !surely(arguments, &["-n", "--no-clobber"]) => Some("may overwrite files"),
        _ if name.starts_with("mkfs") => Some("erases a disk"),
        _ if SHELLS.contains(&name)
            && part.kind == Kind::Program
            && !surely(&arguments[..arguments.len().min(1)], &["--version", "--help"]) =>
        {
            Some("runs a script that nobody has looked at")
        }
        _ => None,
    }
}

fn git_command(part: &Part) -> Option<&'static str> {
    let [name, rest @ ..] = git::command(&part.words)? else { return None };
    let dangerous = |(command, starts, _): &&(&str, &[&str], _)| {
        name.is(command) && (starts == &[""] || has(rest, starts))
    };
    GIT.iter().find(dangerous).map(|(.., what)| *what)
}

/// Whether one of some options is among the arguments, for what is harmless with it.
fn surely(arguments: &[Word], options: &[&str]) -> bool {
    arguments.iter().any(|argument| options.iter().any(|option| argument.is(option)))
}

/// Whether one of some words is among the arguments: options however they are written, what git
/// pushes by its beginning, and all else as it is.
fn has(arguments: &[Word], words: &[&str]) -> bool {
    let is = |argument: &Word, word: &str| match word {
        "-" | "--" => argument.is(word),
        _ if word.starts_with('-') => argument.is_option(&[word]),
        _ if word.starts_with(['+', ':']) => argument.start().starts_with(word),
        _ => argument.is(word),
    };
    arguments.iter().any(|argument| words.iter().any(|word| is(argument, word)))
}
