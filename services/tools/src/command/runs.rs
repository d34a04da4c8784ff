//! Programs that can be made to run others in ways that we do not follow.

use super::{word::Word, wrapper::Inside};

/// These run whatever they are told.
const ANYTHING: &[&str] = &[
    ".",
    "alias",
    "at",
    "batch",
    "bind",
    "chroot",
    "chrt",
    "compgen",
    "complete",
    "coproc",
    "csh",
    "dbus-run-session",
    "ed",
    "emacs",
    "enable",
    "entr",
    "ex",
    "expect",
    "fc",
    "fish",
    "gdb",
    "ksh",
    "let",
    "ltrace",
    "nano",
    "nsenter",
    "nvim",
    "parallel",
    "rlwrap",
    "run-parts",
    "runuser",
    "screen",
    "script",
    "setarch",
    "setpriv",
    "source",
    "ssh",
    "start-stop-daemon",
    "strace",
    "su",
    "systemd-run",
    "tcsh",
    "tmux",
    "unbuffer",
    "unshare",
    "vi",
    "vim",
    "xvfb-run",
    "zsh",
];

/// These do with some options.
const WITH_OPTIONS: &[(&str, &[&str])] = &[
    ("hash", &["-p"]),
    ("jobs", &["-x"]),
    ("man", &["-P", "-H", "--pager", "--html"]),
    ("rg", &["--pre", "--hostname-bin"]),
    ("rsync", &["-e", "--rsh", "--rsync-path"]),
    ("scp", &["-S", "-o"]),
    ("sort", &["--compress"]),
    ("split", &["--filter"]),
    ("tar", &["-I", "-F", "--to-c", "--checkpoint-a", "--use-c", "--rsh", "--info-s", "--new-v"]),
    ("zip", &["-T", "--unzip"]),
];

const WHY: &str = "it can be told to run anything";

pub fn inside(words: &[Word]) -> Inside {
    let (name, arguments) = (words[0].base(), &words[1..]);
    if ANYTHING.contains(&name) || name.starts_with("ld-linux") {
        return Inside::Anything(WHY);
    }
    let runs = match name {
        "awk" | "gawk" | "mawk" | "nawk" => awk_runs(arguments),
        "sed" => sed_runs(arguments),
        _ => {
            let options = WITH_OPTIONS.iter().find(|(program, _)| *program == name);
            options.is_some_and(|(_, options)| {
                let told = |word: &Word| word.is_option(options) || word.may_be_option();
                arguments.iter().any(told) || (name == "tar" && old_style(arguments, options))
            })
        }
    };
    if runs { Inside::Anything(WHY) } else { Inside::Nothing }
}

/// The first letters that tar is given need no dash.
fn old_style(arguments: &[Word], options: &[&str]) -> bool {
    let first = arguments.first().filter(|first| !first.start().starts_with('-'));
    first.is_some_and(|first| {
        let mut letters = Word::literal(&format!("-{}", first.start()));
        if first.has_hole() {
            letters.push_hole("", false);
        }
        letters.is_option(options)
    })
}

fn awk_runs(arguments: &[Word]) -> bool {
    let told = |word: &Word| {
        let value = word.value();
        let option = value.starts_with('-') && !value.starts_with("-F") && !value.starts_with("-v");
        let runs = ["system", "|", "@", "getline"].iter().any(|text| value.contains(text));
        word.may_be_option() || option || runs
    };
    arguments.iter().any(told) || awk_program(arguments).is_none_or(Word::has_hole)
}

/// The first that is no option and no value of one. `None`: it cannot be told which one that is.
fn awk_program(arguments: &[Word]) -> Option<&Word> {
    let mut rest = arguments.iter();
    loop {
        let word = rest.next()?;
        if word.is("-F") || word.is("-v") {
            rest.next();
        } else if !word.start().starts_with('-') {
            return Some(word);
        } else if word.may_become("-F") || word.may_become("-v") {
            // With nothing filled in, its value follows.
            return None;
        }
    }
}

/// Whether a script is none of those that everybody writes: `5p`, `/text/d`, `s/a/b/g`.
fn sed_runs(arguments: &[Word]) -> bool {
    let is_option = |word: &&Word| word.start().starts_with('-');
    let usual = |word: &Word| word.value()[1..].bytes().all(|byte| b"nEriuz".contains(&byte));
    let script = arguments.iter().find(|word| !is_option(word));
    arguments.iter().any(Word::may_be_option)
        || !arguments.iter().filter(is_option).all(usual)
        || script.is_none_or(|word| word.has_hole() || !is_plain_sed(&word.value()))
}

fn is_plain_sed(script: &str) -> bool {
    let only = |text: &str, known: &[u8]| text.bytes().all(|byte| known.contains(&byte));
    let parts: Vec<&str> = script.split('/').collect();
    let simple = !script.contains(['\\', '\n', ';', '{']);
    match parts[..] {
        [text] => only(text, b"0123456789,$pdq"),
        ["", _, "d" | "p"] => simple,
        ["s", _, _, flags] => simple && only(flags, b"gpiI0123456789"),
        _ => false,
    }
}
